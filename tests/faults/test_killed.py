"""kill -9 under load: what was acknowledged is there afterwards, once, and makes the state that is stored."""

import pytest

from .checker import judge
from .load import Clients

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

ADAPTATIONS = ({}, {"kind": "output_bias"}, {"kind": "output_bias", "experts": 1})


@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_sessions_survive_kill_9(serve, sizes, tiny_checkpoint, kind):
    """Valkey, as it is packaged, and the system's Redis."""
    packaged = kind == "valkey"
    kills = sizes.kills if packaged else sizes.other_kills
    store_kills = max(1, kills // 10)
    async with serve(kind) as service:
        async with Clients(service.replicas, service.history, seed=7, adaptations=ADAPTATIONS) as clients:
            await service.nemesis.kill(clients, of_replicas=kills, of_store=store_kills)
        verdict = await judge(service.history, service.store.url, tiny_checkpoint)
        print(f"{kills} kill -9 of replicas + {store_kills} of the store under load: {verdict.counts}")

    assert verdict.faults == []
    assert verdict.acknowledged >= 10 * kills


async def test_a_replica_that_stood_still_writes_nothing_twice(serve, sizes, tiny_checkpoint):
    """SIGSTOP, SIGCONT under load: others serve its sessions meanwhile, what it had begun is refused."""
    async with serve() as service:
        async with Clients(
            service.replicas, service.history, seed=41, sessions=8, adaptations=ADAPTATIONS, timeout=2.0
        ) as clients:
            await service.nemesis.pause(clients, pauses=sizes.pauses, longest_seconds=4.0)
        verdict = await judge(service.history, service.store.url, tiny_checkpoint)
        print(f"{sizes.pauses} pauses of replicas under load: {verdict.counts}")

    assert verdict.faults == []
