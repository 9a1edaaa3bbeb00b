"""Serving many sessions at once: what the engine does in this process, and what is left through HTTP."""

import asyncio
import gc
import math
import sys
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import httpx
import uvicorn

from benchmarks.serving.load import Append, Measured, Plan, Rounds, measure
from benchmarks.serving.process import TENANTS, Server, rounds_of
from benchmarks.serving.targets import EngineTarget, HttpTarget, TimedMetrics
from rlstm_server.engine.engine import Engine
from rlstm_server.engine.models import Models, ServedModel
from rlstm_server.engine.worker import SWITCH_SECONDS
from rlstm_server.schemas.text import (
    AdaptationRequest,
    ScoreDetail,
)
from rlstm_server.settings import Limits
from rlstm_server.store.memory_store import MemoryStore

Way = Literal["engine", "http"]
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What is asked of either way. ``rows`` are those of a round, ``cache_bytes`` hold all sessions."""

    asked: AdaptationRequest
    scores: ScoreDetail
    rows: int
    threads: int
    queued_jobs: int
    cache_bytes: int


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What so many sessions got. Times are seconds.

    append_p50, append_p99  how long an append took
    appends                 how many they are taken from
    round_mean, round_p99   of a round; None where the single ones are not known
    round_apart             from one round to the next: what is done between them is in it
    rows_a_round            in the mean
    short_p99               of the appends of 20 bytes by another tenant meanwhile
    short_rounds            the same in mean rounds
    shorts                  how many they are taken from
    of_engine               share of the engine's throughput; None for its own
    """

    sessions: int
    way: Way
    tokens_per_second: float
    append_p50: float
    append_p99: float
    appends: int
    round_mean: float
    round_p99: float | None
    round_apart: float
    rows_a_round: float
    short_p99: float
    short_rounds: float
    shorts: int
    of_engine: float | None = None

    @classmethod
    def of(cls, measured: Measured, plan: Plan, way: Way) -> "Figures":
        """The figures of what was measured."""
        rounds, took = measured.rounds, _seconds(measured.appends)
        mean = rounds.seconds / rounds.count
        short = quantile(_seconds(measured.short), 0.99)
        return cls(
            sessions=plan.sessions,
            way=way,
            tokens_per_second=measured.tokens_per_second,
            append_p50=quantile(took, 0.5),
            append_p99=quantile(took, 0.99),
            appends=len(took),
            round_mean=mean,
            round_p99=quantile(rounds.each, 0.99) if rounds.each else None,
            round_apart=measured.seconds / rounds.count,
            rows_a_round=rounds.rows / rounds.count,
            short_p99=short,
            short_rounds=short / mean,
            shorts=len(measured.short),
        )

    def beside(self, engine: "Figures") -> "Figures":
        """The same with the share of what the engine did."""
        return replace(self, of_engine=self.tokens_per_second / engine.tokens_per_second)


def quantile(values: Sequence[float], share: float) -> float:
    """The least of the values, at least one, that ``share`` of them do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def through_engine(served: ServedModel, under: Conditions, plan: Plan) -> Figures:
    """An engine and a store in this process, in a loop and with settings as the server has them."""
    with _as_served():
        return Figures.of(run(_engine(served, under, plan)), plan, "engine")


def through_http(server: Server, under: Conditions, plan: Plan) -> Figures:
    """A server in a process of its own: this one, its client, takes no time of its interpreter."""
    return Figures.of(run(_http(server, under, plan)), plan, "http")


async def _engine(served: ServedModel, under: Conditions, plan: Plan) -> Measured:
    store = MemoryStore()
    timed = TimedMetrics()
    engine = Engine(
        Models(served),
        store,
        timed,
        limits=Limits(queued_jobs=under.queued_jobs),
        cache_bytes=under.cache_bytes,
        rows=under.rows,
        threads=under.threads,
    )
    engine.start()
    try:
        crowd, stranger = (
            EngineTarget(engine=engine, tenant=tenant, asked=under.asked, scores=under.scores)
            for tenant in TENANTS
        )
        return await measure(crowd, stranger, plan, timed.read)
    finally:
        await engine.close()
        await store.close()


async def _http(server: Server, under: Conditions, plan: Plan) -> Measured:
    connections = plan.sessions + 1
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=connections)
    # An answer takes as long as everybody's texts before it.
    async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=None) as client:  # noqa: S113
        crowd, stranger = (
            HttpTarget(client=client, key=key, asked=under.asked, scores=under.scores) for key in server.keys
        )

        async def read() -> Rounds:
            return rounds_of(await crowd.metrics())

        return await measure(crowd, stranger, plan, read)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run in the kind of event loop that the server has."""
    factory = uvicorn.Config("", log_config=None).get_loop_factory()
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


@contextmanager
def _as_served() -> Iterator[None]:
    """What ``rlstm serve`` sets for its whole process."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(interval)


def _seconds(appends: Sequence[Append]) -> list[float]:
    return [append.took for append in appends]
