"""kill -9 under load: what was acknowledged is there afterwards, once, and makes the state that is stored."""

import pytest

from tests.faults import replicas
from tests.faults.checker import judge
from tests.faults.history import History
from tests.faults.load import Clients
from tests.faults.nemesis import Nemesis

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

SEATS = 3


async def harm(context, folder, checkpoint, store, kills, of_store, **options):
    """Kill replicas and the store of a service under load; give what its clients were told, and the verdict."""
    await store.start()
    history = History()
    settings = {"model": str(checkpoint), "port": 0, "redis_url": store.url, "threads": 1}
    async with (
        replicas.running(context, folder, settings, SEATS) as fleet,
        Clients(fleet, history, seed=7, **options) as clients,
    ):
        await Nemesis(fleet, store, seed=7).kill(clients, of_replicas=kills, of_store=of_store)
    return history, await judge(history, store.url, checkpoint)


def told(kills, of_store, history, verdict):
    """The line that a run is known by."""
    return (
        f"{kills} kill -9 of replicas + {of_store} of the store under load: {history.acknowledged:,} acknowledged,"
        f" {len(verdict.lost)} lost, {len(verdict.twice)} twice, {len(verdict.digests)} digest mismatches"
    )


async def test_nothing_acknowledged_is_lost_or_done_twice_by_kill_9(
    context, store_of, sizes, tiny_checkpoint, tmp_path
):
    """Valkey, small states: each in its commit."""
    of_store = max(1, sizes.kills // 10)
    options = {"adaptations": ({"kind": "output_bias"}, {}), "without": {"fork"}}
    history, verdict = await harm(
        context, tmp_path, tiny_checkpoint, store_of("valkey"), sizes.kills, of_store, **options
    )
    print(told(sizes.kills, of_store, history, verdict))
    print(history.statuses, history.repeats, verdict.faults[:20])

    assert verdict.faults == []
    assert history.acknowledged >= 10 * sizes.kills
