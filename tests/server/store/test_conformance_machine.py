"""Any sequence of calls does on each store what it does on a plain model."""

import asyncio
import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rlstm_server.errors import ServerError
from rlstm_server.store.base import Limits, NamedSnapshot, Position

from .conftest import memory_kit, redis_kit
from .store_model import Model

LIMITS = Limits(operations=3, details_bytes=8, named_snapshots=2)
IDS = st.sampled_from(["a", "b", "c", "d", "e"])
NAMES = st.sampled_from([None, "x", "y"])
BODIES = st.sampled_from([b"1" * 32, b"2" * 32])
STATES = st.binary(min_size=1, max_size=10)
SELDOM = st.sampled_from([False] * 9 + [True])


class StoreMachine(RuleBasedStateMachine):
    """Calls store and model alike. `kit`, `build` and `counter` are set in a subclass."""

    kit = build = counter = None

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.store = self.kit.make(LIMITS)
        self.model = Model(LIMITS)
        self.tenant_build = type(self.build)(self.build.tenant + str(next(self.counter)))
        self.touched = []
        self.is_swept = True

    def outcome(self, call):
        """Return what a call returns or raises."""
        try:
            return self.loop.run_until_complete(call)
        except ServerError as error:
            return error

    def agree(self, expected, found):
        """Fail unless the store did what the model says."""
        if isinstance(expected, type):
            assert isinstance(found, expected), found
        elif isinstance(expected, Exception):
            assert type(found) is type(expected), found
            assert getattr(found, "reason", None) == getattr(expected, "reason", None)
        else:
            assert found == expected

    def pick(self, data):
        """Draw a session, dead or alive, to be looked at afterwards."""
        alive = [session for session in self.model.sessions if not session.ended]
        anyone = not alive or data.draw(SELDOM)
        session = data.draw(st.sampled_from(self.model.sessions if anyone else alive))
        self.touched = [session]
        return session

    def draw_position(self, data, session, back):
        """Draw a place in the session's history, seldom one in another."""
        position = session.positions[max(0, len(session.positions) - 1 - back)]
        return Position(position.version, b"z" * 32) if data.draw(SELDOM) else position

    @precondition(lambda self: len(self.model.sessions) < 4)
    @rule(operation=IDS, body=BODIES, name=NAMES, state=STATES, brought=st.booleans())
    def create(self, operation, body, name, state, brought):
        """Create, perhaps again, perhaps under a name that is taken."""
        creation = self.tenant_build.creation(
            operation_id=operation, body_hash=body, name=name, state=state, brought=brought
        )
        before = len(self.model.sessions)
        self.agree(self.model.create(creation), self.outcome(self.store.create(creation)))
        self.touched = self.model.sessions[before:]

    @precondition(lambda self: self.model.sessions)
    @rule(
        data=st.data(),
        operation=IDS,
        body=BODIES,
        back=st.sampled_from([0, 0, 0, 1, 2]),
        if_match=st.sampled_from([None, None, None, 0, 1, 2, 3]),
        details=st.binary(max_size=12),
        state=STATES,
    )
    def commit(self, data, operation, body, back, if_match, details, state):
        """Commit, perhaps again, perhaps on an old version."""
        session = self.pick(data)
        commit = self.tenant_build.commit(
            session.key,
            self.draw_position(data, session, back),
            operation_id=operation,
            body_hash=body,
            if_match=if_match,
            details=details,
            state=state,
        )
        self.agree(self.model.commit(session, commit), self.outcome(self.store.commit(commit)))

    @precondition(lambda self: self.model.sessions)
    @rule(data=st.data(), operation=IDS, body=BODIES)
    def recall(self, data, operation, body):
        """Ask what became of a commit, or of a creation."""
        session = self.pick(data)
        expected = self.model.recall(session, operation, body)
        self.agree(expected, self.outcome(self.store.recall(session.key, operation, body)))
        expected = self.model.recall_creation(operation, body)
        found = self.outcome(self.store.recall_creation(self.tenant_build.tenant, operation, body))
        self.agree(expected, found)

    @precondition(lambda self: any(not s.ended for s in self.model.sessions))
    @rule(data=st.data(), sizes=st.lists(st.integers(0, 10), max_size=5))
    def go_on(self, data, sizes):
        """Commit a few operations that nothing speaks against."""
        session = data.draw(st.sampled_from([s for s in self.model.sessions if not s.ended]))
        self.touched = [session]
        for size in sizes:
            commit = self.tenant_build.commit(session.key, session.head, details=b"d" * size)
            self.agree(self.model.commit(session, commit), self.outcome(self.store.commit(commit)))

    @precondition(lambda self: self.model.sessions)
    @rule(data=st.data(), name=st.sampled_from("pqr"), back=st.sampled_from([0, 0, 0, 1]))
    def name_snapshot(self, data, name, back):
        """Name a snapshot, perhaps again."""
        session = self.pick(data)
        arguments = (name, self.draw_position(data, session, back), b"info|" + name.encode())
        expected = self.model.name_snapshot(session, *arguments)
        self.agree(expected, self.outcome(self.store.name_snapshot(session.key, *arguments)))
        if expected is NamedSnapshot:
            self.agree(expected, self.outcome(self.store.name_snapshot(session.key, *arguments)))

    @precondition(lambda self: self.model.sessions)
    @rule(data=st.data(), name=st.sampled_from("pqr"))
    def read_snapshot(self, data, name):
        """Read a named snapshot, if it is there."""
        session = self.pick(data)
        found = self.outcome(self.store.read_snapshot(session.key, name))
        if isinstance(found, tuple):
            found = found[0].version, found[0].info, found[1]
        self.agree(self.model.read_snapshot(session, name), found)

    @precondition(lambda self: self.model.sessions)
    @rule(data=st.data(), name=st.sampled_from("pqr"))
    def drop_snapshot(self, data, name):
        """Drop a named snapshot, if it is there."""
        session = self.pick(data)
        self.agree(self.model.drop(session, name), self.outcome(self.store.drop_snapshot(session.key, name)))

    @precondition(lambda self: len(self.model.sessions) > 1)
    @rule(data=st.data())
    def delete(self, data):
        """Delete, perhaps again."""
        session = self.pick(data)
        found = self.outcome(self.store.delete(session.key))
        if session.ended == "session_expired":
            assert found.reason == "session_expired"
        else:
            assert found is None
        self.model.end(session, "deleted")

    @precondition(lambda self: sum(not s.ended for s in self.model.sessions) > 1)
    @rule(data=st.data())
    def expire(self, data):
        """Let a session expire."""
        session = data.draw(st.sampled_from([s for s in self.model.sessions if not s.ended]))
        self.touched = [session]
        commit = self.tenant_build.commit(session.key, session.head, ttl_ms=1)
        self.agree(self.model.commit(session, commit), self.outcome(self.store.commit(commit)))
        self.kit.wait(3)
        self.model.end(session, "session_expired")

    @precondition(lambda self: not self.is_swept)
    @rule()
    def sweep(self):
        """Sweep at any time: nobody may notice."""
        self.is_swept = True
        self.loop.run_until_complete(self.store.sweep())

    @invariant()
    def what_was_touched_agrees(self):
        """What can be read of a session is what was committed to it."""
        for session in self.touched:
            self.look_at(session)
            self.is_swept = False
        self.touched = []

    def look_at(self, session):
        """Compare all that can be read of a session."""
        key, read = session.key, self.outcome(self.store.load_head(session.key))
        if session.ended:
            assert read.reason == session.ended
        else:
            assert (read.position, read.state) == (session.head, session.states[-1])
            named = self.loop.run_until_complete(self.store.named_snapshots(key))
            assert {n.name: (n.version, n.info) for n in named} == session.named
            assert all(n.state_bytes == len(session.states[n.version]) for n in named)
            if session.name:
                found = self.loop.run_until_complete(self.store.find(self.tenant_build.tenant, session.name))
                assert found == key.session_id
            for done in session.done[-LIMITS.operations :]:
                found = self.outcome(self.store.recall(key, done.operation_id, done.body_hash))
                self.agree(self.model.recall(session, done.operation_id, done.body_hash), found)

    def teardown(self):
        """Look at everything once more, then give back connections and loop."""
        for session in self.model.sessions:
            self.look_at(session)
        listed = self.loop.run_until_complete(self.store.list(self.tenant_build.tenant)).sessions
        alive = {s.key.session_id for s in self.model.sessions if not s.ended}
        assert {one.session_id for one in listed} == alive
        self.loop.run_until_complete(self.store.close())
        self.loop.close()


