"""Errors and answers say what became of a change, also when the store falls silent in the middle of it."""

import asyncio
import time
from dataclasses import replace

import pytest

from rlstm_server.caller import Call, Quota, TokenBucket
from rlstm_server.errors import (
    Draining,
    Gone,
    OutcomeUnknown,
    Overloaded,
    RateLimited,
    SessionDeleted,
    StateCorrupt,
    StoreFull,
    StoreUnavailable,
)
from rlstm_server.schemas.sessions import CreateSession, UpdateRequest
from rlstm_server.store.base import Replayed, SessionKey
from rlstm_server.store.memory_store import MemoryStore


class Fickle(MemoryStore):
    """A store that does what it is told to a call by name: the next one meets the first of its scripts."""

    def __init__(self):
        super().__init__()
        self.scripts = {}

    async def _meet(self, name, call, *args, **options):
        scripts = self.scripts.get(name, [])
        return await scripts.pop(0)(call, *args, **options) if scripts else await call(*args, **options)

    async def commit(self, commit):
        """Apply one operation."""
        return await self._meet("commit", super().commit, commit)

    async def create(self, creation):
        """Make a session."""
        return await self._meet("create", super().create, creation)

    async def load_head(self, key, **options):
        """Return the newest version."""
        return await self._meet("load_head", super().load_head, key, **options)

    async def delete(self, key):
        """End the session."""
        return await self._meet("delete", super().delete, key)


async def well(call, *args, **options):
    """Nothing happens to the call."""
    return await call(*args, **options)


async def unanswered(call, *args, **options):
    """It is done, and the reply is lost."""
    await call(*args, **options)
    raise OutcomeUnknown("no answer")


async def away(call, *args, **options):
    """It is not done: nobody is there."""
    raise StoreUnavailable("connection refused")


async def full(call, *args, **options):
    """It is not done: there is no room."""
    raise StoreFull("no room")


async def corrupt(call, *args, **options):
    """What is there cannot be read."""
    raise StateCorrupt("damaged")


# ---- every refusal, whether it may be a repeat or not -----------------------------------------------------


def key_of(talk):
    return SessionKey(talk.caller.tenant, talk.session)


def on_load(talk, script):
    """Let the session be loaded, and this happen then."""
    talk.engine.sessions.cache.drop(key_of(talk))
    talk.engine.sessions.store.store.scripts = {"load_head": [script]}


def over_quota(talk):
    """Let nothing be left of what the key may use up."""
    tokens = TokenBucket("tokens", 1.0)
    tokens.use(1_000)
    talk.caller = Call(tenant="acme", request_id="r", quota=Quota(tokens=tokens))


REFUSALS = {
    "draining": (Draining, False, lambda talk: setattr(talk.engine.sessions, "draining", True)),
    "a full queue": (Overloaded, False, lambda talk: setattr(talk.engine.sessions, "queued_operations", 0)),
    "a device that is busy": (
        Overloaded,
        True,
        lambda talk: setattr(talk.engine.worker._scheduler, "capacity", 0),
    ),
    "a quota": (RateLimited, True, over_quota),
    "a state that is damaged": (StateCorrupt, True, lambda talk: on_load(talk, corrupt)),
    "no answer to a load": (StoreUnavailable, False, lambda talk: on_load(talk, away)),
    "no way to commit": (
        StoreUnavailable,
        False,
        lambda talk: talk.engine.sessions.store.store.scripts.update(commit=[away]),
    ),
    "no room to commit": (
        StoreFull,
        True,
        lambda talk: talk.engine.sessions.store.store.scripts.update(commit=[full]),
    ),
}
"""What refuses an append, whether the store can still be asked about its key, and how it comes about."""


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.parametrize("earlier", ["without a key", "first under its key", "applied before"])
async def test_no_refusal_says_more_than_is_known(tools, name, earlier):
    """Without a key: not applied. With one the store is asked; where it cannot be, nobody knows."""
    kind, asked, arrange = REFUSALS[name]
    async with tools.engine_on(Fickle()) as engine:
        talk = await tools.Talk.begin(engine)
        key = None if earlier == "without a key" else "k"
        if earlier == "applied before":
            await talk.append("x", key=key)
        arrange(talk)
        if earlier == "applied before" and asked:
            answer = await talk.append("x", key=key)
            assert (answer.version, answer.replayed) == (1, True)
            return
        with pytest.raises(kind) as caught:
            await talk.append("x", key=key)
        assert caught.value.applied == ("no" if key is None or asked else "unknown")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (full, {None: "no", "k": "no", "again": "replayed"}),
        (away, {None: "no", "k": "unknown", "again": "unknown"}),
    ],
)
async def test_no_refusal_of_a_creation_says_more_than_is_known(tools, script, told):
    """A full store can be asked, one that is away cannot."""
    store, found = Fickle(), {}
    async with tools.engine_on(store) as engine:
        await tools.Talk.begin(engine, key="again")
        for key in told:
            store.scripts = {"create": [script]}
            made = engine.create_session(CreateSession().by(tools.call(key=key)))
            try:
                found[key] = "replayed" if (await made).replayed else "made"
            except (StoreFull, StoreUnavailable) as error:
                found[key] = error.applied
    assert found == told


@pytest.mark.parametrize(("key", "applied"), [(None, "no"), ("k", "unknown")])
async def test_a_session_that_has_ended_may_have_been_changed_before(tools, key, applied):
    store = Fickle()
    async with tools.engine_on(store) as engine:
        talk = await tools.Talk.begin(engine)
        await store.delete(key_of(talk))
        with pytest.raises(Gone) as caught:
            await talk.append("x", key=key)
        assert caught.value.applied == applied


