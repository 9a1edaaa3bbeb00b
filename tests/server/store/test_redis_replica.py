"""Durability `replica`: told as done once a replica has it, and honest when none has."""

import pytest

from rlstm_server.errors import DurabilityNotReached, StartupError, VersionMismatch
from rlstm_server.store.base import Replayed
from rlstm_server.store.redis_store import RedisStore

from . import servers


@pytest.fixture(scope="module", params=["valkey", "redis"])
def pair(request, tmp_path_factory):
    """A primary and its replica."""
    folder = tmp_path_factory.mktemp(f"pair-{request.param}")
    binary = servers.program(request.param)
    made = [servers.Server(binary, folder / name) for name in ("primary", "replica")]
    with servers.running(*made) as [primary, replica]:
        servers.follow(replica, primary)
        yield primary, replica


async def connected(pair):
    """Give a store that waits for the replica, half a second."""
    made = RedisStore(pair[0].url, durability="replica", replica_s=0.5)
    await made.check()
    return made


@pytest.fixture
async def store(pair):
    made = await connected(pair)
    yield made
    await made.close()


@pytest.fixture
async def other(pair):
    """The same store from another server, whose connections have changed nothing."""
    made = await connected(pair)
    yield made
    await made.close()


@pytest.fixture
def cut(pair):
    """A way to stop the replica from receiving, and to let it go on: it stays connected meanwhile."""
    yield pair[1].pause
    pair[1].resume()


async def test_a_commit_is_on_the_replica_when_it_is_told(pair, store, build):
    """The answer comes after the replica has the new version."""
    key, at = await build.session(store)
    for _ in range(20):
        at = (await store.commit(build.commit(key, at))).revision
        with pair[1].admin() as admin:
            assert int(admin.hget(f"rlstm:{{{key.tenant}/{key.session_id}}}:head", "version")) == at.version
    assert store.durability == "replica"


async def test_a_commit_that_no_replica_has_is_told_as_such(pair, store, other, build, cut):
    """It is made, and the error says so; a repeat, wherever, waits again, and is answered once one has it."""
    key, at = await build.session(store)
    commit = build.commit(key, at)
    cut()

    for each in (store, other):
        with pytest.raises(DurabilityNotReached) as short:
            await each.commit(commit)
        assert short.value.applied == "yes"
    assert (await store.load_head(key)).version == 1

    pair[1].resume()
    repeated = await other.commit(commit)
    assert isinstance(repeated, Replayed)
    assert repeated.version == 1


async def test_creation_and_deletion_wait_too(pair, store, other, build, cut):
    """Every change that is answered is one that a replica has, and a repeat of one waits again."""
    creation = build.creation()
    key, _ = await build.session(store)
    cut()

    for each in (store, other):
        with pytest.raises(DurabilityNotReached):
            await each.create(creation)
        with pytest.raises(DurabilityNotReached):
            await each.delete(key)

    pair[1].resume()
    await store.create(creation)
    await store.delete(key)


async def test_a_refused_commit_is_not_about_replicas(store, build, cut):
    """What changed nothing is answered as ever."""
    key, at = await build.session(store)
    cut()

    with pytest.raises(VersionMismatch):
        await store.commit(build.commit(key, at, if_match=7))


async def test_without_a_replica_it_does_not_start(tmp_path, build):
    """The check refuses, or claims no more than there is."""
    with servers.running(servers.Server(servers.program("valkey"), tmp_path)) as [alone]:
        with pytest.raises(StartupError, match="no replica is connected"):
            await RedisStore(alone.url, durability="replica").check()
        weaker = RedisStore(alone.url, durability="replica", allow_weaker=True)
        await weaker.check()
        key, at = await build.session(weaker)
        await weaker.commit(build.commit(key, at))

        assert weaker.durability == "fsync"
        await weaker.close()


async def test_a_replica_is_no_store(pair):
    """An address that leads to a replica is refused at the start."""
    with pytest.raises(StartupError, match="replica, which takes no changes"):
        await RedisStore(pair[1].url).check()
