"""Routes for those who run the server: health, metrics, and what this server is."""

from __future__ import annotations

import asyncio
import math
import platform
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Response

from rlstm_model.adaptation.state import EXPERT_RATES
from rlstm_server.api.bodies import problems, respond
from rlstm_server.api.dependencies import ContextDep
from rlstm_server.engine.models import Models, ServedModel
from rlstm_server.schemas.generation import MAX_CHOICES, MAX_STOP_CHARACTERS, MAX_STOPS
from rlstm_server.schemas.text import DEFAULT_EXPERTS, MAX_TOP, AdaptationRequest
from rlstm_server.settings import Limits

VERSION = version("mogrifier-rlstm")
BOUNDS = {
    "top": MAX_TOP,
    "choices": MAX_CHOICES,
    "stop_strings": MAX_STOPS,
    "stop_characters": MAX_STOP_CHARACTERS,
}
"""Limits that are no settings: every request's schema says them."""

routes = APIRouter(tags=["operations"])
TEXT = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **problems()}


@routes.head("/health/live", include_in_schema=False)
@routes.get("/health/live", responses=problems())
async def live() -> Response:
    """Answer as long as the process does; touches neither model nor store."""
    return Response(b'{"status":"live"}', media_type="application/json")


@routes.head("/health/ready", include_in_schema=False)
@routes.get("/health/ready", responses=problems())
async def ready(context: ContextDep) -> Response:
    """Answer 200 when work can be taken: model loaded, store reachable, not draining; else 503."""
    await context.engine.ready()
    return Response(b'{"status":"ready"}', media_type="application/json")


@routes.get("/info", responses=problems())
async def about(context: ContextDep) -> Response:
    """Describe the model, the limits, the defaults and the version."""
    return await respond(lambda: context.services.about)


@routes.get("/metrics", responses=TEXT, response_class=Response)
async def metrics(context: ContextDep) -> Response:
    """Write all metrics in Prometheus' text form."""
    text, media_type = await asyncio.to_thread(context.metrics.exposition)
    return Response(text, headers={"content-type": media_type})


# ---- what it says of itself -------------------------------------------------------------------------------


def described(models: Models, limits: Limits, **store: str) -> dict[str, Any]:
    """Say what `/info` says: of the first model in the open, of each under `models`, and the limits."""
    return {
        "version": VERSION,
        **_model(models.default),
        "models": [_model(served) for served in models],
        "python": platform.python_version(),
        "device": models.device,
        "limits": limits.model_dump() | BOUNDS,
        "defaults": {"unit": "nats", "scores": "tokens", "learn": True, "rate_scale": 1.0},
        **store,
    }


def builds(models: Models) -> Iterator[tuple[str, ...]]:
    """Say of each model what runs: its version, name, fingerprint, type of numbers and device."""
    for served in models:
        dtype = str(served.parameters.arrays["embedding.input"].dtype)
        yield VERSION, served.name, served.fingerprint, dtype, served.device


def _model(served: ServedModel) -> dict[str, Any]:
    vocab = served.vocab
    return {
        **asdict(served.identity),
        "config": served.parameters.config.to_json(),
        "vocabulary": {
            "kind": vocab.kind,
            "size": vocab.size,
            "bos_id": vocab.bos_id,
            "eos_id": vocab.eos_id,
            "unknown_id": vocab.unknown_id,
            "uniform_bits": math.log2(vocab.size),
        },
        "adaptation": _learning(served),
        "card": served.card,
    }


def _learning(served: ServedModel) -> dict[str, Any] | None:
    """Say by which rules the model learns, the default first; None for one that does not."""
    if not served.rules:
        return None
    asked = [
        AdaptationRequest(kind=rule.kind, num_fast_weights=rule.num_fast_weights) for rule in served.rules
    ]
    sizes = [served.state_bytes(served.choose(request)) for request in asked]
    return {
        "rules": [
            rule.to_json() | {"state_bytes": size} for rule, size in zip(served.rules, sizes, strict=True)
        ],
        "experts": list(EXPERT_RATES),
        "default_experts": DEFAULT_EXPERTS,
    }
