"""Copies of sessions that ended or moved on elsewhere are dropped, and their memory is zeroed."""

import asyncio
import contextlib
from types import SimpleNamespace

import pytest
from rlstm_server.engine.cache_check import CacheCheck

from rlstm_model.vocab import ByteVocab
from rlstm_server.engine.cache import SessionCache
from rlstm_server.engine.description import SessionCopy, SessionFacts
from rlstm_server.errors import Gone, StoreUnavailable
from rlstm_server.metrics import Metrics
from rlstm_server.store.base import SessionKey, first_position


@pytest.fixture
async def replicas(store, tools):
    """Two engines on one store, and a look of the first at its copies that takes no time."""
    metrics = Metrics()
    async with tools.engine_on(store, metrics=metrics) as one, tools.engine_on(store) as two:
        one.look = CacheCheck(one.sessions.store, one.sessions.cache, pass_seconds=0.0).look
        one.dropped = lambda reason: tools.value(
            metrics, "session_evictions_total", tier="host", reason=reason
        )
        yield one, two


def copy_of(engine, talk):
    return engine.sessions.cache.get(SessionKey(talk.caller.tenant, talk.session))


async def test_a_session_that_was_deleted_elsewhere_is_zeroed(replicas, tools):
    """The copy goes with one look, and its memory is zero before anybody else can have it."""
    one, two = replicas
    talk = await tools.Talk.begin(one)
    await talk.append("a text that was learned from")
    delta_KP = copy_of(one, talk).state.adapted.delta_KP
    await two.delete(talk.caller.tenant, talk.session)
    assert delta_KP.any()
    await one.look()

    assert copy_of(one, talk) is None
    assert one.dropped("gone") == 1
    for _ in range(500):
        if not delta_KP.any():
            break
        await asyncio.sleep(0.01)
    assert not delta_KP.any()


async def test_a_copy_that_was_overtaken_is_dropped_and_a_newest_one_stays(replicas, tools):
    """Another server's append makes this one's copy old; the session is loaded again when it is asked for."""
    one, two = replicas
    moved, stays = await tools.Talk.begin(one), await tools.Talk.begin(one)
    await moved.at(two).append("elsewhere")
    kept = copy_of(one, stays)
    await one.look()

    assert (copy_of(one, moved), copy_of(one, stays)) == (None, kept)
    assert (one.dropped("moved"), one.dropped("gone")) == (1, 0)
    assert (await moved.append("here")).version == 2


async def test_a_store_that_is_away_drops_nothing(replicas, store, tools, monkeypatch):
    """The look goes on when it is back."""
    one, _ = replicas
    talk = await tools.Talk.begin(one)

    async def refuse(key, **options):
        raise StoreUnavailable("connection refused")

    with monkeypatch.context() as patch:
        patch.setattr(store, "load_head", refuse)
        with pytest.raises(StoreUnavailable):
            await one.look()
    await one.look()
    assert copy_of(one, talk) is not None


class Hurried(asyncio.SelectorEventLoop):
    """An event loop whose clock does not run: it jumps to what comes next."""

    def __init__(self):
        super().__init__()
        self._now, real = 0.0, self._selector.select

        def select(timeout):
            self._now += timeout or 0.0
            return real(0)

        self._selector.select = select

    def time(self):
        """The seconds that were jumped over."""
        return self._now


class Elsewhere:
    """A store that takes its time, and from whose answer on the session of `key` is deleted elsewhere."""

    def __init__(self, key, seconds):
        self.key, self.seconds, self.gone = key, seconds, asyncio.Event()

    async def load_head(self, key, **options):
        """The head as the cache knows it."""
        await asyncio.sleep(self.seconds)
        if key == self.key and self.gone.is_set():
            raise Gone("deleted")
        if key == self.key:
            self.gone.set()
        return SimpleNamespace(version=0)


@pytest.mark.parametrize("seconds", [0.0, 0.4])
@pytest.mark.parametrize(("before", "later"), [(0, 0), (0, 160), (160, 0)])
def test_no_copy_outlives_its_session_by_more_than_is_promised(tools, before, later, seconds):
    """Deleted as soon as it was looked at, and used all the time: its next turn is as late as it can be."""
    served, cache = tools.serve(ByteVocab()), SessionCache(1 << 30, Metrics())
    facts = SessionFacts(name=None, created_at_ms=0, ttl_ms=1)

    def put(numbers):
        for number in numbers:
            key = SessionKey("acme", f"{number}")
            state = tools.before_text(served)
            cache.put(SessionCopy(key=key, position=first_position(key), state=state, facts=facts))

    async def live():
        victim, clock = SessionKey("acme", "0"), asyncio.get_running_loop().time
        store = Elsewhere(victim, seconds)
        put(range(before + 1))
        check = CacheCheck(store, cache)
        check.start()
        await store.gone.wait()
        began = clock()
        put(range(1000, 1000 + later))
        for _ in range(5_000):
            if cache.get(victim) is None:
                break
            await asyncio.sleep(0.02)
        await check.close()
        return clock() - began

    with contextlib.closing(Hurried()) as loop:
        assert loop.run_until_complete(live()) < 29.0  # and a second until it is zeroed


async def test_the_look_is_part_of_an_engines_life(store, tools, monkeypatch):
    """It runs from start to close without being asked for."""
    monkeypatch.setattr(CacheCheck, "pass_seconds", 0.01)
    looks = []
    real = CacheCheck.look

    async def counted(self):
        looks.append(self)
        await real(self)

    monkeypatch.setattr(CacheCheck, "look", counted)
    async with tools.engine_on(store):
        await asyncio.sleep(0.05)
    seen = len(looks)
    await asyncio.sleep(0.05)
    assert seen == len(looks) >= 1
