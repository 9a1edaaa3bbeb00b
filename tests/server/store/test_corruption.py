"""Whatever is changed in what lies in the store is noticed, and never served as a state or a record."""

import random
import secrets

import pytest
from redis import Redis
from rlstm_server.store.sealing import Seal, seal, unseal

from rlstm_server.errors import StateCorrupt
from rlstm_server.store.base import Limits
from rlstm_server.store.redis_functions import session_key
from rlstm_server.store.redis_store import RedisStore

CORRUPTIONS = 100


def seal_of(key, version):
    """Return the seal of a session's state at a version."""
    return Seal.of(key, version, fingerprint="f", adaptation_fingerprint="a", numerics="n")


def damaged(value, draw):
    """Return a value with one bit flipped, or cut short."""
    if draw.random() < 0.5:
        return value[: draw.randrange(len(value))]
    changed = bytearray(value)
    changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


class Target:
    """A session with a base in chunks, one before it inline, and records, and what can be damaged in it."""

    def __init__(self, store, admin, key, head, ref):
        self.store, self.admin, self.key, self.head, self.ref = store, admin, key, head, ref
        self.head_key, self.log_key = session_key(key, "head"), session_key(key, "log")
        self.chunks_key = session_key(key, f"snap:{ref.generation}")

    @classmethod
    async def make(cls, store, admin, build):
        """Make a session of this kind."""
        key, at = await build.session(store)
        inline = seal(seal_of(key, 1), b"small")
        at = (await store.commit(build.commit(key, at, state=inline))).position
        for _ in range(3):
            at = (await store.commit(build.commit(key, at, state=None))).position
        ref = await store.put_snapshot(key, seal(seal_of(key, 4), secrets.token_bytes(1_000)))
        await store.keep_snapshot(key, at, ref)
        for _ in range(3):
            at = (await store.commit(build.commit(key, at, state=None))).position
        return cls(store, admin, key, at, ref)

    async def read(self):
        """Read everything as a replica would that loads the session."""
        head = await self.store.load_head(self.key)
        found = [unseal(await self.store.get_snapshot(self.key, head.base.state), self.key, 4)]
        found.append(unseal(head.base.previous.state, self.key, 1))
        found += await self.store.read_log(self.key, after=1)
        return found

    def damage_chunk(self, draw):
        """Damage a chunk of the base."""
        number = draw.choice(self.admin.hkeys(self.chunks_key))
        chunk = self.admin.hget(self.chunks_key, number)
        self.admin.hset(self.chunks_key, number, damaged(chunk, draw))

    def damage_inline(self, draw):
        """Damage the state that lies in the head."""
        state = self.admin.hget(self.head_key, "previous_state")
        self.admin.hset(self.head_key, "previous_state", damaged(state, draw))

    def damage_record(self, draw):
        """Damage a record, or a link of the chain, of one entry of the log; the others are written again."""
        entries = self.admin.xrange(self.log_key)
        at = draw.randrange(1, len(entries))
        name = draw.choice([b"record", b"chain", b"before"])
        entries[at][1][name] = damaged(entries[at][1][name], draw)
        self.write(entries)

    def lose_record(self, draw):
        """Leave out an entry of the log, but for the oldest: those are dropped by and by."""
        entries = self.admin.xrange(self.log_key)
        self.write(entries[: (at := draw.randrange(2, len(entries)))] + entries[at + 1 :])

    def write(self, entries):
        """Write the log anew."""
        self.admin.delete(self.log_key)
        for version, fields in entries:
            self.admin.xadd(self.log_key, fields, id=version)


@pytest.fixture
async def store(embedded_url):
    """A store whose snapshots have several chunks."""
    made = RedisStore(embedded_url, timeout_s=20, limits=Limits(chunk_bytes=100))
    yield made
    await made.close()


@pytest.fixture
def admin(embedded_url):
    """A direct connection to the shared server."""
    with Redis.from_url(embedded_url, protocol=2) as client:
        yield client


async def test_every_damage_is_noticed(store, admin, build):
    """Bits flipped and values cut in chunks, inline states and records, and records left out."""
    draw = random.Random(1)
    target = await Target.make(store, admin, build)
    keys = (target.head_key, target.log_key, target.chunks_key)
    whole = [admin.dump(key) for key in keys]
    intact = await target.read()
    detected = served = 0
    for number in range(CORRUPTIONS):
        damage = (target.damage_chunk, target.damage_inline, target.damage_record, target.lose_record)[
            number % 4
        ]
        damage(draw)
        try:
            await target.read()
        except StateCorrupt:
            detected += 1
        else:
            served += 1
        for key, value in zip(keys, whole, strict=True):
            admin.restore(key, 0, value, replace=True)

    print(f"\n{detected}/{CORRUPTIONS} corruptions detected, {served} served")
    assert (detected, served) == (CORRUPTIONS, 0)
    assert await target.read() == intact


@pytest.mark.parametrize("part", ["chunks", "one chunk", "inline state", "log", "one record"])
async def test_what_is_swapped_with_another_session_is_noticed(store, admin, build, part):
    """Chunks, states or records of equal shape that belong to another session are refused by both."""
    one, two = [await Target.make(store, admin, build) for _ in range(2)]
    if part in ("chunks", "log"):
        keys = [target.log_key if part == "log" else target.chunks_key for target in (one, two)]
        for key, value in zip(keys, [admin.dump(key) for key in reversed(keys)], strict=True):
            admin.restore(key, 0, value, replace=True)
    elif part == "one record":
        entries = [admin.xrange(target.log_key) for target in (one, two)]
        entries[0][3], entries[1][3] = entries[1][3], entries[0][3]
        for target, written in zip((one, two), entries, strict=True):
            target.write(written)
    else:
        places = [
            (t.chunks_key, "5") if part == "one chunk" else (t.head_key, "previous_state") for t in (one, two)
        ]
        for place, value in zip(places, [admin.hget(*place) for place in reversed(places)], strict=True):
            admin.hset(*place, value)

    for target in (one, two):
        with pytest.raises(StateCorrupt):
            await target.read()
