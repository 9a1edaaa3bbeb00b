"""What the server counts, in one registry of its own.

Every label takes its values from a closed set and every series exists from the start, so that the number of
series never depends on what clients send: no session, tenant, request or raw path is ever a label. What
several servers know of one store (`tier="store"`, `rlstm_store_*`) each of them says: take the maximum.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, Literal, TypeVar, cast, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from rlstm_server.errors import (
    IdempotencyMismatch,
    OutcomeUnknown,
    Rejection,
    ServerError,
    StateCorrupt,
    StoreFull,
    StoreUnavailable,
)

Outcome = Literal["ok", "client_error", "server_error", "cancelled", "rejected"]
Phase = Literal["score", "generate", "update"]
Tier = Literal["device", "host"]
MetricT = TypeVar("MetricT", bound=MetricWrapperBase)
StoreT = TypeVar("StoreT")

OTHER = "unknown"
"""The endpoint of every request that matches no route of ours."""

PHASES: tuple[Phase, ...] = get_args(Phase)
GUARDS = {
    "step_skipped": "skipped_nonfinite",
    "restarted": "rolled_back",
    "reset": "rolled_back",
    "frozen": "skipped_frozen",
}
"""What updates that a guard kept from being steps are counted as; one that was "projected" is a step.

The evaluator's own guards count once a row, those of a single expert's loss guard once a segment.
"""

BUILD = ("version", "model", "model_fingerprint", "dtype", "device")
ENDINGS = ("closed", "idle_ttl")
PARTS = ("static", "weights", "memory", "adapted")
TIERS: tuple[Tier, ...] = get_args(Tier)
STORE_OPERATIONS = (
    "create",
    "load",
    "commit",
    "recall",
    "recall_creation",
    "name_snapshot",
    "named_snapshots",
    "read_snapshot",
    "drop_snapshot",
    "delete",
    "find",
    "list",
    "count",
    "total",
    "sweep",
    "usage",
    "ping",
)
STORE_FAULTS: Mapping[type[ServerError], str] = {
    StoreUnavailable: "unavailable",
    StoreFull: "full",
    OutcomeUnknown: "timeout",
    StateCorrupt: "corrupt",
}
"""Errors that are faults of the store. With any other the store did its work and the answer is an error."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
STEP_SECONDS = SECONDS[:12]
QUEUE_SECONDS = (0.0001, 0.00025, 0.0005, *SECONDS[:13])
FIRST_TOKEN_SECONDS = SECONDS[:15]
TOKEN_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
NORMS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
RATIOS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 2, 5)
SHARES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99, 0.999, 1)
ROWS = tuple(2**power for power in range(11))
BATCH_TOKENS = tuple(4**power for power in range(9))
STATE_BYTES = tuple(4096 * 4**power for power in range(9))  # 4 KiB ... 256 MiB


