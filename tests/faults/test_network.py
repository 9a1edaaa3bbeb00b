"""Faults of the network between replicas and the store: each answer belongs to its request, nothing is lost."""

import asyncio
import random
from collections import Counter

import pytest

from .checker import judge
from .load import Clients
from .proxy import COMMIT, FAULTS, FaultProxy

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

AT_ONCE = 4
CUTS = 0.02


async def strike(proxy, dice, faults, clients, met):
    """Strike with `faults` faults, one after the other, commits more often than other calls."""
    for _ in range(faults):
        clients.check()
        if dice.random() < CUTS:
            met["Cut"] += 1
            await proxy.cut(dice.uniform(0.05, 1.0))
            continue
        kind = dice.choice(FAULTS)
        met[kind.__name__] += 1
        await proxy.strike(kind(dice), meant_for=COMMIT if dice.random() < 0.7 else b"", within_s=60)
        await asyncio.sleep(dice.uniform(0.0, 0.1))


async def test_no_fault_of_the_network_loses_or_repeats_anything(serve, sizes, tiny_checkpoint, free_port):
    """Delays, trickles, black holes, cuts in every place: 0 lost, 0 twice, 0 answers to another's question."""
    met, faults = Counter(), sizes.network_faults
    async with (
        FaultProxy(free_port) as proxy,
        serve(port=free_port, address=proxy.url) as service,
    ):
        async with Clients(service.replicas, service.history, seed=11, workers=16) as clients:
            await asyncio.gather(
                *(
                    strike(proxy, random.Random(f"11 fault {n}"), faults // AT_ONCE, clients, met)
                    for n in range(AT_ONCE)
                )
            )
        verdict = await judge(service.history, service.store.url, tiny_checkpoint)
        print(
            f"{met.total()} network faults: {service.history.acknowledged:,} acknowledged, {len(verdict.lost)} lost,"
            f" {len(verdict.twice)} twice, {len(verdict.digests + verdict.wrong)} wrong replies,"
            f" max outage {service.history.outage_seconds:.1f} s"
        )
        print(met, service.history.statuses)

    assert verdict.faults == []
    assert set(met) >= {kind.__name__ for kind in FAULTS}
