"""Faults that a server could have, each with the test that must notice it.

Each is a patch of the server's own code, for as long as its context lasts. Where stores are concerned it is
put into the one in memory and into the functions of the others; the simulation has the former already.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple
from unittest import mock

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from simulated import mutations as simulated

from rlstm_server import app
from rlstm_server.api import auth
from rlstm_server.caller import TokenBucket
from rlstm_server.engine import copies, quotas, session, state
from rlstm_server.store import redis_address, redis_check
from rlstm_server.store.embedded import EmbeddedValkey
from rlstm_server.store.memory_store import History
from rlstm_server.store.redis_server import RedisServer

Patch = Callable[[], AbstractContextManager[Any]]


class Mutant(NamedTuple):
    """A fault, and the test that must notice it."""

    test: str
    patch: Patch


MUTANTS: Final[dict[str, Mutant]] = {}


def noticed_by(test: str) -> Callable[[Patch], Patch]:
    """Enter a fault under its name."""

    def enter(patch: Patch) -> Patch:
        MUTANTS[patch.__name__] = Mutant(f"tests/{test}", patch)
        return patch

    return enter


def functions_without(code: str) -> AbstractContextManager[Any]:
    """The stores' functions without a piece of them, which must be there once."""
    whole = redis_check.library_code()
    if whole.count(code) != 1:
        raise LookupError(f"functions.lua does not have this once: {code}")
    return mock.patch.object(redis_check, "library_code", return_value=whole.replace(code, ""))


# ---- one history ------------------------------------------------------------------------------------------


@noticed_by("server/store/test_conformance.py::test_a_commit_on_another_history_is_stale")
@contextmanager
def no_chain_check() -> Iterator[None]:
    """Stores compare the version alone."""
    with simulated.no_chain_check(), functions_without(" or expected_chain ~= head.chain"):
        yield


@noticed_by("server/store/test_conformance.py::test_a_repeat_gets_the_stored_answer")
@contextmanager
def no_operation_ids() -> Iterator[None]:
    """Stores forget which operations they have applied."""
    with simulated.no_operation_ids(), functions_without("if known then return known end"):
        yield


@noticed_by("server/store/test_conformance.py::test_if_match_refuses_another_version")
@contextmanager
def no_if_match() -> Iterator[None]:
    """Nobody looks at the version that a client insists on."""
    refusal = History.refusal

    def check(self: History, commit: Any, now_ms: int) -> Any:
        return refusal(self, replace(commit, if_match=None), now_ms)

    with (
        mock.patch.object(History, "refusal", check),
        functions_without(
            "if if_match ~= '' and tonumber(if_match) ~= tonumber(head.version)"
            " then return { 'MOVED', head.version } end"
        ),
    ):
        yield


@noticed_by("server/store/test_conformance.py::test_only_the_present_can_be_named")
@contextmanager
def any_snapshot_named() -> Iterator[None]:
    """The present state gets a name, whatever state was meant."""
    with (
        simulated.any_snapshot_named(),
        functions_without(
            "if version ~= head.version or chain ~= head.chain then"
            " return { 'STALE', head.version, head.chain } end"
        ),
    ):
        yield


@noticed_by("server/store/test_conformance.py::test_a_repeat_gets_the_stored_answer")
@contextmanager
def stale_details() -> Iterator[None]:
    """A repeat is given the details of the newest operation, whichever it repeats."""
    whole = redis_check.library_code()
    newest = whole.replace("keys[2], 'd:' .. version)\n", "keys[2], 'd:' .. head.version)\n")
    with simulated.stale_details(), mock.patch.object(redis_check, "library_code", return_value=newest):
        yield


@noticed_by("server/api/test_sessions.py::test_a_session_that_has_ended_is_gone_everywhere")
def no_tombstones() -> AbstractContextManager[Any]:
    """Nobody remembers that a session has ended."""
    return simulated.no_tombstones()


# ---- nothing lost, nothing twice --------------------------------------------------------------------------


@noticed_by("server/engine/test_session.py::test_a_store_that_is_away_changes_nothing")
def acknowledged_before_commit() -> AbstractContextManager[Any]:
    """The answer goes out while the commit is on its way."""
    return simulated.acknowledged_before_commit()


@noticed_by("server/engine/test_session.py::test_nothing_is_seen_of_a_change_before_it_is_committed")
def swapped_before_commit() -> AbstractContextManager[Any]:
    """The new state takes the old one's place before it is committed."""
    return simulated.swapped_before_commit()


@noticed_by("server/engine/test_session.py::test_a_lost_answer_is_asked_for_again[commit_and_stay_silent]")
def resent_under_a_fresh_id() -> AbstractContextManager[Any]:
    """A commit that nobody answered is sent again as another operation."""
    return simulated.resent_under_a_fresh_id()


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
