"""A cluster of primaries: commands find their slot, also while it moves, and every primary is checked."""

import asyncio

import pytest
from redis.crc import key_slot

from rlstm_server.errors import ServerError, StartupError, StoreUnavailable
from rlstm_server.store.redis_check import LIBRARY
from rlstm_server.store.redis_client import RedisLink, session_key
from rlstm_server.store.redis_store import RedisStore

from . import servers

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=["valkey", "redis"])
def nodes(request, tmp_path_factory):
    """Three primaries."""
    folder = tmp_path_factory.mktemp(f"cluster-{request.param}")
    with servers.cluster(servers.program(request.param), folder) as made:
        yield made


@pytest.fixture
def url(nodes):
    """Two of them: the third must be found."""
    return f"cluster://127.0.0.1:{nodes[0].port},127.0.0.1:{nodes[1].port}"


@pytest.fixture
async def store(url):
    made = RedisStore(url)
    await made.check()
    yield made
    await made.close()


@pytest.fixture
async def link(url):
    made = RedisLink(url)
    yield made
    await made.aclose()


def owner(nodes, key):
    """Return the server that has the key's slot, and another one."""
    slot = key_slot(key.encode())
    with nodes[0].admin() as admin:
        admin.response_callbacks.clear()
        for first, last, primary, *_ in admin.execute_command("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                [found] = [node for node in nodes if node.port == primary[1]]
                return found, next(node for node in nodes if node is not found)
    raise AssertionError("no server has the slot")


async def test_sessions_are_spread_and_all_calls_work(nodes, store, build):
    """Thirty sessions land on all primaries; each can be named, listed, committed to, read and ended."""
    keys = [(await build.session(store, name=f"session {number}"))[0] for number in range(30)]
    found = {owner(nodes, session_key(key, "head"))[0].port for key in keys}
    for key in keys:
        head = await store.load_head(key)
        outcome = await store.commit(build.commit(key, head.revision, state=b"s" * 300_000))
        named = await store.name_snapshot(key, "here", outcome.revision, b"{}")
        assert await store.read_snapshot(key, "here") == (named, b"s" * 300_000)

    assert found == {node.port for node in nodes}
    assert len((await store.list(build.tenant)).sessions) == await store.count(build.tenant) == 30
    assert await store.find(build.tenant, "session 7") == keys[7].session_id
    for key in keys:
        await store.delete(key)
    assert await store.count(build.tenant) == 0


async def test_every_primary_is_checked(nodes, url):
    """A weakness, and a missing library, of one server among three is found."""
    with nodes[2].admin() as admin:
        admin.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(StartupError, match="maxmemory-policy"):
            await RedisStore(url).check()
        admin.config_set("maxmemory-policy", "noeviction")
        admin.function_flush()
        with pytest.raises(StartupError, match=f"no function library {LIBRARY}"):
            await RedisStore(url, install=False).check()
        whole = RedisStore(url)
        await whole.check()

        assert admin.function_list(library=LIBRARY)
        await whole.close()


async def test_usage_is_that_of_the_fullest(nodes, store):
    """The store is as full as its fullest server, since a session cannot move to another."""
    with nodes[1].admin() as admin:
        admin.config_set("maxmemory", 32 << 20)
        usage = await store.usage()
        admin.config_set("maxmemory", servers.DURABLE["maxmemory"])

    assert usage.max_bytes == 32 << 20


async def test_a_moved_slot_is_followed(nodes, link):
    """MOVED was not applied: the command goes to the new owner at once, and is applied there once."""
    key = "rlstm:{moved}:counter"
    await link.call("INCR", key, changes=True)
    source, target = owner(nodes, key)
    servers.move_slot(key_slot(key.encode()), source, target)

    replies = [await link.call("INCR", key, changes=True, again=False) for _ in range(3)]

    assert [reply.content for reply in replies] == [2, 3, 4]


async def test_a_slot_on_its_way(nodes, link):
    """A key that has left is asked for where it goes (ASK), one that has not where it was."""
    here, there = "rlstm:{way}:here", "rlstm:{way}:there"
    await link.call("SET", here, 1, changes=True)
    source, target = owner(nodes, here)
    slot = key_slot(here.encode())
    with source.admin() as old, target.admin() as new:
        old_id, new_id = (admin.execute_command("CLUSTER", "MYID").decode() for admin in (old, new))
        new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", old_id)
        old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", new_id)
        await link.call("SET", there, 2, changes=True)

        assert (await link.call("GET", here, changes=False)).content == b"1"
        assert (await link.call("GET", there, changes=False)).content == b"2"
        with pytest.raises(StoreUnavailable, match="TRYAGAIN"):
            await link.call("MGET", here, there, changes=False)
        old.execute_command("MIGRATE", "127.0.0.1", target.port, here, 0, 5_000)
        for admin in (new, old):
            admin.execute_command("CLUSTER", "SETSLOT", slot, "NODE", new_id)

    assert (await link.call("MGET", here, there, changes=False)).content == [b"1", b"2"]


async def test_sessions_survive_a_move_under_load(nodes, store, build):
    """Commits go on while a session's slot moves to another server and back; none is lost or made twice."""
    key, at = await build.session(store)
    slot = key_slot(session_key(key, "head").encode())
    moving = True

    async def move() -> None:
        nonlocal moving
        for _ in range(4):
            source, target = owner(nodes, session_key(key, "head"))
            await asyncio.to_thread(servers.move_slot, slot, source, target)
            await asyncio.sleep(0.1)
        moving = False

    mover = asyncio.create_task(move())
    made = refused = 0
    while moving:
        try:
            at = (await store.commit(build.commit(key, at))).revision
            made += 1
        except StoreUnavailable:
            refused += 1  # some keys of the session here, some there; nothing was applied
    await mover

    assert (await store.load_head(key)).version == made == at.version
    print(f"4 moves of a slot: {made} commits, 0 lost, 0 twice, {refused} refused")


async def test_one_server_of_a_cluster_is_no_store(nodes, tmp_path):
    """An address that names a server of a cluster as if it were alone is refused, with the right form."""
    with pytest.raises(StartupError, match="cluster://"):
        await RedisStore(nodes[0].url).check()


async def test_a_dead_primary_takes_its_slots_along_and_no_others(nodes, store, build):
    """Sessions of other primaries are served on; its own are unavailable, then there again."""
    mine, others = None, None
    while not (mine and others):
        key, _ = await build.session(store)
        if owner(nodes, session_key(key, "head"))[0] is nodes[2]:
            mine = key
        else:
            others = key
    with nodes[0].admin() as first, nodes[1].admin() as second:
        for admin in (first, second):
            admin.config_set("cluster-require-full-coverage", "no")
    nodes[2].kill()

    assert (await store.load_head(others)).version == 0
    with pytest.raises(ServerError):
        await store.load_head(mine)
    with pytest.raises(ServerError):
        await store.ping()

    nodes[2].start()
    servers.until(lambda: servers._knows(nodes[2], 3))
    assert (await store.load_head(mine)).version == 0
    await store.ping()
