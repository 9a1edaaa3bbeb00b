"""What can go wrong between a store and its server, and what callers are told."""

import asyncio
import random

import pytest
from redis import Redis

from rlstm_server.errors import (
    IdempotencyMismatch,
    NotFound,
    OutcomeUnknown,
    ServerError,
    SessionExists,
    StateCorrupt,
    StoreFull,
    StoreUnavailable,
)
from rlstm_server.store.base import Committed, CreationReplayed, Head, Replayed, Retention
from rlstm_server.store.embedded import EmbeddedValkey
from rlstm_server.store.redis_client import session_key, tenant_key
from rlstm_server.store.redis_store import RedisStore


@pytest.fixture
async def store(embedded_url):
    """A store on the shared server."""
    made = RedisStore(embedded_url, timeout_s=20)
    yield made
    await made.close()


@pytest.fixture
def timeout_s():
    """How long a reply is waited for: longer than a loaded machine stalls, but where it never comes."""
    return 30.0


@pytest.fixture
async def through(proxy, timeout_s):
    """A store behind the faulty proxy."""
    store = RedisStore(proxy.url, timeout_s=timeout_s)
    yield store
    await store.close()


@pytest.mark.parametrize(
    ("fault", "timeout_s"), [("lost", 30.0), ("cut", 30.0), ("half", 30.0), ("swallow", 2.0)]
)
async def test_a_lost_reply_is_asked_for_again(through, proxy, build, fault):
    """A change that was lost, or whose reply was, is sent again: made once, told as made."""
    key, start = await build.session(through)
    await through.name_snapshot(key, "one", start, b"info")
    proxy.faults = [fault]

    await through.drop_snapshot(key, "one")

    assert (await through.named_snapshots(key), proxy.faults) == ([], [])


@pytest.mark.parametrize(
    ("fault", "timeout_s"), [("lost", 30.0), ("cut", 30.0), ("half", 30.0), ("swallow", 2.0)]
)
async def test_a_commit_whose_reply_is_lost_has_an_unknown_outcome(through, proxy, build, fault):
    """It is sent once; the same again finds out, and is what it was or takes effect now."""
    key, start = await build.session(through)
    commit, before = build.commit(key, start), proxy.requests
    proxy.faults = [fault]

    with pytest.raises(OutcomeUnknown):
        await through.commit(commit)

    assert proxy.requests - before == 1
    outcome, head = await through.commit(commit), await through.load_head(key)
    assert isinstance(outcome, Committed) or outcome.is_of(commit)
    assert (head.version, head.expires_at_ms) == (1, outcome.expires_at_ms)


async def test_a_store_that_vanishes_in_between_leaves_the_outcome_unknown(through, proxy, build):
    """That the second try was not applied says nothing about the first."""
    key, _ = await build.session(through)
    proxy.faults = ["vanish"]

    with pytest.raises(OutcomeUnknown):
        await through.drop_snapshot(key, "one")


async def test_a_command_is_sent_twice_at_most(through, proxy, build):
    """Nothing below this store sends a command again: two tries are two requests."""
    key, _ = await build.session(through)
    before = proxy.requests
    proxy.faults = ["cut"] * 10

    with pytest.raises(OutcomeUnknown):
        await through.drop_snapshot(key, "one")

    assert proxy.requests - before == 2


async def test_a_read_that_gets_no_reply_is_unavailable(through, proxy, build):
    """A call that changes nothing never claims that it may have."""
    key, _ = await build.session(through)
    proxy.faults = ["cut", "cut"]

    with pytest.raises(StoreUnavailable):
        await through.load_head(key)


@pytest.mark.parametrize("step", range(6))
async def test_a_creation_survives_a_lost_reply_at_any_step(through, proxy, admin, build, step):
    """Whichever reply is lost, one session is made for good, and a repeat finds it."""
    await through.ping()
    proxy.faults = ["none"] * step + ["cut"]
    creation = build.creation(operation_id="key", name="diary")

    assert isinstance(await through.create(creation), Head)

    repeat = await through.create(build.creation(operation_id="key", name="diary"))
    assert repeat == CreationReplayed(session_id=creation.key.session_id, answer=b"created")
    assert proxy.faults == []
    assert admin.pttl(session_key(creation.key, "head")) == -1


