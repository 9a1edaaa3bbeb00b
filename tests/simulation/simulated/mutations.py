"""Faults that a server could have: each must be noticed, or the simulation proves nothing.

Each is a patch of the server's own code, for as long as its context lasts.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Final

from rlstm_server.engine import session
from rlstm_server.engine.state import SessionCache, SessionCopy
from rlstm_server.errors import Gone, NotFound
from rlstm_server.store.base import Commit, CommitOutcome, Committed, Replayed, SessionKey, new_operation_id
from rlstm_server.store.memory_store import History, MemoryStore

Mutation = Callable[[], AbstractContextManager[None]]


@contextmanager
def _patched(owner: Any, name: str, wrong: Callable[[Any], Any]) -> Iterator[None]:
    right = getattr(owner, name)
    setattr(owner, name, wrong(right))
    try:
        yield
    finally:
        setattr(owner, name, right)


def no_chain_check() -> AbstractContextManager[None]:
    """The store compares the version alone."""

    def wrong(refusal: Any) -> Any:
        def check(self: History, commit: Commit, now_ms: int) -> CommitOutcome | None:
            if commit.expects.version == self.head.version:
                commit = replace(commit, expects=self.head.revision)
            return refusal(self, commit, now_ms)

        return check

    return _patched(History, "refusal", wrong)


def no_operation_ids() -> AbstractContextManager[None]:
    """The store forgets which operations it has applied."""

    def wrong(refusal: Any) -> Any:
        def check(self: History, commit: Commit, now_ms: int) -> CommitOutcome | None:
            return refusal(self, replace(commit, operation_id=new_operation_id()), now_ms)

        return check

    return _patched(History, "refusal", wrong)


def acknowledged_before_commit() -> AbstractContextManager[None]:
    """The server answers while its commit is on its way."""

    def wrong(commit_now: Any) -> Any:
        async def soon(commit: Commit, *others: Any) -> CommitOutcome:
            asyncio.ensure_future(commit_now(commit, *others)).add_done_callback(_look_away)
            return Committed(revision=commit.revision, expires_at_ms=0)

        return soon

    return _patched(session, "commit_with_retries", wrong)


def _look_away(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()


def cache_kept_after_stale() -> AbstractContextManager[None]:
    """The copy that was refused as stale is used again."""
    return _patched(SessionCache, "drop", lambda drop: lambda self, key: None)


def resent_under_a_fresh_id() -> AbstractContextManager[None]:
    """A commit that nobody answered is sent again as another operation."""

    def wrong(commit_now: Any) -> Any:
        async def send(commit: Commit, store: Any, cache: Any) -> CommitOutcome:
            right, sent = store.commit, 0

            async def again(own: Commit) -> CommitOutcome:
                nonlocal sent
                sent += 1
                return await right(own if sent == 1 else replace(own, operation_id=new_operation_id()))

            object.__setattr__(store, "commit", again)
            try:
                return await commit_now(commit, store, cache)
            finally:
                object.__setattr__(store, "commit", right)

        return send

    return _patched(session, "commit_with_retries", wrong)


@contextmanager
def swapped_before_commit() -> Iterator[None]:
    """The new state takes the old one's place before it is committed."""
    staged: dict[bytes, SessionCopy] = {}

    def noting(serialize: Any) -> Any:
        async def note(*given: Any) -> Any:
            own, written = await serialize(*given)
            staged[written] = own.copy
            return own, written

        return note

    def wrong(commit_now: Any) -> Any:
        async def early(commit: Commit, store: Any, cache: SessionCache) -> CommitOutcome:
            cache.put(staged.pop(commit.state))
            return await commit_now(commit, store, cache)

        return early

    with _patched(session, "serialize", noting), _patched(session, "commit_with_retries", wrong):
        yield


def no_tombstones() -> AbstractContextManager[None]:
    """Nobody remembers that a session has ended."""

    def wrong(living: Any) -> Any:
        def forget(self: MemoryStore, key: SessionKey) -> History:
            try:
                return living(self, key)
            except Gone:
                raise NotFound from None

        return forget

    return _patched(MemoryStore, "_living", wrong)


def any_snapshot_named() -> AbstractContextManager[None]:
    """The store names its present state, whatever state was meant."""

    def wrong(name_snapshot: Any) -> Any:
        async def name(self: MemoryStore, key: SessionKey, called: str, _: Any, info: bytes) -> Any:
            return await name_snapshot(self, key, called, self._living(key).head.revision, info)

        return name

    return _patched(MemoryStore, "name_snapshot", wrong)


def stale_details() -> AbstractContextManager[None]:
    """A repeat is given the details of the newest operation, whichever it repeats."""

    def wrong(known: Any) -> Any:
        def newest(self: History, *asked: Any) -> Any:
            found = known(self, *asked)
            if isinstance(found, Replayed) and self.details and found.details:
                return replace(found, details=[*self.details.values()][-1])
            return found

        return newest

    return _patched(History, "known", wrong)


MUTATIONS: Final[tuple[Mutation, ...]] = (
    no_chain_check,
    no_operation_ids,
    acknowledged_before_commit,
    cache_kept_after_stale,
    resent_under_a_fresh_id,
    swapped_before_commit,
    no_tombstones,
    any_snapshot_named,
    stale_details,
)
