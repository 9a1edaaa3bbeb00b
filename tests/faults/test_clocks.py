"""The store's clock jumps by an hour: nothing is lost or done twice, and sessions end by that clock."""

from pathlib import Path

import pytest

from .checker import judge
from .load import Clients

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
HOUR = 3600


class Clock:
    """The clock of a store that is started with `environment`."""

    def __init__(self, folder):
        self._file = folder / "clock"
        self.set(0)
        self.environment = {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, seconds):
        """Let it be so many seconds ahead."""
        partial = self._file.with_suffix(".partial")
        partial.write_text(f"{seconds:+d}\n")
        partial.replace(self._file)


@pytest.fixture
def clock(tmp_path):
    """Give a clock that can be set."""
    if FAKETIME is None:
        pytest.skip("no libfaketime here (Debian: apt-get install faketime)")
    return Clock(tmp_path)


async def test_jumps_of_the_clock_lose_nothing(serve, clock, sizes, tiny_checkpoint):
    """An hour ahead, an hour behind, under load."""
    async with serve(environment=clock.environment) as service:
        async with Clients(service.replicas, service.history, seed=23) as clients:
            for _ in range(sizes.stalls * 2):
                await service.nemesis.some_work(clients)
                clock.set(service.nemesis.dice.choice([-HOUR, 0, HOUR]))
        clock.set(0)
        verdict = await judge(service.history, service.store.url, tiny_checkpoint)
        print(f"{sizes.stalls * 2} jumps of the store's clock: {verdict.counts}")

    assert verdict.faults == []
