"""Failovers: Sentinels name the next primary, and what was acknowledged is there, as far as was promised."""

import asyncio
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest

from rlstm_server.errors import (
    DurabilityNotReached,
    Gone,
    NotFound,
    OutcomeUnknown,
    ServerError,
    StartupError,
    StoreUnavailable,
)
from rlstm_server.store.redis_client import RedisLink
from rlstm_server.store.redis_store import RedisStore

from . import servers

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

FAILOVERS = 8
WRITERS = 8


@pytest.fixture(params=["valkey", "redis"])
def binary(request):
    return servers.program(request.param)


@dataclass
class Writer:
    """Commits to one session without pause until the store fails; knows the newest version it was told of."""

    store: RedisStore
    build: object
    key: object = None
    at: object = None
    told: int = 0

    async def run(self):
        """Write."""
        with suppress(ServerError):
            self.key, self.at = await self.build.session(self.store)
            while True:
                commit = self.build.commit(self.key, self.at, state=bytes(8_000))
                self.at = (await self.store.commit(commit)).revision
                self.told = self.at.version


async def fail_over(binary, folder, build, durability):
    """Kill a primary under load and promote its replica; return acknowledged commits and lost ones."""
    made = [servers.Server(binary, folder / name) for name in ("primary", "replica")]
    with servers.running(*made) as [primary, replica]:
        servers.follow(replica, primary)
        store = RedisStore(primary.url, durability=durability)
        await store.check()
        writers = [Writer(store, build) for _ in range(WRITERS)]
        tasks = [asyncio.create_task(writer.run()) for writer in writers]
        await asyncio.sleep(0.4)
        replica.pause()  # it lags, as one behind a slow network does
        await asyncio.sleep(0.1)
        primary.kill()
        await asyncio.gather(*tasks)
        await store.close()
        replica.resume()
        servers.promote(replica)
        heir = RedisStore(replica.url)
        lost = 0
        for writer in writers:
            try:
                lost += max(0, writer.told - (await heir.load_head(writer.key, with_state=False)).version)
            except (Gone, NotFound):
                lost += writer.told
        await heir.close()
    return sum(writer.told for writer in writers), lost


async def test_failover_by_hand(tmp_path, build):
    """With durability replica nothing acknowledged is lost; with fsync a replica that lags costs the last."""
    told, lost = {}, {}
    for durability in ("replica", "fsync"):
        told[durability] = lost[durability] = 0
        for number in range(FAILOVERS):
            binary = servers.program("valkey" if number % 2 else "redis")
            counts = await fail_over(binary, tmp_path / durability / str(number), build, durability)
            told[durability] += counts[0]
            lost[durability] += counts[1]

    print(
        f"failover: replica: {told['replica']:,} acknowledged, {lost['replica']} lost;"
        f" fsync: {told['fsync']:,} acknowledged, {lost['fsync']} lost"
    )
    assert lost["replica"] == 0
    assert told["replica"] > FAILOVERS * WRITERS
    assert lost["fsync"] > 0


async def insist(store, commit):
    """Repeat a commit until it is applied; return what the last answer said of that."""
    deadline = asyncio.get_running_loop().time() + 30
    while True:
        try:
            await store.commit(commit)
        except (StoreUnavailable, OutcomeUnknown):
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.05)
        except DurabilityNotReached as short:
            return short.applied
        else:
            return "yes, on a replica"


@contextmanager
def watched(binary, folder):
    """Run a primary, its replica, and a Sentinel that knows both."""
    made = [servers.Server(binary, folder / name) for name in ("primary", "replica")]
    with servers.running(*made) as [primary, replica]:
        servers.follow(replica, primary)
        watch = servers.sentinel(binary, folder / "sentinel", primary)
        with servers.running(watch):
            with watch.admin() as admin:
                servers.until(lambda: admin.sentinel_slaves("rlstm"))
            yield primary, replica, watch


async def test_sentinels_name_the_next_primary(binary, tmp_path, build):
    """The primary dies; soon the same store commits to the one that took its place, on the same history."""
    with watched(binary, tmp_path) as (primary, replica, watch):
        url = f"sentinel://127.0.0.1:1,127.0.0.1:{watch.port}/rlstm"
        store = RedisStore(url, durability="replica", timeout_s=0.5)
        await store.check()
        key, at = await build.session(store)
        at = (await store.commit(build.commit(key, at))).revision
        primary.kill()

        # made at last on the one that is left, which has no replica any more
        assert await insist(store, build.commit(key, at)) == "yes"
        assert (await store.load_head(key)).version == 2
        with replica.admin() as admin:
            assert admin.role()[0] == b"master"
        await store.close()


async def test_a_primary_that_was_demoted_is_left(binary, tmp_path):
    """READONLY makes the link ask the Sentinels again; the command arrives at the new primary at once."""
    with watched(binary, tmp_path) as (primary, replica, watch), watch.admin() as admin:
        link = RedisLink(f"sentinel://127.0.0.1:{watch.port}/rlstm")
        await link.call("SET", "rlstm:{a}:b", 1, changes=True)
        servers.until(lambda: admin.execute_command("SENTINEL", "FAILOVER", "rlstm"))
        port = str(replica.port).encode()
        asked = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "rlstm")
        servers.until(lambda: admin.execute_command(*asked)[1] == port)
        with primary.admin() as old:
            servers.until(lambda: old.role()[0] == b"slave")

        reply = await link.call("SET", "rlstm:{a}:b", 2, changes=True)

        assert reply.content == b"OK"
        with replica.admin() as new:
            assert new.get("rlstm:{a}:b") == b"2"
        await link.aclose()


async def test_a_name_that_no_sentinel_knows(binary, tmp_path):
    """The start ends with a sentence about Sentinels, not with a wait."""
    primary = servers.Server(binary, tmp_path / "primary")
    watch = servers.sentinel(binary, tmp_path / "sentinel", primary)
    with servers.running(primary, watch), pytest.raises(StartupError, match="no Sentinel knows"):
        await RedisStore(f"sentinel://127.0.0.1:{watch.port}/other").check()
