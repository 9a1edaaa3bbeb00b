"""Faults that a server could have, each with the test that must notice it.

Each is a patch of the server's own code, for as long as its context lasts. Where stores are concerned it is
put into the one in memory and into the functions of the others. Some the simulation must notice, too.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple
from unittest import mock

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from rlstm_server import app
from rlstm_server.api import auth
from rlstm_server.caller import TokenBucket
from rlstm_server.engine import copies, quotas, session, state
from rlstm_server.errors import Gone, NotFound
from rlstm_server.store import redis_address, redis_check
from rlstm_server.store.base import Commit, CommitOutcome, Committed, Replayed, new_id
from rlstm_server.store.embedded import EmbeddedValkey
from rlstm_server.store.memory_store import History, MemoryStore
from rlstm_server.store.redis_server import RedisServer

Patch = Callable[[], AbstractContextManager[Any]]


class Mutant(NamedTuple):
    """A fault, the test that must notice it, and whether a simulated world must."""

    test: str
    patch: Patch
    simulated: bool


MUTANTS: Final[dict[str, Mutant]] = {}


def noticed_by(test: str, *, simulated: bool = False) -> Callable[[Patch], Patch]:
    """Enter a fault under its name."""

    def enter(patch: Patch) -> Patch:
        MUTANTS[patch.__name__] = Mutant(f"tests/{test}", patch, simulated)
        return patch

    return enter


def functions_with(code: str, other: str = "") -> AbstractContextManager[Any]:
    """The stores' functions with another piece, or none, for one which must be there once."""
    whole = redis_check.library_code()
    if whole.count(code) != 1:
        raise LookupError(f"functions.lua does not have this once: {code}")
    return mock.patch.object(redis_check, "library_code", return_value=whole.replace(code, other))


@contextmanager
def refusing(change: Callable[[History, Commit], Commit], code: str) -> Iterator[None]:
    """Stores that judge another commit than was sent: as `change` makes it, and without this code."""
    refusal = History.refusal

    def check(self: History, commit: Commit, now_ms: int) -> CommitOutcome | None:
        return refusal(self, change(self, commit), now_ms)

    with mock.patch.object(History, "refusal", check), functions_with(code):
        yield


# ---- one history ------------------------------------------------------------------------------------------


@noticed_by("server/store/test_conformance.py::test_a_commit_on_another_history_is_stale", simulated=True)
def no_chain_check() -> AbstractContextManager[Any]:
    """Stores compare the version alone."""

    def chained(self: History, commit: Commit) -> Commit:
        same = commit.expects.version == self.head.version
        return replace(commit, expects=self.head.revision) if same else commit

    return refusing(chained, " or expected_chain ~= head.chain")


@noticed_by("server/store/test_conformance.py::test_a_repeat_gets_the_stored_answer", simulated=True)
def no_operation_ids() -> AbstractContextManager[Any]:
    """Stores forget which operations they have applied."""
    return refusing(
        lambda _, commit: replace(commit, operation_id=new_id()), "if known then return known end"
    )


@noticed_by("server/store/test_conformance.py::test_if_match_refuses_another_version")
def no_if_match() -> AbstractContextManager[Any]:
    """Nobody looks at the version that a client insists on."""
    return refusing(
        lambda _, commit: replace(commit, if_match=None),
        "if if_match ~= '' and tonumber(if_match) ~= tonumber(head.version)"
        " then return { 'MOVED', head.version } end",
    )


@noticed_by("server/store/test_conformance.py::test_only_the_present_can_be_named", simulated=True)
@contextmanager
def any_snapshot_named() -> Iterator[None]:
    """The present state gets a name, whatever state was meant."""
    name_snapshot = MemoryStore.name_snapshot

    async def name(self: MemoryStore, key: Any, called: str, _: Any, info: bytes) -> Any:
        return await name_snapshot(self, key, called, self._living(key).head.revision, info)

    stale = (
        "if version ~= head.version or chain ~= head.chain then"
        " return { 'STALE', head.version, head.chain } end"
    )
    with mock.patch.object(MemoryStore, "name_snapshot", name), functions_with(stale):
        yield


