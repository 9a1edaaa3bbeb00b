"""What a key may use up: tokens a second, charged once, and what its tenant keeps, counted once."""

import asyncio
import json
from dataclasses import replace

import pytest

from rlstm_model.vocab import ByteVocab
from rlstm_server.caller import Quota, TokenBucket
from rlstm_server.engine import quotas
from rlstm_server.engine.queue import Charge, SessionQueues
from rlstm_server.errors import Conflict, OutcomeUnknown, RateLimited, SlowConsumer, StoreUnavailable
from rlstm_server.schemas.generation import EndEvent, TokenEvent
from rlstm_server.schemas.sessions import CreateSession, SnapshotRequest
from rlstm_server.store.base import SessionKey
from rlstm_server.store.memory_store import MemoryStore

# ---- tokens a second --------------------------------------------------------------------------------------


def test_a_bucket_refuses_what_exceeds_its_rate():
    """One second's worth at once, then as it refills; the refusal says when."""
    now = 0.0
    bucket = TokenBucket("requests", 2.0, clock=lambda: now)
    bucket.take()
    bucket.take()
    with pytest.raises(RateLimited) as refused:
        bucket.take()
    assert refused.value.retry_after_seconds == pytest.approx(0.5)
    now = 0.5
    bucket.take()
    now = 100.0
    for _ in range(2):
        bucket.take()
    with pytest.raises(RateLimited):
        bucket.take()


def test_a_charge_may_be_larger_than_what_is_left():
    """It is paid off before anything else is taken, and the refusal names both numbers and the time."""
    now = 0.0
    bucket = TokenBucket("tokens", 100.0, clock=lambda: now)
    bucket.take(1_100)
    with pytest.raises(RateLimited, match="tokens: 1,100 used, at most 100 a second allowed") as refused:
        bucket.take(1)
    assert refused.value.retry_after_seconds == pytest.approx(10.01)
    assert (refused.value.facts["given"], refused.value.facts["limit"]) == (1_100, 100.0)
    now = 10.02
    bucket.take(1)


def test_what_is_given_back_does_not_pile_up():
    """One second's worth may come at once, whatever was returned."""
    bucket = TokenBucket("tokens", 2.0, clock=lambda: 0.0)
    bucket.use(-100)
    bucket.take(1)
    bucket.take(1)
    with pytest.raises(RateLimited):
        bucket.check()


@pytest.fixture
def buckets():
    """Three buckets of ten units that never refill."""
    return {name: TokenBucket(name, 10.0, clock=lambda: 0.0) for name in ("tokens", "learned", "generated")}


def left(bucket):
    return bucket._level


def test_work_that_is_done_again_is_charged_once(buckets):
    """As often as other servers make it necessary."""
    charge = Charge(Quota(**buckets))
    for _ in range(3):
        charge.add(tokens=6, learned=4)
    assert [left(bucket) for bucket in buckets.values()] == [4, 6, 10]


def taking(buckets):
    """Work that is charged to them."""
    queues = SessionQueues(cache=None, metrics=None, queued_operations=1)
    return queues.taking(None, Quota(**buckets))


def test_a_refusal_charges_nothing(buckets):
    """Neither the quota that is used up nor the others."""
    buckets["learned"].take(10)
    with pytest.raises(RateLimited, match="learned"):
        Charge(Quota(**buckets)).add(tokens=6, learned=4)
    assert left(buckets["tokens"]) == 10


@pytest.mark.parametrize(("error", "charged"), [(Conflict("x"), 0), (OutcomeUnknown("x"), 6)])
def test_what_was_not_applied_is_given_back(buckets, error, charged):
    """But not what may have been."""

    def work():
        with taking(buckets) as charge:
            charge.add(tokens=6)
            raise error

    with pytest.raises(type(error)):
        work()
    assert left(buckets["tokens"]) == 10 - charged


def event(index):
    return TokenEvent(choice=0, index=index, id=1, text="a", logprob=-1.0)


