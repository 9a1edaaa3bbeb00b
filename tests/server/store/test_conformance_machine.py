"""Any sequence of calls does on a server what it does on the store in memory: they share no code."""

import asyncio
import os
from dataclasses import dataclass, field, fields, is_dataclass

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
from rlstm_server.store.base import Committed, Head, Retention, Revision, SessionKey
from rlstm_server.store.memory_store import MemoryStore

from .conftest import redis_kit

LIMITS = Retention(operations=3, details_bytes=8, named_snapshots=2)
IDS = st.sampled_from(["a", "b", "c", "d", "e"])
NAMES = st.sampled_from([None, "x", "y"])
BODIES = st.sampled_from([b"1" * 32, b"2" * 32])
STATES = st.binary(min_size=1, max_size=10)
INFOS = st.sampled_from([b"{}", b'{"a":"|"}'])
SELDOM = st.sampled_from([False] * 9 + [True])


def timeless(found):
    """An outcome without the times in it, which are each store's own; of an error its kind and reason."""
    if isinstance(found, ServerError):
        return type(found), getattr(found, "reason", None)
    if isinstance(found, list | tuple):
        return [timeless(one) for one in found]
    if not is_dataclass(found):
        return found
    kept = [one.name for one in fields(found) if one.name not in ("created_at_ms", "expires_at_ms")]
    return type(found), {name: timeless(getattr(found, name)) for name in kept}


@dataclass(eq=False)
class Session:
    """What is drawn from: a session, everywhere it has been, and the operations that led there."""

    key: SessionKey
    name: str | None
    revisions: list[Revision]
    done: list[tuple[str, bytes]] = field(default_factory=list)
    ended: bool = False