@noticed_by("server/store/test_conformance.py::test_a_repeat_gets_the_stored_answer", simulated=True)
@contextmanager
def stale_details() -> Iterator[None]:
    """A repeat is given the details of the newest operation, whichever it repeats."""
    known = History.known

    def newest(self: History, *asked: Any) -> Any:
        found = known(self, *asked)
        if isinstance(found, Replayed) and self.details and found.details:
            return replace(found, details=[*self.details.values()][-1])
        return found

    other = functions_with("keys[2], 'd:' .. version)\n", "keys[2], 'd:' .. head.version)\n")
    with mock.patch.object(History, "known", newest), other:
        yield


@noticed_by("server/api/test_sessions.py::test_a_session_that_has_ended_is_gone_everywhere", simulated=True)
def no_tombstones() -> AbstractContextManager[Any]:
    """Nobody remembers that a session has ended."""
    living = MemoryStore._living

    def forget(self: MemoryStore, key: Any) -> History:
        with suppress(Gone):
            return living(self, key)
        raise NotFound

    return mock.patch.object(MemoryStore, "_living", forget)


# ---- nothing lost, nothing twice --------------------------------------------------------------------------


def committing(wrong: Callable[..., Any]) -> AbstractContextManager[Any]:
    """An engine that commits by `wrong`, which is given how it is done right."""
    right = session.commit_with_retries
    return mock.patch.object(session, "commit_with_retries", lambda *given: wrong(right, *given))


@noticed_by("server/engine/test_session.py::test_a_store_that_is_away_changes_nothing", simulated=True)
def acknowledged_before_commit() -> AbstractContextManager[Any]:
    """The answer goes out while the commit is on its way."""

    def look_away(task: "asyncio.Task[Any]") -> None:
        if not task.cancelled():
            task.exception()

    async def soon(right: Any, commit: Commit, *others: Any) -> CommitOutcome:
        asyncio.ensure_future(right(commit, *others)).add_done_callback(look_away)
        return Committed(revision=commit.revision, expires_at_ms=0)

    return committing(soon)


@noticed_by(
    "server/engine/test_session.py::test_nothing_is_seen_of_a_change_before_it_is_committed", simulated=True
)
@contextmanager
def swapped_before_commit() -> Iterator[None]:
    """The new state takes the old one's place before it is committed."""
    serialize, staged = session.serialize, dict[bytes, Any]()

    async def note(*given: Any) -> Any:
        own, written = await serialize(*given)
        staged[written] = own.copy
        return own, written

    async def early(right: Any, commit: Commit, store: Any, cache: Any) -> CommitOutcome:
        cache.put(staged.pop(commit.state))
        return await right(commit, store, cache)

    with mock.patch.object(session, "serialize", note), committing(early):
        yield


@noticed_by(
    "server/engine/test_session.py::test_a_lost_answer_is_asked_for_again[commit_and_stay_silent]",
    simulated=True,
)
def resent_under_a_fresh_id() -> AbstractContextManager[Any]:
    """A commit that nobody answered is sent again as another operation."""

    async def send(right: Any, commit: Commit, store: Any, cache: Any) -> CommitOutcome:
        commit_once, sent = store.commit, []

        async def again(own: Commit) -> CommitOutcome:
            own = replace(own, operation_id=new_id()) if sent else own
            sent.append(own)
            return await commit_once(own)

        with mock.patch.object(store, "commit", again):
            return await right(commit, store, cache)

    return committing(send)


@noticed_by(
    "simulation/test_simulation.py::test_nothing_is_lost_applied_twice_or_stuck_whatever_breaks",
    simulated=True,
)
def cache_kept_after_stale() -> AbstractContextManager[Any]:
    """The copy that was refused as stale is used again."""
    return mock.patch.object(state.SessionCache, "drop", return_value=None)


@noticed_by("server/store/test_redis_link.py::test_the_library_below_never_sends_again")
def client_retries() -> AbstractContextManager[Any]:
    """The client library sends again by itself."""
    ours = {**redis_address._OURS, "retry": Retry(NoBackoff(), 3)}
    return mock.patch.object(redis_address, "_OURS", ours)


