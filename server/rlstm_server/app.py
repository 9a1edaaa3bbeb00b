"""The one assembly point: settings in, application out."""

from __future__ import annotations

import asyncio
import contextlib
import math
import platform
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any

import torch
from fastapi import FastAPI
from fastapi.routing import APIRoute, APIRouter
from starlette.middleware import Middleware

from rlstm_model.checkpoint import Checkpoint, CheckpointError, load
from rlstm_server.api import generate, operations, problems, score, sessions
from rlstm_server.api.auth import AuthLayer, load_keys
from rlstm_server.api.dependencies import Services
from rlstm_server.api.limits import ReceivingLayer
from rlstm_server.api.tracing import TracingLayer
from rlstm_server.engine.engine import Engine
from rlstm_server.engine.messages import EngineLimits
from rlstm_server.errors import StartupError
from rlstm_server.metrics import Metrics
from rlstm_server.settings import Limits, Settings
from rlstm_server.store.base import SessionStore
from rlstm_server.store.embedded import EmbeddedValkey
from rlstm_server.store.in_memory import MemoryStore
from rlstm_server.store.in_redis import RedisStore

VERSION = version("mogrifier-rlstm")
LAG_SECONDS = 0.1
"""How often the event loop's lateness is measured."""


def create_app(
    settings: Settings, *, checkpoint: Checkpoint | None = None, store: SessionStore | None = None
) -> FastAPI:
    """Assemble the application. Nothing is loaded before its lifespan is entered.

    checkpoint and store replace what the settings name; a store that is given is closed with the application.
    Entering the lifespan raises StartupError when something that the settings name is not there.
    """
    routers = [score.router(), generate.router(), sessions.router(), operations.router()]
    metrics = Metrics(endpoints=_endpoints(routers))
    ring = load_keys(settings)
    app = FastAPI(
        title="rlstm",
        summary="Recurrent language models that go on learning while they serve",
        version=VERSION,
        lifespan=lambda app: _lifespan(app, settings, metrics, checkpoint, store),
        docs_url=None,  # both load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        middleware=[
            Middleware(TracingLayer, metrics=metrics, respond=problems.respond),
            Middleware(AuthLayer, ring=ring, host=settings.host),
            Middleware(ReceivingLayer, limits=settings.limits),
        ],
    )
    problems.install(app)
    for router in routers:
        app.include_router(router)
    return app


def _endpoints(routers: list[APIRouter]) -> list[str]:
    """List every route as `METHOD /template`: the closed set of the metrics' endpoint label."""
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    return [f"{method} {route.path}" for route in routes for method in sorted(route.methods)]


@contextlib.asynccontextmanager
async def _lifespan(
    app: FastAPI,
    settings: Settings,
    metrics: Metrics,
    checkpoint: Checkpoint | None,
    store: SessionStore | None,
) -> AsyncIterator[None]:
    """Start from the bottom up, and stop in the opposite order whatever happens."""
    async with AsyncExitStack() as stack:
        device = _device(settings)
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        loaded = checkpoint or await asyncio.to_thread(_load, settings.model, device)
        opened, described = (store, "given") if store else await _open_store(settings, stack)
        stack.push_async_callback(opened.close)
        await opened.check()
        engine = await _start_engine(loaded, opened, metrics, settings.limits, stack)
        app.state.services = Services(
            settings=settings,
            metrics=metrics,
            engine=engine,
            about=_about(loaded, engine, settings, described, opened.durability),
        )
        _describe_build(metrics, loaded, engine)
        stack.push_async_callback(_cancel, asyncio.create_task(_watch_lag(metrics)))
        yield


def _device(settings: Settings) -> torch.device:
    present = torch.cuda.is_available()
    if settings.device == "cuda" and not present:
        raise StartupError("RLSTM_DEVICE: cuda was asked for, but this machine has no CUDA device")
    return torch.device("cuda" if settings.device != "cpu" and present else "cpu")


def _load(model: str, device: torch.device) -> Checkpoint:
    try:
        return load(model, device)
    except CheckpointError as error:
        raise StartupError(f"RLSTM_MODEL: {error}") from None


async def _open_store(settings: Settings, stack: AsyncExitStack) -> tuple[SessionStore, str]:
    """Give the store that the settings name, and a word for it. The embedded server's life ends with `stack`."""
    if settings.redis_url is not None:
        url = settings.redis_url.get_secret_value()
        return RedisStore(url, allow_weaker=settings.allow_weaker), "redis"
    if settings.durability == "memory":
        return MemoryStore(), "memory"
    embedded = EmbeddedValkey(settings.data_dir)
    await embedded.start()
    stack.push_async_callback(embedded.stop)
    stack.push_async_callback(_cancel, asyncio.create_task(embedded.supervise()))
    return RedisStore(embedded.url), f"embedded in {settings.data_dir}"


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _watch_lag(metrics: Metrics) -> None:
    """Measure how late the event loop wakes: what health answers and pings wait for."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_SECONDS
        await asyncio.sleep(LAG_SECONDS)
        metrics.loop_lag_seconds.observe(max(0.0, loop.time() - due))
