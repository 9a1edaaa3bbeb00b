"""Any sequence of calls does on each store what it does on a model of sixty lines."""

import asyncio

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

from rlstm_server.errors import Gone, NotFound, SessionExists
from rlstm_server.store.base import (
    Committed,
    Created,
    CreationReplayed,
    Limits,
    Mismatch,
    Moved,
    Replayed,
    Stale,
)

LIMITS = Limits(operations=3, answers=2, answer_bytes=8, log_records=2)
IDS = st.sampled_from(["a", "b", "c", "d", "e"])
NAMES = st.sampled_from([None, "x", "y"])
BODIES = st.sampled_from([b"1" * 32, b"2" * 32])


class Model:
    """What should happen, in plain lists."""

    def __init__(self):
        self.sessions = []  # dicts: key, name, ended, positions, done (operation, body, answer, version)
        self.births = []  # (operation, body, session)

    def create(self, creation):
        """Say what a creation gives."""
        for operation, body, session in self.births[-LIMITS.operations :]:
            if operation == creation.operation_id:
                if body != creation.body_hash:
                    return Mismatch()
                if session["ended"]:
                    return Gone(session["ended"])
                return CreationReplayed(session_id=session["key"].session_id, answer=session["answer"])
        if creation.name and any(s["name"] == creation.name and not s["ended"] for s in self.sessions):
            return SessionExists("")
        session = {"key": creation.key, "name": creation.name, "ended": None, "answer": creation.answer}
        session |= {"positions": [creation.position], "done": [], "state": creation.state}
        self.sessions.append(session)
        self.births.append((creation.operation_id, creation.body_hash, session))
        return Created

    def commit(self, session, commit):
        """Say what a commit gives."""
        if session["ended"]:
            return Gone(session["ended"])
        head = session["positions"][-1]
        for operation, body, answer, summary, version in session["done"][-LIMITS.operations :]:
            if operation == commit.operation_id:
                if body != commit.body_hash:
                    return Mismatch()
                kept = version > head.version - LIMITS.answers and len(answer) <= LIMITS.answer_bytes
                return Replayed(
                    version=version, answer=answer if kept else None, summary=summary, current=head
                )
        if commit.if_match not in (None, head.version):
            return Moved(current=head.version)
        if commit.expects != head:
            return Stale(current=head)
        session["positions"].append(commit.position)
        version = commit.position.version
        session["state"] = commit.state
        entry = (commit.operation_id, commit.body_hash, commit.answer, commit.summary, version)
        session["done"].append(entry)
        return Committed


class StoreMachine(RuleBasedStateMachine):
    """Calls store and model alike. `kit` and `build` are set in a subclass."""

    kit = build = None

    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner()
        self.store = self.kit.make(LIMITS)
        self.model = Model()
        self.tenant_build = type(self.build)(self.build.tenant + str(next(self.counter)))

    def outcome(self, call):
        """Return what a call returns or raises."""
        try:
            return self.runner.run(call)
        except (Gone, NotFound, SessionExists) as error:
            return error

    def agree(self, expected, found):
        """Fail unless the store did what the model says."""
        if isinstance(expected, type):
            assert isinstance(found, expected), found
        elif isinstance(expected, Gone):
            assert (type(found), found.reason) == (Gone, expected.reason)
        elif isinstance(expected, Exception):
            assert type(found) is type(expected)
        else:
            assert found == expected

    def pick(self, data):
        """Draw a session, dead or alive."""
        return data.draw(st.sampled_from(self.model.sessions))

    @rule(operation=IDS, body=BODIES, name=NAMES)
    def create(self, operation, body, name):
        """Create, perhaps again, perhaps under a name that is taken."""
        creation = self.tenant_build.creation(operation_id=operation, body_hash=body, name=name)
        self.agree(self.model.create(creation), self.outcome(self.store.create(creation)))

    @precondition(lambda self: self.model.sessions)
    @rule(
        data=st.data(),
        operation=IDS,
        body=BODIES,
        back=st.integers(0, 2),
        if_match=st.none() | st.integers(0, 4),
        answer=st.binary(max_size=12),
        record=st.binary(max_size=2),
    )
    def commit(self, data, operation, body, back, if_match, answer, record):
        """Commit, perhaps again, perhaps on an old version."""
        session = self.pick(data)
        expects = session["positions"][max(0, len(session["positions"]) - 1 - back)]
        commit = self.tenant_build.commit(
            session["key"],
            expects,
            operation_id=operation,
            body_hash=body,
            if_match=if_match,
            answer=answer,
            record=record,
        )
        self.agree(self.model.commit(session, commit), self.outcome(self.store.commit(commit)))

    @precondition(lambda self: self.model.sessions)
    @rule(data=st.data())
    def delete(self, data):
        """Delete, perhaps again."""
        session = self.pick(data)
        expected = Gone(session["ended"]) if session["ended"] == "session_expired" else None
        session["ended"] = session["ended"] or "deleted"
        self.agree(expected, self.outcome(self.store.delete(session["key"])))

    @precondition(lambda self: any(not s["ended"] for s in self.model.sessions))
    @rule(data=st.data())
    def expire(self, data):
        """Let a session expire."""
        session = data.draw(st.sampled_from([s for s in self.model.sessions if not s["ended"]]))
        commit = self.tenant_build.commit(session["key"], session["positions"][-1], ttl_ms=1)
        self.agree(self.model.commit(session, commit), self.outcome(self.store.commit(commit)))
        self.kit.wait(3)
        session["ended"] = "session_expired"

    @rule()
    def sweep(self):
        """Sweep at any time: nobody may notice."""
        self.runner.run(self.store.sweep())

    @invariant()
    def heads_logs_and_listing_agree(self):
        """What can be read is what was committed."""
        for session in self.model.sessions:
            head = self.outcome(self.store.load_head(session["key"]))
            if session["ended"]:
                self.agree(Gone(session["ended"]), head)
                continue
            assert (head.position, head.state) == (session["positions"][-1], session["state"])
            log = self.runner.run(self.store.read_log(session["key"], after=0))
            kept = session["done"][-LIMITS.log_records :]
            assert [(r.version, r.operation_id) for r in log] == [(d[4], d[0]) for d in kept]
        listed = {
            one.session_id for one in self.runner.run(self.store.list(self.tenant_build.tenant)).sessions
        }
        assert listed == {s["key"].session_id for s in self.model.sessions if not s["ended"]}

    def teardown(self):
        """Give back connections and loop."""
        self.runner.run(self.store.close())
        self.runner.close()


def run_programs(kit, build, examples):
    attributes = {"kit": kit, "build": build, "counter": iter(range(1_000_000))}
    machine = type("Machine", (StoreMachine,), attributes)
    checks = list(HealthCheck)
    given = settings(
        max_examples=examples, stateful_step_count=25, deadline=None, suppress_health_check=checks
    )
    run_state_machine_as_test(machine, settings=given)


def test_stores_do_what_the_model_does(kit, build):
    """Random programs of creations, commits, deletions, expiries and sweeps give the model's outcomes."""
    run_programs(kit, build, examples=60 if kit.kind == "memory" else 12)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_stores_do_what_the_model_does_at_length(kit, build):
    """The same, for two thousand programs in memory and three hundred on a server."""
    run_programs(kit, build, examples=2_000 if kit.kind == "memory" else 300)