@noticed_by("server/store/test_embedded.py::test_it_is_set_up_to_lose_nothing")
@contextmanager
def flushed_every_second() -> Iterator[None]:
    """Our own store is flushed once a second, and the check at the start lets it pass."""
    command = EmbeddedValkey._command

    def weaker(self: EmbeddedValkey) -> list[str]:
        return ["everysec" if word == "always" else word for word in command(self)]

    with mock.patch.object(EmbeddedValkey, "_command", weaker), any_flushing_passes():
        yield


@noticed_by("server/store/test_redis_check.py::test_a_weak_server_is_refused_unless_told_otherwise")
def any_flushing_passes() -> AbstractContextManager[Any]:
    """The check at the start does not look at when a store flushes."""
    weaknesses = redis_check.weaknesses

    def overlooked(settings: Any) -> list[str]:
        return [sentence for sentence in weaknesses(settings) if not sentence.startswith("appendfsync")]

    return mock.patch.object(redis_check, "weaknesses", overlooked)


@noticed_by("server/store/test_redis_replica.py::test_a_commit_that_no_replica_has_is_told_as_such")
def replica_taken_for_granted() -> AbstractContextManager[Any]:
    """A replica is waited for, and whether one came is not looked at."""
    replicas = RedisServer._replicas

    async def granted(self: RedisServer, *arguments: Any) -> int:
        await replicas(self, *arguments)
        return 1

    return mock.patch.object(RedisServer, "_replicas", granted)


# ---- states that are what they were -----------------------------------------------------------------------


@noticed_by("server/engine/test_state.py::test_a_state_that_is_not_finite_is_not_written")
def no_finite_check() -> AbstractContextManager[Any]:
    """Any number may be committed."""
    return mock.patch.object(state, "is_finite", return_value=True)


@noticed_by("server/engine/test_state.py::test_every_damage_is_noticed")
def no_checksum() -> AbstractContextManager[Any]:
    """Damaged bytes are opened like any others."""
    return mock.patch.object(state, "_checksum", return_value=bytes(state._CHECKSUM_BYTES))


@noticed_by("server/engine/test_state.py::test_another_sessions_state_is_refused")
def anybodys_state() -> AbstractContextManager[Any]:
    """A stored state is read whoever it was stored for."""

    def opened(self: state.States, _key: Any, _version: int, value: bytes) -> Any:
        return state.read(value[state._FRONT_BYTES :], self.models)[1]

    return mock.patch.object(state.States, "deserialize", opened)


@noticed_by("server/engine/test_state.py::test_tensors_are_those_of_the_model")
def files_without_bounds() -> AbstractContextManager[Any]:
    """A file's values are believed, however large."""
    return mock.patch.object(copies, "_check_bounds", return_value=None)


# ---- between sessions -------------------------------------------------------------------------------------


@noticed_by("server/engine/test_isolation.py::test_each_session_learns_its_own_secret_only")
def anothers_state_committed() -> AbstractContextManager[Any]:
    """A change commits what another session's change has come to."""
    serialize, last = session.serialize, []

    async def swapped(states: Any, version: int, job: Any) -> Any:
        own, written = await serialize(states, version, job)
        last.append(own.copy)
        for other in reversed(last[:-1]):
            if other.key != own.copy.key:
                own.copy = replace(own.copy, state=other.state)
                break
        return own, written

    return mock.patch.object(session, "serialize", swapped)


# ---- who may do what --------------------------------------------------------------------------------------


@noticed_by("server/test_routes.py::test_every_route_by_everybody")
@contextmanager
def one_route_open() -> Iterator[None]:
    """A route more than the two of health answers everybody."""
    opened = auth.OPEN_PATHS | {"/metrics"}
    with mock.patch.object(auth, "OPEN_PATHS", opened), mock.patch.object(app, "OPEN_PATHS", opened):
        yield


@noticed_by("server/engine/test_quotas.py::test_a_bucket_refuses_what_exceeds_its_rate")
def no_rates() -> AbstractContextManager[Any]:
    """A key may use up as much as it likes."""
    return mock.patch.object(TokenBucket, "check", return_value=None)


@noticed_by("server/api/test_quotas.py::test_a_tenant_keeps_so_many_sessions")
def no_limit_of_what_is_kept() -> AbstractContextManager[Any]:
    """A tenant may keep as much as it likes."""
    return mock.patch.object(quotas, "_within", return_value=None)