def test_a_text_is_charged_in_advance_and_settled(buckets):
    """While it is written all that may come is charged, and in the end what came."""
    with taking(buckets) as charge:
        charge.generate(8, learns=True)
        charge.show([event(0), event(1)])
        assert (left(buckets["generated"]), left(buckets["learned"])) == (2, 2)
    assert (left(buckets["generated"]), left(buckets["learned"])) == (8, 8)


@pytest.mark.parametrize(("shown", "left_over"), [(0, 10), (2, 5)])
def test_who_was_shown_some_of_a_text_has_had_its_prompt(buckets, shown, left_over):
    """A reader who falls behind pays for what he got; one who got nothing pays nothing."""

    def break_off():
        with taking(buckets) as charge:
            charge.add(tokens=5)
            charge.generate(4)
            if shown:
                charge.show([event(index) for index in range(shown)])
            raise SlowConsumer("x")

    with pytest.raises(SlowConsumer):
        break_off()
    assert (left(buckets["tokens"]), left(buckets["generated"])) == (left_over, 10 - shown)


def test_what_is_learned_from_a_prompt_stays_charged(buckets):
    """The text after it is not learned from."""
    with taking(buckets) as charge:
        charge.add(tokens=5, learned=5)
        charge.generate(4)
    assert left(buckets["learned"]) == 5


def test_a_text_that_was_written_before_costs_nothing(buckets):
    """Its repeat is read from the store."""
    end = EndEvent(
        choice=0, finish_reason="length", prompt_tokens=0, completion_tokens=1, seed=1, replayed=True
    )
    with taking(buckets) as charge:
        charge.generate(4)
        charge.show([event(0)])
        charge.show([end])
    assert left(buckets["generated"]) == 10


# ---- what tenants keep ------------------------------------------------------------------------------------


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


OVERHEAD = 3_000
"""What a named copy has beside its tensors, at most."""


@pytest.fixture(scope="module")
def size(tools):
    """What a session of the tiny model may come to."""
    served = tools.serve(ByteVocab())
    return served.state_bytes(served.choose(tools.asked()))


def asking(tools, **allowed):
    return replace(tools.caller(), quota=Quota(**allowed))


async def turns():
    """Let everybody go as far as they get."""
    for _ in range(100):
        await asyncio.sleep(0)


def create(engine, caller, **fields):
    return asyncio.ensure_future(engine.create_session(CreateSession(**fields).by(caller)))


async def name(engine, caller, session, called):
    request = SnapshotRequest(name=called).by(replace(caller, session=session, key=None, if_match=None))
    await engine.take_snapshot(request)


@pytest.mark.parametrize("allowed", ["sessions", "stored_bytes"])
async def test_what_is_on_its_way_is_not_counted_twice(engine, store, tools, size, allowed):
    """A session that is in the store, while its maker does not know yet: there is room for another."""
    caller = asking(tools, **{allowed: 2 if allowed == "sessions" else size * 5 // 2})
    store.held = {"create"}
    first = create(engine, caller)
    await store.arrived.wait()
    second = create(engine, caller)
    await turns()
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
    await turns()
    del store.create
    store.go_on.set()
    with pytest.raises(StoreUnavailable):
        await first
    assert (await second).info.version == 0


async def test_what_is_known_is_not_counted_again(engine, store, tools, size, monkeypatch):
    """Whoever asks again at once costs the store nothing; whatever was made here is known."""
    monkeypatch.setattr(quotas, "COUNT_SECONDS", 60.0)
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
    info = {} if damage is None else json.loads(history.head.info) | damage
    history.head = replace(history.head, info=json.dumps(info).encode())
    assert (await create(engine, asking(tools, stored_bytes=10**9))).info.version == 0


async def test_named_snapshots_count(store, tools, size):
    """Of this server at once, of others with the next count; one that is dropped makes room by then."""
    caller = asking(tools, stored_bytes=size * 7 // 2 + 2 * OVERHEAD)
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
        await one.drop_snapshot(talk.call(), "one")
    async with tools.engine_on(store) as three:
        await create(three, caller)
