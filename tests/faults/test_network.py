"""Faults of the network before the store: each answer belongs to its request, nothing is lost."""

import asyncio
from collections import Counter

import pytest

from .checker import judge
from .load import Clients
from .proxy import COMMIT, FaultProxy
from .toxics import FAULTS

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

AT_ONCE = 4
CUTS = 0.02
WORK = (2, 12)


async def strike(proxy, service, faults, clients, met):
    """Strike with `faults` faults, one after the other, commits more often than other calls."""
    dice = service.nemesis.dice
    for _ in range(faults):
        await service.nemesis.some_work(clients, WORK)
        if dice.random() < CUTS:
            met["Cut"] += 1
            await proxy.cut(dice.uniform(0.05, 1.0))
        else:
            kind = dice.choice(FAULTS)
            met[kind.__name__] += 1
            await proxy.strike(kind(dice), meant_for=COMMIT if dice.random() < 0.7 else b"", within_s=60)


async def test_no_fault_of_the_network_loses_or_repeats_anything(serve, sizes, tiny_checkpoint, free_port):
    """Delays, trickles, black holes, cuts in every place: 0 lost, 0 twice, 0 wrong replies."""
    met, faults = Counter(), sizes.network_faults
    async with FaultProxy(free_port) as proxy, serve(port=free_port, address=proxy.url, seed=11) as service:
        async with Clients(service.replicas, service.history, seed=11, workers=16) as clients:
            strikes = [strike(proxy, service, faults // AT_ONCE, clients, met) for _ in range(AT_ONCE)]
            await asyncio.gather(*strikes)
        verdict = await judge(service.history, service.store.url, tiny_checkpoint)
        print(
            f"{met.total()} network faults: {service.history.acknowledged:,} acknowledged,"
            f" {len(verdict.lost)} lost, {len(verdict.twice)} twice,"
            f" {len(verdict.states + verdict.wrong)} wrong replies,"
            f" max outage {service.history.outage_seconds:.1f} s"
        )

    assert verdict.faults == []
    if faults >= 25 * len(FAULTS):
        assert set(met) >= {kind.__name__ for kind in FAULTS}
