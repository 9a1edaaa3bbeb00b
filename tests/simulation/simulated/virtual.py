"""Clocks and random bits that a seed decides, for as long as a simulation runs."""

import random
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlstm_server.engine import stream
from simulated.loop import HOST, SimulatedLoop
from simulated.storage import EPOCH_MS


@contextmanager
def virtual(loop: SimulatedLoop, draw: random.Random) -> Iterator[None]:
    """Replace what `time` and `secrets` give. Each host has a wall clock of its own, which may be wrong.

    Chunks of a kept text are short.
    """

    def wall() -> float:
        host = HOST.get()
        return EPOCH_MS / 1000 + loop.time() + (0.0 if host is None else host.skew_s)

    replaced: dict[tuple[Any, str], Any] = {
        (time, "time"): wall,
        (time, "time_ns"): lambda: int(wall() * 1e9),
        (time, "monotonic"): loop.time,
        (time, "perf_counter"): loop.time,
        (secrets, "token_hex"): lambda size=32: draw.randbytes(size).hex(),
        (secrets, "token_bytes"): lambda size=32: draw.randbytes(size),
        (secrets, "randbits"): draw.getrandbits,
        (stream, "CHUNK"): 3,
        (stream, "MAX_TOKENS"): 6,
    }
    real = {place: getattr(*place) for place in replaced}
    try:
        for (module, name), value in replaced.items():
            setattr(module, name, value)
        yield
    finally:
        for (module, name), value in real.items():
            setattr(module, name, value)
