"""Clocks and random bits that a seed decides, for as long as a simulation runs."""

import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rlstm_server.engine import stream
from simulated.loop import HOST, SimulatedLoop
from simulated.storage import EPOCH_MS


@contextmanager
def virtual(loop: SimulatedLoop, draw: random.Random) -> Iterator[None]:
    """Replace what `time` and `secrets` give to this thread. Each host has a wall clock, which may be wrong.

    Other threads keep theirs: an event loop that once saw a virtual clock would sleep for hours. Chunks of a
    kept text are short.
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
    here = threading.get_ident()

    def for_this_thread(virtual_: Callable[..., Any], real_: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            return (virtual_ if threading.get_ident() == here else real_)(*arguments)

        return call

    try:
        for (module, name), value in replaced.items():
            theirs = real[module, name]
            setattr(module, name, for_this_thread(value, theirs) if callable(value) else value)
        yield
    finally:
        for (module, name), value in real.items():
            setattr(module, name, value)