@pytest.mark.parametrize("cut_short_after", ["create", "claim"])
async def test_a_creation_cut_short_leaves_name_and_id_free(store, embedded_url, build, cut_short_after):
    """A replica that dies between the steps of a creation blocks neither its name nor its operation id."""
    dead = RedisStore(embedded_url, limits=Retention(provisional_ms=50))
    dying = build.creation(operation_id="key", name="diary")
    head = await dead._place(dying)
    if cut_short_after == "claim":
        await dead._link.tenant(
            "claim", build.tenant, "key", dying.body_hash.hex(), dying.key.session_id, "diary",
            head.created_at_ms, head.expires_at_ms, 1024, 86_400_000, changes=True,
        )  # fmt: skip
    await dead.close()
    await asyncio.sleep(0.1)

    by_name = await store.create(build.creation(name="diary"))
    by_operation = await store.create(build.creation(operation_id="key"))

    assert isinstance(by_name, Head)
    assert isinstance(by_operation, Head)
    assert await store.count(build.tenant) == 2


async def test_a_dangling_name_is_removed_by_whoever_meets_it(store, admin, build):
    """A name that leads nowhere is not found, and is free afterwards."""
    admin.hset(tenant_key(build.tenant, "names"), "diary", "0" * 32)

    with pytest.raises(NotFound):
        await store.find(build.tenant, "diary")

    assert not admin.exists(tenant_key(build.tenant, "names"))


async def commit_when_there_is_room(store, commit):
    """Commit once the server has trimmed the buffers of its connections, which count as memory in use."""
    for _ in range(200):
        try:
            return await store.commit(commit)
        except StoreFull:
            await asyncio.sleep(0.05)
    return None


async def test_a_refused_creation_leaves_nothing(store, admin, build):
    """Of a creation whose name or operation is taken no key is left, not even for a minute."""
    await store.create(build.creation(operation_id="key", name="diary"))
    before = set(admin.scan_iter(f"*{build.tenant}*"))

    with pytest.raises(SessionExists):
        await store.create(build.creation(name="diary"))
    await store.create(build.creation(operation_id="key"))
    with pytest.raises(IdempotencyMismatch):
        await store.create(build.creation(operation_id="key", body_hash=b"x" * 32))

    assert set(admin.scan_iter(f"*{build.tenant}*")) == before


async def test_the_sweeper_meets_a_prolonged_session_once(store, admin, build):
    """A session that is due only by the index gets its new time there, and makes room for others."""
    key, start = await build.session(store, ttl_ms=100)
    outcome = await store.commit(build.commit(key, start))
    await asyncio.sleep(0.11)

    await store.sweep()

    assert admin.zscore(tenant_key(build.tenant, "index"), key.session_id) == outcome.expires_at_ms


async def test_a_late_clean_up_leaves_a_name_to_its_new_owner(store, build):
    """What is removed for a dead session is removed only where it still points to that session."""
    dead, _ = await build.session(store, name="diary")
    await store._link.session("delete", dead, 60_000, changes=True)  # and the replica dies here
    alive, _ = await build.session(store, name="diary")

    await store._release(dead, b"diary")

    assert await store.find(build.tenant, "diary") == alive.session_id


