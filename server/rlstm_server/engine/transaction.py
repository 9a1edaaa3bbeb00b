"""A change on its way into a session: asked for, computed on a staged state, committed, settled.

A commit whose outcome the store left open is sent again, under the same operation id, until it is known.
"""

import time
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from rlstm_server.engine.answers import Stored
from rlstm_server.engine.cache import SessionCache
from rlstm_server.engine.description import SessionCopy, SessionFacts
from rlstm_server.engine.queue import COMMIT_SECONDS
from rlstm_server.engine.quotas import Caller
from rlstm_server.engine.reading import TokenUsage
from rlstm_server.engine.state import SessionState, States
from rlstm_server.engine.worker import Job
from rlstm_server.errors import Gone, NotFound, OutcomeUnknown, ServerError, StoreFull, StoreUnavailable
from rlstm_server.schemas import Timings
from rlstm_server.store.base import Commit, CommitOutcome, Committed, Replayed, SessionKey, SessionStore

TRIES: Final = 3

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change that was asked for. `redo` allows doing the work again when another replica was faster."""

    key: SessionKey
    operation_id: str
    body_hash: bytes
    caller: Caller
    if_match: int | None = None
    redo: bool = True


class Staged(NamedTuple, Generic[Answer]):
    """A change that is computed and not yet committed: the state after it, and its answer."""

    state: SessionState
    answer: Answer
    stored: Stored
    usage: TokenUsage
    facts: SessionFacts


class Sealed(NamedTuple, Generic[Answer]):
    """A staged change, and its state as it will be stored."""

    staged: Staged[Answer]
    state: bytes


class Changed(NamedTuple, Generic[Answer]):
    """A change that took effect: now (`staged`), or earlier (`replay`)."""

    staged: Staged[Answer] | None
    replay: Replayed | None
    copy: SessionCopy | None
    expires_at_ms: int | None
    timings: Timings

    @property
    def known(self) -> Replayed:
        """What the store remembers of a change that took effect earlier."""
        if self.replay is None:
            raise ValueError("a change is either staged or a replay")
        return self.replay


async def sealed(states: States, copy: SessionCopy, job: Job[Staged[Answer]]) -> Sealed[Answer]:
    """Compute a change, and seal its state. Raises StateCorrupt where that is not finite, TooLarge."""
    staged = await job()
    return Sealed(staged, states.seal(copy.key, copy.position.version + 1, staged.state))


async def commit_until_known(commit: Commit, store: SessionStore, cache: SessionCache) -> CommitOutcome:
    """Commit; where the store leaves open whether that happened, ask again with the same operation id.

    A session of which more is known than its copy says leaves the cache.
    """
    deadline = time.monotonic() + COMMIT_SECONDS
    unknown: OutcomeUnknown | None = None
    for _ in range(TRIES):
        try:
            outcome = await store.commit(commit)
        except OutcomeUnknown as error:
            unknown = error
        except (Gone, NotFound) as error:
            cache.drop(commit.key)
            error.applied = "no" if unknown is None else "unknown"
            raise
        except (StoreUnavailable, StoreFull) as error:
            if unknown is None:
                raise
            unknown.__cause__ = error  # this try changed nothing, but the one before may have
        else:
            return outcome if unknown is None else await _own(commit, outcome, store)
        if time.monotonic() >= deadline:
            break
    cache.drop(commit.key)
    raise unknown or OutcomeUnknown("the store did not say whether the change took effect")


async def _own(commit: Commit, outcome: CommitOutcome, store: SessionStore) -> CommitOutcome:
    """After a commit of unknown outcome, a replay of exactly this commit is that commit."""
    if not isinstance(outcome, Replayed) or not outcome.is_of(commit):
        return outcome
    try:
        expires_at_ms = (await store.load_head(commit.key, with_state=False)).expires_at_ms
    except ServerError:
        expires_at_ms = int(time.time() * 1000) + commit.ttl_ms  # our clock is all that is left
    return Committed(position=commit.position, expires_at_ms=expires_at_ms)
