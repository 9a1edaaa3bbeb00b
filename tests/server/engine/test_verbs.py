"""Snapshots, forks, files and ends of sessions: on either store, through any replica."""

import pytest

from rlstm_model.vocab import ByteVocab
from rlstm_server.errors import Gone, IdempotencyMismatch, NotFound
from rlstm_server.schemas.sessions import (
    ForkRequest,
    ResetRequest,
    RestoreRequest,
    SnapshotRequest,
    UpdateRequest,
)
from rlstm_server.store.embedded import EmbeddedValkey
from rlstm_server.store.memory_store import MemoryStore
from rlstm_server.store.redis_store import RedisStore

TEXT = "once upon a time there was a text "


@pytest.fixture(scope="module", params=["in memory", "in Valkey"])
def place(request):
    """Where sessions are."""
    return request.param


@pytest.fixture(scope="module")
def served(tools):
    return tools.serve(ByteVocab())


@pytest.fixture
async def store(place, tmp_path):
    if "memory" in place:
        yield MemoryStore()
        return
    server = EmbeddedValkey(tmp_path)
    await server.start()
    store = RedisStore(server.url)
    await store.check()
    yield store
    await store.close()
    await server.stop()


@pytest.fixture
def running(store, served, tools):
    """Start an engine, which knows of the sessions only what the store does."""
    return lambda: tools.engine_on(store, served=served)


async def take(talk, name="here", **fields):
    request = SnapshotRequest(name=name).by(talk.call(**fields))
    return (await talk.engine.take_snapshot(request)).snapshot


async def restore(talk, name="here", **fields):
    request = RestoreRequest(snapshot=name).by(talk.call(**fields))
    return await talk.engine.restore(request)


async def fork(talk, tools, **fields):
    made = await talk.engine.fork(ForkRequest(**fields).by(talk.call()))
    return tools.Talk(talk.engine, made.info.id)


async def test_a_restored_session_is_the_one_of_then_after_a_restart(running, tools):
    """D1: the next scores are those before, to the bit, on a server that has read nothing of it, too."""
    async with running() as engine:
        talk = await tools.Talk.begin(engine)
        await talk.append(TEXT)
        await take(talk)
        before, score = await talk.info(), await talk.probe()
        goes_on = await talk.append(TEXT)
        restored = await restore(talk)
        assert await talk.probe() == score
    async with running() as engine:
        talk = talk.at(engine)
        assert await talk.probe() == score
        assert (restored.info.version, restored.info.position) == (3, before.position)
        assert (await talk.info()).totals == before.totals
        assert (await talk.append(TEXT)).columns.logprobs == goes_on.columns.logprobs
        await restore(talk)
        assert await talk.probe() == score


async def test_a_fork_goes_its_own_way_on_any_replica(running, tools):
    """From the present or a snapshot: scores equal, histories apart, no memory shared."""
    async with running() as one, running() as two:
        talk = await tools.Talk.begin(one)
        await talk.append(TEXT)
        await take(talk)
        score = await talk.probe()
        present = await fork(talk, tools)
        await talk.append(TEXT)
        then = await fork(talk.at(two), tools, snapshot="here")
        assert await present.at(two).probe() == await then.at(one).probe() == score
        theirs = await present.append(TEXT)
        await one.delete(talk.call())
        assert (await then.append(TEXT)).columns.logprobs == theirs.columns.logprobs


async def test_a_fork_does_not_go_with_its_source(running, tools):
    """A repeat of a fork names the fork, whatever has become of the source; another request does not."""
    async with running() as engine:
        talk = await tools.Talk.begin(engine)
        await talk.append(TEXT)
        request = ForkRequest().by(talk.call(key="fork"))
        made = await engine.fork(request)
        await engine.delete(talk.call())
        again = await engine.fork(request)
        assert (again.info.id, again.replayed) == (made.info.id, True)
        with pytest.raises(Gone):
            await engine.fork(tools.altered(request, key="other"))
        with pytest.raises(IdempotencyMismatch):
            await engine.fork(tools.altered(request, snapshot="here"))


async def test_a_way_back_can_be_repeated_without_its_snapshot(running, tools):
    """A repeat of a restore is answered as the first one, also after its snapshot was dropped."""
    async with running() as engine:
        talk = await tools.Talk.begin(engine)
        await talk.append(TEXT)
        await take(talk)
        await talk.append(TEXT)
        first = await restore(talk, key="back")
        await engine.drop_snapshot(talk.call(), "here")
        again = await restore(talk, key="back")
        assert (again.info.version, again.info.totals) == (first.info.version, first.info.totals)
        assert again.replayed
        with pytest.raises(NotFound):
            await restore(talk, key="other")
        assert (await talk.info()).version == 3


async def test_settings_and_resets_live_in_the_history(running, tools):
    """What was set is so on every replica and after a restart, and a repeat is told what happened then."""
    async with running() as one:
        talk = await tools.Talk.begin(one)
        await talk.append(TEXT)
        update = UpdateRequest(learning=False, metadata={"n": 1}).by(talk.call(key="u"))
        first = await one.update(update)
        reset = ResetRequest(what="both").by(talk.call(key="r"))
        cleared = await one.reset(reset)
        score = await talk.probe()
    async with running() as two:
        talk = talk.at(two)
        assert not (await talk.append(TEXT)).learn
        for request, ask, answer in ((update, two.update, first), (reset, two.reset, cleared)):
            again = await ask(request)
            assert again.replayed
            assert again.info == tools.replace(answer.info, expires_at=again.info.expires_at)
        assert (await talk.info()).metadata == {"n": 1}
        assert await talk.probe() != score


async def test_a_dropped_snapshot_takes_nothing_else_along(running, tools):
    """D16: neither restored nor forked any more; the session and its other snapshots are whole."""
    async with running() as engine:
        talk = await tools.Talk.begin(engine)
        await talk.append(TEXT)
        await take(talk)
        score = await talk.probe()
        await talk.append(TEXT)
        await take(talk, "later")
        await engine.drop_snapshot(talk.call(), "later")
        with pytest.raises(NotFound):
            await restore(talk, "later")
        with pytest.raises(NotFound):
            await fork(talk, tools, snapshot="later")
        await restore(talk)
        assert await talk.probe() == score