async def test_a_full_server_refuses_before_anything_changed(tmp_path, build):
    """Out of memory: no commit, no session; loads, replays and deletes go on, and then the rest does."""
    server = EmbeddedValkey(tmp_path, maxmemory_bytes=64 << 20)
    await server.start()
    store = RedisStore(server.url, timeout_s=20)
    await store.check()
    victim, _ = await build.session(store, state=b"v" * 6_000_000)
    key, start = await build.session(store)
    done = build.commit(key, start, operation_id="key")
    at = (await store.commit(done)).revision
    with Redis.from_url(server.url, protocol=2) as admin:
        admin.config_set("maxmemory", 4_000_000)  # less than the victim alone

    with pytest.raises(StoreFull):
        await store.create(build.creation())
    with pytest.raises(StoreFull):
        await store.commit(build.commit(key, at))
    assert (await store.load_head(key)).revision == at
    assert isinstance(await store.commit(done), Replayed)
    await store.delete(victim)
    assert isinstance(await commit_when_there_is_room(store, build.commit(key, at)), Committed)
    await store.close()
    await server.stop()


async def test_new_sessions_leave_room_for_live_ones(embedded_url, build):
    """Above a share of the memory no session is created, while live ones go on."""
    store = RedisStore(embedded_url)
    key, start = await build.session(store)
    strict = RedisStore(embedded_url, limits=Retention(create_below=1e-9))
    stricter = RedisStore(embedded_url, limits=Retention(import_below=1e-9))

    with pytest.raises(StoreFull):
        await strict.create(build.creation())
    with pytest.raises(StoreFull):
        await stricter.create(build.creation(brought=True))

    assert isinstance(await strict.create(build.creation(brought=True)), Head)
    assert isinstance(await stricter.create(build.creation()), Head)
    assert isinstance(await strict.commit(build.commit(key, start)), Committed)
    for one in (store, strict, stricter):
        await one.close()


async def test_a_server_that_is_not_there_is_unavailable(tmp_path, build):
    """Nothing listens: every call says that nothing was applied."""
    store = RedisStore(f"unix://{tmp_path}/nothing.sock")
    key = build.creation().key

    for call in (store.ping(), store.load_head(key), store.create(build.creation()), store.delete(key)):
        with pytest.raises(StoreUnavailable):
            await call
    await store.close()


async def test_all_of_a_session_lies_in_one_cluster_slot(store, admin, build):
    """Keys of a session share a hash tag, and nothing of it lies elsewhere after a delete."""
    key, start = await build.session(store, name="diary")
    at = (await store.commit(build.commit(key, start))).revision
    await store.name_snapshot(key, "n", at, b"{}")
    of_session = sorted(k.decode() for k in admin.scan_iter(f"*{key.session_id}*"))

    await store.delete(key)

    tag = f"rlstm:{{{key.tenant}/{key.session_id}}}:"
    assert of_session == [tag + part for part in ("head", "named", "ops", "states")]
    assert [k.decode() for k in admin.scan_iter(f"*{key.session_id}*")] == [tag + "tomb"]


async def test_the_chain_is_checked_where_it_is_kept(store, admin, build):
    """A server that went back to an older history with the same number refuses work on the lost one."""
    key, start = await build.session(store)
    lost = (await store.commit(build.commit(key, start, operation_id="lost"))).revision
    other = start.after("other", b"b" * 32)
    admin.hset(session_key(key, "head"), "chain", other.chain)

    outcome = await store.commit(build.commit(key, lost))

    assert outcome.current == other


async def test_a_head_that_cannot_be_read_is_corrupt(store, admin, build):
    """A field that is lost, or holds what it cannot, is named as damage; the session can still be ended."""
    draw = random.Random(1)
    key, at = await build.session(store)
    await store.commit(build.commit(key, at))
    head = session_key(key, "head")
    whole = admin.dump(head)
    needed = [name for name in admin.hkeys(head) if name not in (b"info", b"answer", b"state")]
    for name in needed:
        for value in (None, b"x", draw.randbytes(5)):
            admin.restore(head, 0, whole, replace=True)
            if value is None:
                admin.hdel(head, name)
            elif name in (b"name", b"form") or (name == b"chain" and len(value) != 32):
                admin.hset(head, b"form", value)
            else:
                admin.hset(head, name, value)
            with pytest.raises((StateCorrupt, ServerError)):
                await store.load_head(key)
    await store.delete(key)
    with pytest.raises(ServerError, match="deleted"):
        await store.load_head(key)
