"""How a commit is sent until it is known what became of it."""

import time
from dataclasses import dataclass
from typing import Final

from rlstm_server.engine.actors import COMMIT_SECONDS
from rlstm_server.engine.cache import SessionCache
from rlstm_server.errors import Gone, NotFound, OutcomeUnknown, ServerError, StoreFull, StoreUnavailable
from rlstm_server.store.base import Commit, CommitOutcome, Committed, Replayed, SessionStore

TRIES: Final = 3


@dataclass(frozen=True, eq=False)
class Committer:
    """Sends commits; a session of which more is known than its copy says leaves the cache."""

    store: SessionStore
    cache: SessionCache

    async def commit(self, commit: Commit) -> CommitOutcome:
        """Commit; where the store leaves open whether that happened, ask again with the same operation id."""
        deadline = time.monotonic() + COMMIT_SECONDS
        unknown: OutcomeUnknown | None = None
        for _ in range(TRIES):
            try:
                outcome = await self.store.commit(commit)
            except OutcomeUnknown as error:
                unknown = error
            except (Gone, NotFound) as error:
                self.cache.drop(commit.key)
                error.applied = "no" if unknown is None else "unknown"
                raise
            except (StoreUnavailable, StoreFull) as error:
                if unknown is None:
                    raise
                unknown.__cause__ = error  # this try changed nothing, but the one before may have
            else:
                return await self._own(commit, outcome) if unknown is not None else outcome
            if time.monotonic() >= deadline:
                break
        self.cache.drop(commit.key)
        raise unknown or OutcomeUnknown("the store did not say whether the change took effect")

    async def _own(self, commit: Commit, outcome: CommitOutcome) -> CommitOutcome:
        """After a commit of unknown outcome, a replay of exactly its position is that commit.

        Of its version too: two chunks of a text may hold the same tokens, and lead to the same place.
        """
        position = commit.position
        if not isinstance(outcome, Replayed) or (outcome.version, outcome.current) != (
            position.version,
            position,
        ):
            return outcome
        try:
            expires_at_ms = (await self.store.load_head(commit.key, with_state=False)).expires_at_ms
        except ServerError:
            expires_at_ms = int(time.time() * 1000) + commit.ttl_ms  # our clock is all that is left
        return Committed(position=commit.position, expires_at_ms=expires_at_ms)