def run_programs(kit, build, programs):
    """Run so many random programs; fails at the first difference."""
    attributes = {"kit": kit, "build": build, "counter": iter(range(1_000_000))}
    machine = type("Machine", (StoreMachine,), attributes)
    checks = list(HealthCheck)
    given = settings(
        max_examples=programs, stateful_step_count=25, deadline=None, suppress_health_check=checks
    )
    run_state_machine_as_test(machine, settings=given)


def test_stores_do_what_the_model_does(kit, build):
    """Random programs of all calls that change something give the model's outcomes."""
    run_programs(kit, build, programs=30 if kit.kind == "memory" else 8)


@pytest.mark.faults
@pytest.mark.timeout(3_600)
def test_stores_do_what_the_model_does_at_length(embedded_url, debian_url, build):
    """The same, for thousands of programs on each store (RLSTM_PROGRAMS says how many)."""
    programs = int(os.environ.get("RLSTM_PROGRAMS", "2000"))
    kits = [memory_kit(), redis_kit("valkey", embedded_url), redis_kit("redis", debian_url)]
    differences = []
    for kit in kits:
        try:
            run_programs(kit, type(build)(build.tenant + kit.kind), programs)
        except Exception as difference:
            differences.append(difference)

    print(f"\n{len(kits)} stores x {programs:,} programs: {len(differences)} differences")
    assert not differences, ExceptionGroup("stores that differ from the model", differences)
