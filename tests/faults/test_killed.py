"""kill -9 under load: what was acknowledged is there afterwards, once, and makes the state that is stored."""

import pytest

from .checker import judge
from .load import Clients

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

ADAPTATIONS = ({}, {"kind": "output_bias"}, {"kind": "output_bias", "experts": 1})


async def harm(serve, checkpoint, kind, of_replicas, of_store):
    """Kill replicas and the store of a service under load; give the verdict."""
    async with serve(kind) as service:
        async with Clients(service.replicas, service.history, seed=7, adaptations=ADAPTATIONS) as clients:
            await service.nemesis.kill(clients, of_replicas=of_replicas, of_store=of_store)
        verdict = await judge(service.history, service.store.url, checkpoint)
        print(f"{of_replicas} kill -9 of replicas + {of_store} of the store under load: {verdict.counts}")
        return verdict


async def test_sessions_survive_kill_9(serve, sizes, tiny_checkpoint):
    """Valkey, as it is packaged."""
    verdict = await harm(serve, tiny_checkpoint, "valkey", sizes.kills, sizes.store_kills)

    assert verdict.faults == []
    assert verdict.acknowledged >= 10 * sizes.kills


async def test_redis_survives_kill_9(serve, sizes, tiny_checkpoint):
    """Debian's Redis."""
    verdict = await harm(serve, tiny_checkpoint, "redis", sizes.other_kills, sizes.other_store_kills)

    assert verdict.faults == []
    assert verdict.acknowledged >= 10 * sizes.other_kills


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