async def drained_while(engine, asked, call):
    """Drain the engine while the store is asked something by a call, and give what the call raises."""
    calling = asyncio.ensure_future(call)
    await asyncio.wait_for(asked.wait(), 5.0)
    await engine.sessions.drain(0.0)
    with pytest.raises(Draining) as caught:
        await calling
    return caught.value


@pytest.mark.parametrize("made", ["a session", "an update"])
async def test_what_is_known_to_be_applied_stays_so_in_a_drain(tools, made):
    """The repeat is recognised, and its answer still being put together."""
    store, asked = Fickle(), asyncio.Event()

    async def forever(call, *args, **options):
        asked.set()
        await asyncio.Event().wait()

    async with tools.engine_on(store) as engine:
        talk = await tools.Talk.begin(engine, key="s")
        update = UpdateRequest(learning=False).by(talk.call(key="k"))
        await engine.update(update)
        store.scripts = {"load_head": [forever]}
        again = (
            engine.create_session(CreateSession().by(replace(talk.caller, key="s")))
            if made == "a session"
            else engine.update(update)
        )
        error = await drained_while(engine, asked, again)
    assert error.applied == "yes"


async def test_a_refusal_that_several_get_says_to_each_what_is_true_of_his(tools):
    """One waits with a key and one without when their session ends."""
    store, entered, opened = Fickle(), asyncio.Event(), asyncio.Event()

    async def wait(call, *args, **options):
        entered.set()
        await opened.wait()
        return await call(*args, **options)

    async with tools.engine_on(store) as engine:
        talk = await tools.Talk.begin(engine)
        store.scripts = {"commit": [wait]}
        first = asyncio.ensure_future(talk.append("x"))
        await entered.wait()
        waiting = [asyncio.ensure_future(talk.append("y", key=key)) for key in ("k", None)]
        await asyncio.sleep(0)
        await engine.delete(talk.call())
        opened.set()
        told = await asyncio.gather(first, *waiting, return_exceptions=True)
    assert [(type(error), error.applied) for error in told[1:]] == [
        (SessionDeleted, "unknown"),
        (SessionDeleted, "no"),
    ]


async def test_a_session_that_cannot_be_read_can_be_ended(tools):
    """Such as one in the form of another release."""
    store = Fickle()
    async with tools.engine_on(store) as engine:
        talk = await tools.Talk.begin(engine)
        store.scripts = {"load_head": [corrupt]}
        await engine.delete(talk.call())
        with pytest.raises(Gone):
            await talk.info()


async def test_a_state_that_cannot_be_read_is_counted(tools):
    async with tools.engine_on(MemoryStore()) as engine:
        talk = await tools.Talk.begin(engine)
        with pytest.raises(StateCorrupt):
            await engine.sessions.open(key_of(talk), 1, b"damaged")
        assert tools.value(engine.sessions.metrics, "restore_failures_total", reason="schema") == 1


# ---- in the middle of a change ----------------------------------------------------------------------------


async def test_a_commit_sent_again_expires_when_the_store_says(tools, monkeypatch):
    """The clock of the server may be wrong by hours; only the store's counts."""
    store = Fickle()
    async with tools.engine_on(store) as engine:
        talk = await tools.Talk.begin(engine)
        store.scripts = {"commit": [unanswered]}
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + 7_200.0)
        answer = await talk.append("x")
        assert answer.expires_at == (await talk.info()).expires_at


async def ended(call, commit):
    """The session ends before the call."""
    await call.__self__.delete(commit.key)
    return await call(commit)


@pytest.mark.parametrize(
    ("scripts", "error"),
    [
        pytest.param((unanswered, away, away), OutcomeUnknown, id="then away"),
        pytest.param((unanswered, full, full), OutcomeUnknown, id="then full"),
        pytest.param((unanswered, ended), Gone, id="then ended"),
    ],
)
async def test_what_may_have_happened_stays_so_whatever_the_store_says_then(tools, scripts, error):
    store = Fickle()
    async with tools.engine_on(store) as engine:
        talk = await tools.Talk.begin(engine)
        store.scripts = {"commit": [*scripts]}
        with pytest.raises(error) as caught:
            await talk.append("x")
        assert caught.value.applied == "unknown"


async def test_a_replay_of_another_operation_that_leads_to_the_same_place_is_not_ones_own_commit(tools):
    """Two chunks of a text may hold the same tokens: sent from the same place, they lead to the same one."""
    store = Fickle()

    async def earlier(call, commit):
        first = commit.expects.version
        return Replayed(
            version=first,
            summary=commit.summary,
            details=commit.details,
            current=commit.revision,
            expires_at_ms=0,
        )

    async with tools.engine_on(store) as engine:
        talk = await tools.Talk.begin(engine)
        await talk.append("x")
        store.scripts = {"commit": [unanswered, earlier]}
        assert (await talk.append("y")).replayed


async def test_a_session_that_is_made_with_its_text_says_so_when_the_store_then_falls_silent(tools):
    store = Fickle()
    async with tools.engine_on(store) as engine:
        store.scripts = {"load_head": [away]}
        with pytest.raises(StoreUnavailable) as caught:
            await tools.Talk.begin(engine, text="x")
        assert caught.value.applied == "yes"


@pytest.mark.parametrize(
    ("key", "ends", "applied"), [(None, well, "no"), (None, away, "unknown"), ("k", well, "unknown")]
)
async def test_a_session_whose_first_text_fails_says_what_is_left_of_it(tools, key, ends, applied):
    """Without a key it is ended, and that may fail too; with one, the same request again appends the text."""
    store = Fickle()
    async with tools.engine_on(store) as engine:
        store.scripts = {"commit": [full], "delete": [ends]}
        with pytest.raises(StoreFull) as caught:
            await tools.Talk.begin(engine, text="x", key=key)
        assert caught.value.applied == applied
