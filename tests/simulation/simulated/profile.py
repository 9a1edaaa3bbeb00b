"""What kind of world a seed makes: how many take part, what goes wrong in it, and how often."""

import random
from dataclasses import dataclass
from typing import Final

from rlstm_server import settings
from rlstm_server.settings import Durability
from rlstm_server.store.base import Retention

Aim = tuple[str, str, int, int]
"""A crash or pause so many steps after the n-th call of this kind has reached this phase."""

OFTEN: Final = frozenset({"device", "commit", "load_head"})
SELDOM: Final = ("restore", "update", "reset", "fork", "import")
"""Kinds of wishes that so few have that one must aim at them."""

AIMS: Final = (
    ("device", "round"),
    *(("commit", phase) for phase in ("sent", "applied", "answered", "over")),
    *(("create", phase) for phase in ("sent", "applied", "answered", "over")),
    *(("load_head", phase) for phase in ("sent", "applied", "answered", "over")),
    *(("delete", phase) for phase in ("sent", "applied")),
    *((f"to {kind}", phase) for kind in SELDOM for phase in ("sent", "applied")),
    *(("name_snapshot", phase) for phase in ("sent", "applied")),
    *(("read_snapshot", phase) for phase in ("sent", "applied")),
)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """See the module. Rates are shares of all messages, times are seconds.

    fuses     steps of a replica after which it crashes, or pauses
    aims      calls at which one does
    events    what happens to the store, and to whole replicas, and when
    crowd     whether everybody appends to one session all the time, through any replica
    sticky    whether clients keep to one replica while it is up, as behind a proxy that hashes
    """

    replicas: int
    clients: int
    wishes: int
    rate: float
    slow_s: float
    fuses: tuple[int, ...]
    aims: tuple[Aim, ...]
    events: tuple[tuple[float, str], ...]
    pauses: float
    skewed: bool
    crowd: bool
    sticky: bool
    ttl_s: float | None
    durability: Durability
    cache_bytes: int
    limits: Retention
    engine_limits: settings.Limits

    @classmethod
    def of(cls, draw: random.Random) -> "Profile":
        """Draw one."""
        calm = draw.random() < 0.15
        kinds = ["down", "down", "full", "drain", "failover"]
        events = () if calm else tuple(draw.choice(kinds) for _ in range(draw.choice((0, 0, 1, 1, 2))))
        fuses = () if calm else tuple(draw.randint(3, 150) for _ in range(draw.choice((0, 1, 1, 2))))
        aims = () if calm else tuple(_aim(draw) for _ in range(draw.choice((0, 1, 1, 2))))
        crowd = draw.random() < 0.08
        backwards = crowd and not calm and draw.random() < 0.6
        if backwards:
            events = ("failover", "failover", "failover")
        return cls(
            replicas=3 if crowd else draw.choice((1, 2, 2, 3)),
            clients=4 if crowd else draw.choice((2, 2, 3)),
            wishes=8 if backwards else draw.randint(3, 5),
            rate=0.0 if calm else draw.choice((0.0, 0.05, 0.15, 0.3)),
            slow_s=draw.choice((0.005, 0.02, 0.1)),
            fuses=fuses,
            aims=aims,
            events=tuple((draw.uniform(0.1, 4.0), kind) for kind in events),
            pauses=draw.choice((0.0, 0.3, 0.7)),
            crowd=crowd,
            skewed=draw.random() < 0.3,
            sticky=not crowd and draw.random() < 0.4,
            ttl_s=draw.choice((None, None, None, None, 4.0)),
            durability="fsync" if backwards else draw.choice(("fsync", "fsync", "replica")),
            cache_bytes=draw.choice((1 << 20, 1 << 20, 1 << 20, 300)),
            limits=Retention(details_bytes=draw.choice((1, 200, 1 << 18))),
            engine_limits=settings.Limits(queued_operations_per_session=draw.choice((64, 64, 2))),
        )


def _aim(draw: random.Random) -> Aim:
    name, phase = draw.choice(AIMS)
    nth = draw.randint(1, 6 if name in OFTEN else 2)
    return name, phase, nth, draw.choice((0, 0, 1, 2, 3))