class StoreMachine(RuleBasedStateMachine):
    """Calls both stores alike. `kit`, `build` and `counter` are set in a subclass."""

    kit = build = counter = None

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stores = MemoryStore(limits=LIMITS), self.kit.make(LIMITS)
        self.tenant_build = type(self.build)(self.build.tenant + str(next(self.counter)))
        self.sessions, self.touched = [], []
        self.is_swept = True

    def agree(self, call):
        """Return what a call gives on the store in memory; fail unless the server gives the same."""
        expected, found = (self.outcome(call(store)) for store in self.stores)
        assert timeless(found) == timeless(expected)
        return expected

    def outcome(self, call):
        """Return what a call returns or raises; what is named in the order of its names."""
        try:
            found = self.loop.run_until_complete(call)
        except ServerError as error:
            return error
        return sorted(found, key=lambda one: one.name) if isinstance(found, list) else found

    @property
    def alive(self):
        """Sessions that have not ended."""
        return [session for session in self.sessions if not session.ended]

    def pick(self, data):
        """Draw a session, dead or alive, to be looked at afterwards."""
        anyone = not self.alive or data.draw(SELDOM)
        session = data.draw(st.sampled_from(self.sessions if anyone else self.alive))
        self.touched = [session]
        return session

    def draw_revision(self, data, session, back):
        """Draw a place in the session's history, seldom one in another."""
        revision = session.revisions[max(0, len(session.revisions) - 1 - back)]
        return Revision(revision.version, b"z" * 32) if data.draw(SELDOM) else revision

    def send(self, session, **changes):
        """Commit, and note where that leads."""
        commit = self.tenant_build.commit(session.key, **changes)
        if isinstance(done := self.agree(lambda store: store.commit(commit)), Committed):
            session.revisions.append(done.revision)
            session.done.append((commit.operation_id, commit.body_hash))

    @precondition(lambda self: len(self.sessions) < 4)
    @rule(operation=IDS, body=BODIES, name=NAMES, info=INFOS, state=STATES, brought=st.booleans())
    def create(self, operation, body, name, info, state, brought):
        """Create, perhaps again, perhaps under a name that is taken."""
        creation = self.tenant_build.creation(
            operation_id=operation, body_hash=body, name=name, info=info, state=state, brought=brought
        )
        if isinstance(self.agree(lambda store: store.create(creation)), Head):
            self.touched = [Session(creation.key, name, [creation.revision])]
            self.sessions += self.touched

    @precondition(lambda self: self.sessions)
    @rule(
        data=st.data(),
        operation=IDS,
        body=BODIES,
        back=st.sampled_from([0, 0, 0, 1, 2]),
        if_match=st.sampled_from([None, None, None, 0, 1, 2, 3]),
        details=st.binary(max_size=12),
        info=INFOS,
        state=STATES,
    )
    def commit(self, data, operation, body, back, if_match, details, info, state):
        """Commit, perhaps again, perhaps on an old version."""
        session = self.pick(data)
        self.send(
            session,
            expects=self.draw_revision(data, session, back),
            operation_id=operation,
            body_hash=body,
            if_match=if_match,
            details=details,
            info=info,
            state=state,
        )

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), operation=IDS, body=BODIES)
    def recall(self, data, operation, body):
        """Ask what became of a commit, or of a creation."""
        key = self.pick(data).key
        self.agree(lambda store: store.recall(key, operation, body))
        self.agree(lambda store: store.recall_creation(key.tenant, operation, body))

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), sizes=st.lists(st.integers(0, 10), max_size=5))
    def go_on(self, data, sizes):
        """Commit a few operations that nothing speaks against."""
        session = data.draw(st.sampled_from(self.alive))
        self.touched = [session]
        for size in sizes:
            self.send(session, expects=session.revisions[-1], details=b"d" * size)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), name=st.sampled_from("pqr"), back=st.sampled_from([0, 0, 0, 1]))
    def name_snapshot(self, data, name, back):
        """Name a snapshot, and again."""
        session = self.pick(data)
        arguments = name, self.draw_revision(data, session, back), b"info|" + name.encode()
        for _ in range(2):
            self.agree(lambda store: store.name_snapshot(session.key, *arguments))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), name=st.sampled_from("pqr"), drop=st.booleans())
    def read_snapshot(self, data, name, drop):
        """Read a named snapshot, if it is there, and perhaps drop it."""
        key = self.pick(data).key
        self.agree(lambda store: store.read_snapshot(key, name))
        if drop:
            self.agree(lambda store: store.drop_snapshot(key, name))

    @precondition(lambda self: len(self.sessions) > 1)
    @rule(data=st.data())
    def delete(self, data):
        """Delete, perhaps again."""
        session = self.pick(data)
        self.agree(lambda store: store.delete(session.key))
        session.ended = True

    @precondition(lambda self: len(self.alive) > 1)
    @rule(data=st.data())
    def expire(self, data):
        """Let a session expire."""
        session = data.draw(st.sampled_from(self.alive))
        self.touched = [session]
        self.send(session, expects=session.revisions[-1], ttl_ms=1)
        self.kit.wait(3)
        session.ended = True

    @precondition(lambda self: not self.is_swept)
    @rule()
    def sweep(self):
        """Sweep the server at any time: nobody may notice."""
        self.is_swept = True
        self.loop.run_until_complete(self.stores[1].sweep())

    @invariant()
    def what_was_touched_agrees(self):
        """Nothing that can be read of a session differs."""
        for session in self.touched:
            self.agree(lambda store, key=session.key: store.load_head(key))
            self.agree(lambda store, key=session.key: store.named_snapshots(key))
            if session.name:
                self.agree(lambda store, name=session.name: store.find(self.tenant_build.tenant, name))
            for done in session.done[-LIMITS.operations - 1 :]:
                self.agree(lambda store, key=session.key, done=done: store.recall(key, *done))
            self.is_swept = False
        self.touched = []

    def teardown(self):
        """Look at everything once more, then give back connections and loop."""
        self.touched = self.sessions
        self.what_was_touched_agrees()
        pages = [self.outcome(store.list(self.tenant_build.tenant)) for store in self.stores]
        expected, found = ({one.key.session_id: timeless(one) for one in page.sessions} for page in pages)
        assert found == expected
        self.loop.run_until_complete(self.stores[1].close())
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


@pytest.mark.parametrize("kit", ["valkey", "redis"], indirect=True)
def test_servers_do_what_the_store_in_memory_does(kit, build):
    """Random programs of all calls that change something give the same outcomes."""
    run_programs(kit, build, programs=12)


@pytest.mark.faults
@pytest.mark.timeout(3_600)
def test_servers_do_what_the_store_in_memory_does_at_length(embedded_url, debian_url, build):
    """The same, for thousands of programs on each server (RLSTM_PROGRAMS says how many)."""
    programs = int(os.environ.get("RLSTM_PROGRAMS", "2000"))
    kits = [redis_kit("valkey", embedded_url), redis_kit("redis", debian_url)]
    differences = []
    for kit in kits:
        try:
            run_programs(kit, type(build)(build.tenant + kit.kind), programs)
        except Exception as difference:
            differences.append(difference)

    print(f"\n{len(kits)} servers x {programs:,} programs: {len(differences)} differences")
    assert not differences, ExceptionGroup("servers that differ from the store in memory", differences)