class Metrics:
    """All metrics of one server; `endpoints` are its routes, such as `POST /sessions/{session_id}/append`."""

    def __init__(self, *, endpoints: Iterable[str] = ()) -> None:
        self.registry = CollectorRegistry()
        self._requests_metrics(sorted({*endpoints, OTHER}))
        self._round_metrics()
        self._adaptation_metrics()
        self._session_metrics()
        self._store_metrics()
        self._process_metrics()

    def batch_step_finished(
        self, seconds: float, rows: Mapping[Phase, int], tokens: Mapping[Phase, int]
    ) -> None:
        """Count one batch step of the device, if it computed anything: rows and tokens by what they were for.

        Tokens are those of all its batches, rows those of the first, which has all.
        """
        for phase, count in rows.items():
            if count:
                self.batch_rows.labels(phase).observe(count)
                self.batch_tokens.labels(phase).observe(tokens[phase])
        if any(rows.values()):
            self.batch_step_seconds.observe(seconds)
        if rows["update"]:
            self.update_seconds.observe(seconds)

    def watch_device(self, jobs: Callable[[], int], rows: Callable[[], int], max_rows: int) -> None:
        """Publish what the queue of the device holds, as it is when somebody asks."""
        self.jobs.set_function(jobs)
        self.rows_wanted.set_function(rows)
        self.max_rows.set(max_rows)

    def store_measured(self, *, sessions: float, used: float, most: float, evicted: float) -> None:
        """Publish what the store says of itself."""
        self.sessions.labels("store").set(sessions)
        self.store_bytes.set(used)
        self.store_max_bytes.set(most)
        self.store_evicted.set(evicted)

    def store_unknown(self) -> None:
        """Publish that nobody knows: an old figure would look like a new one."""
        self.store_measured(sessions=math.nan, used=math.nan, most=math.nan, evicted=math.nan)

    def exposition(self) -> tuple[bytes, str]:
        """Write the registry in Prometheus' text form; answer it with its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def _requests_metrics(self, endpoints: Sequence[str]) -> None:
        self.requests = self._counter(
            "requests", "Requests by outcome", endpoint=endpoints, outcome=get_args(Outcome)
        )
        self.rejected = self._counter(
            "requests_rejected", "Requests refused unworked", reason=get_args(Rejection)
        )
        self.request_seconds = self._histogram(
            "request_duration_seconds", "Whole request", SECONDS, endpoint=endpoints
        )
        self.queue_seconds = self._histogram(
            "request_queue_seconds", "Wait for the device", QUEUE_SECONDS, endpoint=endpoints
        )
        self.first_token_seconds = self._histogram(
            "time_to_first_token_seconds", "Request to first event", FIRST_TOKEN_SECONDS
        )
        self.inter_token_seconds = self._histogram("inter_token_seconds", "Between two events", TOKEN_SECONDS)
        self.tokens = self._counter("tokens", "Tokens worked on", kind=("scored", "generated", "adapted"))

    def _round_metrics(self) -> None:
        self.jobs = self._gauge("jobs", "Jobs that wait for the device or are on it")
        self.rows_wanted = self._gauge("rows_wanted", "Rows that these jobs ask of the device")
        self.max_rows = self._gauge("max_rows", "Rows that a batch step has room for")
        self.batch_step_seconds = self._histogram(
            "batch_step_seconds", "A batch step of the device", STEP_SECONDS
        )
        self.batch_rows = self._histogram(
            "batch_size", "Rows of a batch step, by what they are for", ROWS, phase=PHASES
        )
        self.batch_tokens = self._histogram(
            "batch_tokens", "Tokens of a batch step", BATCH_TOKENS, phase=PHASES
        )

    def _adaptation_metrics(self) -> None:
        self.updates = self._counter(
            "adapt_updates", "Gradient steps", outcome=("applied", "clipped", *sorted({*GUARDS.values()}))
        )
        self.update_seconds = self._histogram(
            "adapt_update_seconds", "A batch step in which rows learned", STEP_SECONDS
        )
        self.static_weight = self._histogram(
            "mixture_static_weight", "Weight of the static expert at a commit", SHARES
        )
        self.loss_nats = self._counter("loss_nats", "Summed loss in sessions", part=PARTS)
        self.loss_tokens = self._counter("loss_tokens", "Tokens behind the loss", part=PARTS)
        self.gain_nats = self._counter(
            "adapt_gain_nats", "Nats won or lost by learning", sign=("positive", "negative")
        )
        self.gradient_norm = self._histogram("gradient_norm", "Norm of a gradient step", NORMS)
        self.delta_ratio = self._histogram("fast_weight_delta_ratio", "|W - W0| / |W0| at a commit", RATIOS)

    def _session_metrics(self) -> None:
        self.sessions = self._gauge(
            "sessions",
            "Sessions by residency: copies in this server's memory, and all that the store has",
            tier=(*TIERS, "store"),
        )
        self.sessions_created = self._counter("sessions_created", "Sessions created")
        self.sessions_ended = self._counter("sessions_ended", "Sessions ended", reason=ENDINGS)
        self.evictions = self._counter("session_evictions", "Cached copies dropped to make room", tier=TIERS)
        self.state_bytes = self._histogram(
            "session_state_bytes", "State of a session at a commit", STATE_BYTES
        )
        self.load_seconds = self._histogram("session_load_seconds", "Loading a session", STEP_SECONDS)
        self.commit_seconds = self._histogram("session_commit_seconds", "Committing a session", STEP_SECONDS)

    def _store_metrics(self) -> None:
        self.store_bytes = self._gauge("store_bytes", "Memory that the store uses")
        self.store_max_bytes = self._gauge("store_max_bytes", "Memory that the store may use; 0: no limit")
        self.store_evicted = self._gauge("store_evicted_keys", "Keys that the store dropped to make room")
        self.store_errors = self._counter(
            "store_errors", "Store faults", op=STORE_OPERATIONS, reason=(*STORE_FAULTS.values(), "other")
        )
        self.store_seconds = self._histogram(
            "store_op_seconds", "Store calls", STEP_SECONDS, op=STORE_OPERATIONS
        )
        self.conflicts = self._counter(
            "commit_conflicts", "Commits on a stale version", outcome=("redone", "refused")
        )
        self.restore_failures = self._counter(
            "restore_failures",
            "States refused",
            reason=("missing", "checksum", "schema", "nonfinite", "model_mismatch"),
        )
        self.replays = self._counter(
            "idempotent_replays", "Keys seen again", result=("replayed", "body_mismatch", "in_flight")
        )

    def _process_metrics(self) -> None:
        self.loop_lag_seconds = self._histogram("event_loop_lag_seconds", "Lateness of a timer", STEP_SECONDS)
        self.draining = self._gauge("draining", "1 while the server drains")
        ProcessCollector(registry=self.registry)
        self.build = Gauge("rlstm_build_info", "What runs here", BUILD, registry=self.registry)

    def _counter(self, name: str, text: str, **labels: Sequence[str]) -> Counter:
        return _with_all_series(Counter(f"rlstm_{name}", text, tuple(labels), registry=self.registry), labels)

    def _gauge(self, name: str, text: str, **labels: Sequence[str]) -> Gauge:
        return _with_all_series(Gauge(f"rlstm_{name}", text, tuple(labels), registry=self.registry), labels)

    def _histogram(self, name: str, text: str, edges: Sequence[float], **labels: Sequence[str]) -> Histogram:
        made = Histogram(f"rlstm_{name}", text, tuple(labels), registry=self.registry, buckets=edges)
        return _with_all_series(made, labels)


def _with_all_series(metric: MetricT, labels: dict[str, Sequence[str]]) -> MetricT:
    """Create every labelled child now: a series that appears late reads as a jump in a rate."""
    if labels:
        for values in product(*labels.values()):
            metric.labels(*values)
    return metric


# ---- a store, measured -------------------------------------------------------------------------------------

NAMES = {"load_head": "load"}
"""What calls are counted as, where that is not their name."""


class _Metered:
    def __init__(self, store: Any, metrics: Metrics) -> None:
        self.store, self._metrics = store, metrics

    def __getattr__(self, name: str) -> Any:
        """Give a call of the store, measured; what is no call, and is not counted, as it is."""
        operation = NAMES.get(name, name)
        if operation not in STORE_OPERATIONS:
            return getattr(self.store, name)
        measured = partial(self._measured, operation, name)
        setattr(self, name, measured)
        return measured

    async def _measured(self, operation: str, name: str, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return await getattr(self.store, name)(*args, **kwargs)
        except IdempotencyMismatch:
            self._metrics.replays.labels("body_mismatch").inc()
            raise
        except ServerError as error:
            reason = next((STORE_FAULTS[kind] for kind in type(error).__mro__ if kind in STORE_FAULTS), None)
            if reason is not None:
                self._metrics.store_errors.labels(operation, reason).inc()
            raise
        except Exception:
            self._metrics.store_errors.labels(operation, "other").inc()
            raise
        finally:
            self._metrics.store_seconds.labels(operation).observe(time.perf_counter() - began)


def metered(store: StoreT, metrics: Metrics) -> StoreT:
    """Give the same store, whose calls are counted."""
    return cast("StoreT", _Metered(store, metrics))
