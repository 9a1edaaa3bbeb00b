"""What a tenant keeps against what its key allows, counted neither twice nor not at all."""

import asyncio
import json
from dataclasses import replace

import pytest

from rlstm_model.vocab import ByteVocab
from rlstm_server.engine import holdings
from rlstm_server.engine.quotas import Allowance
from rlstm_server.errors import RateLimited, StoreUnavailable
from rlstm_server.schemas import CreateSession, SnapshotRequest
from rlstm_server.store.base import SessionKey
from rlstm_server.store.in_memory import MemoryStore


class SlowStore(MemoryStore):
    """Holds up calls of these names until it is told to go on, and says when one arrives."""

    def __init__(self):
        super().__init__()
        self.held, self.arrived, self.go_on = set(), asyncio.Event(), asyncio.Event()
        self.lists = 0

    async def _pass(self, name):
        if name in self.held:
            self.arrived.set()
            await self.go_on.wait()

    async def create(self, creation):
        """Make it late, or make it and answer late."""
        await self._pass("before create")
        outcome = await super().create(creation)
        await self._pass("create")
        return outcome

    async def list(self, tenant, *, limit=100, cursor=None):
        """List late, and count how often."""
        self.lists += 1
        page = await super().list(tenant, limit=limit, cursor=cursor)
        await self._pass("list")
        return page


@pytest.fixture
def store():
    return SlowStore()


@pytest.fixture(scope="module")
def size(tools):
    """What a session of the tiny model may come to."""
    served = tools.serve(ByteVocab())
    return served.state_bytes(served.choose(tools.asked()))


def asking(tools, **allowed):
    return replace(tools.caller(), allowance=Allowance(**allowed))


def create(engine, caller, **fields):
    return asyncio.ensure_future(engine.create_session(CreateSession(caller=caller, **fields)))


async def name(engine, caller, session, called):
    request = SnapshotRequest(caller=caller, session=session, name=called, key=None, if_match=None)
    await engine.take_snapshot(request)


@pytest.mark.parametrize("allowed", ["sessions", "stored_bytes"])
async def test_what_is_on_its_way_is_not_counted_twice(engine, store, tools, size, allowed):
    """A session that is in the store, while its maker does not know yet: there is room for another."""
    caller = asking(tools, **{allowed: 2 if allowed == "sessions" else size * 5 // 2})
    store.held = {"create"}
    first = create(engine, caller)
    await store.arrived.wait()
    second = create(engine, caller)
    await asyncio.sleep(0.05)
    store.go_on.set()
    assert len({(await made).info.id for made in (first, second)}) == 2
    with pytest.raises(RateLimited):
        await create(engine, caller)


@pytest.mark.parametrize("allowed", ["sessions", "stored_bytes"])
async def test_what_fails_on_its_way_leaves_its_room(engine, store, tools, size, allowed):
    """Who would not fit beside it waits for what becomes of it."""
    caller = asking(tools, **{allowed: 1 if allowed == "sessions" else size * 3 // 2})

    async def fails(creation):
        await store._pass("create")
        raise StoreUnavailable("away")

    store.held, store.create = {"create"}, fails
    first = create(engine, caller)
    await store.arrived.wait()
    second = create(engine, caller)
    await asyncio.sleep(0.05)
    del store.create
    store.go_on.set()
    with pytest.raises(StoreUnavailable):
        await first
    assert (await second).info.version == 0


async def test_what_comes_while_it_is_counted_is_not_forgotten(engine, store, tools, size, monkeypatch):
    """A session that is made behind the listing's back, by one who was let in before."""
    monkeypatch.setattr(holdings, "COUNT_SECONDS", 0.0)
    monkeypatch.setattr(holdings, "COUNT_SHARE", 1e9)  # the first count is not good for the second request
    caller = asking(tools, stored_bytes=size * 3 // 2)
    store.held = {"before create"}
    first = create(engine, caller)
    await store.arrived.wait()
    store.held, store.arrived = {"list"}, asyncio.Event()
    first_goes_on, store.go_on = store.go_on, asyncio.Event()
    second = create(engine, caller)
    await store.arrived.wait()
    monkeypatch.setattr(holdings, "COUNT_SECONDS", 60.0)
    first_goes_on.set()
    await first
    store.go_on.set()
    with pytest.raises(RateLimited, match="stored bytes"):
        await second


async def test_what_is_known_is_not_counted_again(engine, store, tools, size, monkeypatch):
    """Whoever asks again at once costs the store nothing; whatever was made here is known."""
    monkeypatch.setattr(holdings, "COUNT_SECONDS", 60.0)
    caller = asking(tools, stored_bytes=size * 5 // 2)
    for _ in range(2):
        await create(engine, caller)
    for _ in range(5):
        with pytest.raises(RateLimited):
            await create(engine, caller)
    assert store.lists == 2  # before the first, and before the first refusal


async def test_a_session_counts_with_what_it_may_come_to(store, tools, size):
    """Also in the eyes of a server that has not made it, though it has learned nothing yet."""
    caller = asking(tools, stored_bytes=size * 5 // 2)
    async with tools.engine_on(store) as one, tools.engine_on(store) as two:
        for _ in range(2):
            await create(one, caller)
        with pytest.raises(RateLimited, match="stored bytes"):
            await create(two, caller)


@pytest.mark.parametrize("damage", [None, {"fingerprint": ["f"]}, {"adaptation_fingerprint": {}}])
async def test_a_damaged_session_stops_no_other(engine, store, tools, damage):
    """Nobody can say how large it is; sessions are made all the same."""
    talk = await tools.Talk.begin(engine)
    history = store._sessions[SessionKey("acme", talk.session)]
    info = {} if damage is None else json.loads(history._head.info) | damage
    history._head = replace(history._head, info=json.dumps(info).encode())
    assert (await create(engine, asking(tools, stored_bytes=10**9))).info.version == 0


async def test_named_snapshots_count(store, tools, size):
    """Of this server at once, of others with the next count; one that is dropped makes room by then."""
    caller = asking(tools, stored_bytes=size * 7 // 2)
    async with tools.engine_on(store) as one, tools.engine_on(store) as two:
        talk = tools.Talk(one, (await create(one, caller)).info.id)
        await talk.append("some text to learn from")
        for called in ("one", "two"):
            await name(one, caller, talk.session, called)
        for engine in (one, two):
            with pytest.raises(RateLimited, match="stored bytes"):
                await name(engine, caller, talk.session, "three")
            with pytest.raises(RateLimited, match="stored bytes"):
                await create(engine, caller)
        await one.drop_snapshot("acme", talk.session, "one")
    async with tools.engine_on(store) as three:
        await create(three, caller)
