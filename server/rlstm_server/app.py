"""The one assembly point: settings in, application out, with its OpenAPI document."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fastapi import FastAPI
from fastapi.routing import APIRoute, APIWebSocketRoute
from pydantic import TypeAdapter
from starlette.middleware import Middleware

from rlstm_model.adaptation.calibration_file import CalibrationError
from rlstm_model.checkpoint import CheckpointError, load
from rlstm_model.native.library import NativeUnavailable
from rlstm_server import telemetry, upkeep
from rlstm_server.api import generate, operations, page, problems, score, sessions, stream
from rlstm_server.api.auth import OPEN_PATHS, Access, load_keys
from rlstm_server.api.bodies import JSON, SCHEMAS
from rlstm_server.api.dependencies import Services
from rlstm_server.api.layer import RequestLayer
from rlstm_server.api.openai import completions
from rlstm_server.api.openai import models as openai_models
from rlstm_server.api.tracing import WEBSOCKET, Endpoints, face_of
from rlstm_server.engine.engine import Engine
from rlstm_server.engine.models import Device, Models, ServedModel, finds_gpu
from rlstm_server.errors import StartupError
from rlstm_server.metrics import Metrics, metered
from rlstm_server.schemas.sessions import Frame
from rlstm_server.settings import Settings
from rlstm_server.store.base import SessionStore
from rlstm_server.store.memory_store import MemoryStore, quarter_of_memory

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

T = TypeVar("T")

EMBEDDED = "embedded"
KEY: Final = {"type": "http", "scheme": "bearer", "description": "A key of this server."}
MODULES = (score, generate, sessions, stream, operations, page, completions, openai_models)
ROUTES = tuple(module.routes for module in MODULES)


def create_app(
    settings: Settings,
    *,
    models: Models | None = None,
    store: SessionStore | None = None,
    tracer_provider: TracerProvider | None = None,
) -> FastAPI:
    """Assemble the application. Nothing is loaded before its lifespan is entered.

    models, store and tracer_provider replace what the settings name; a store or provider that is given is
    closed with the application.
    Entering the lifespan raises StartupError when something that the settings name is not there.
    """
    names = _endpoints()
    metrics, endpoints = Metrics(endpoints=names), Endpoints(names)
    ring = load_keys(settings)
    if tracer_provider is None and settings.otel:
        tracer_provider = telemetry.provider_of_environment()
    lifespan = partial(
        _lifespan,
        settings=settings,
        metrics=metrics,
        models=models,
        store=store,
        tracer_provider=tracer_provider,
    )
    app = Application(
        keyed=ring is not None,
        title="rlstm",
        summary="Recurrent language models that go on learning while they serve",
        version=operations.VERSION,
        lifespan=lifespan,
        telemetry=telemetry.tracing(tracer_provider),
        docs_url=None,  # both load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        middleware=[
            Middleware(
                RequestLayer,
                access=Access(ring, host=settings.host, failed_logins=settings.limits.failed_logins),
                endpoints=endpoints,
                limits=settings.limits,
                metrics=metrics,
            )
        ],
    )
    app.state.endpoints, app.state.metrics = endpoints, metrics
    problems.install(app)
    for routes in ROUTES:
        app.include_router(routes)
    return app


def _endpoints() -> list[str]:
    """List every route as `METHOD /template`: the closed set of the metrics' endpoint label."""
    endpoints = []
    for route in (route for routes in ROUTES for route in routes.routes):
        if isinstance(route, APIRoute):
            endpoints += [f"{method} {route.path}" for method in sorted(route.methods or ())]
        elif isinstance(route, APIWebSocketRoute):
            endpoints.append(f"{WEBSOCKET} {route.path}")
    return endpoints


@contextlib.asynccontextmanager
async def _lifespan(
    app: FastAPI,
    *,
    settings: Settings,
    metrics: Metrics,
    models: Models | None,
    store: SessionStore | None,
    tracer_provider: TracerProvider | None,
) -> AsyncIterator[None]:
    """Start from the bottom up, and stop in the opposite order whatever happens."""
    async with AsyncExitStack() as stack:
        if tracer_provider is not None:
            stack.push_async_callback(asyncio.to_thread, tracer_provider.shutdown)
        loading = _keep(stack, _loaded(models, settings))  # an embedded store starts meanwhile
        store, where = (store, "given") if store else await _open_store(settings, stack)
        stack.push_async_callback(store.close)
        await store.check()
        models = await loading
        engine = Engine(
            models,
            store,
            metrics,
            limits=settings.limits,
            cache_bytes=settings.cache_bytes,
            rows=settings.rows,
            threads=settings.threads,
        )
        engine.start()
        stack.push_async_callback(engine.close)
        said = operations.described(models, settings.limits, store=where, durability=store.durability)
        app.state.services = Services(settings=settings, metrics=metrics, engine=engine, about=said)
        for build in operations.builds(models):
            metrics.build.labels(*build).set(1)
        for work in upkeep.all_of(metered(store, metrics), metrics):
            _keep(stack, work)
        yield


async def _loaded(models: Models | None, settings: Settings) -> Models:
    return await asyncio.to_thread(load_models, settings) if models is None else models


async def _open_store(settings: Settings, stack: AsyncExitStack) -> tuple[SessionStore, str]:
    """Give the store that the settings name, and a word for it. An embedded server ends with `stack`."""
    if settings.redis_url is None and settings.durability == "memory":
        return MemoryStore(max_bytes=quarter_of_memory()), "memory"
    from rlstm_server.store.redis_store import RedisStore

    if settings.redis_url is not None:
        url = settings.redis_url.get_secret_value()
        shared = RedisStore(
            url,
            durability=settings.durability,
            allow_weaker=settings.allow_weaker,
            install=settings.install_functions,
        )
        return shared, "redis"
    from rlstm_server.store.embedded import EmbeddedValkey

    embedded = EmbeddedValkey(settings.data_dir)
    await embedded.start()
    stack.push_async_callback(embedded.stop)
    store = RedisStore(embedded.url, durability=settings.durability, shared=False)
    _keep(stack, embedded.supervise(store.check))
    return store, EMBEDDED


def _keep(stack: AsyncExitStack, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run `work` in the background until the stack is left."""
    task = asyncio.create_task(work)

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)
    return task


def load_models(settings: Settings) -> Models:
    """Load them. It takes as long as they are large. Raises StartupError, which names the model."""
    device = find_device(settings)
    try:
        return Models(
            *(ServedModel.of(load(setting.place), setting.name, device) for setting in settings.models)
        )
    except (NativeUnavailable, CheckpointError, CalibrationError, ValueError) as error:
        raise StartupError(str(error)) from None


def find_device(settings: Settings) -> Device:
    """What computes: a GPU that torch (the extra `gpu`) finds, unless the CPU is asked for.

    Raises StartupError.
    """
    present = settings.device != "cpu" and _driver_is_here() and finds_gpu()
    if settings.device == "cuda" and not present:
        raise StartupError(
            "RLSTM_DEVICE: cuda was asked for, but there is no CUDA device, or no torch (the extra `gpu`)"
        )
    return "cuda" if present else "cpu"


def _driver_is_here() -> bool:
    """Whether a GPU's driver is here: without one torch, which takes seconds to import, need not be asked."""
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return False


# ---- the OpenAPI document ----------------------------------------------------------------------------------


class Application(FastAPI):
    """An application whose document is complete; `keyed` says whether callers must show a key."""

    def __init__(self, *, keyed: bool, **options: Any) -> None:
        super().__init__(**options)
        self._keyed = keyed

    def openapi(self) -> dict[str, Any]:
        """Give the document, written once."""
        if self.openapi_schema is None:
            document = super().openapi()
            document["components"]["schemas"] |= _unanswered()
            for path, operation in _operations(document):
                if face_of(path) == "openai":
                    operation["responses"].pop("422", None)  # FastAPI's own: here it is a 400
                _allow_no_body(operation)
                if self._keyed:
                    operation["security"] = [{"key": []}, *([{}] if path in OPEN_PATHS else [])]
            if self._keyed:
                document["components"]["securitySchemes"] = {"key": KEY}
        return super().openapi()


def _unanswered() -> dict[str, Any]:
    """Give the schemas of events and frames by name: no route takes or answers with one of them alone."""
    sent: list[Any] = [*generate.EVENTS.values(), stream.FrameAnswer]
    kinds: list[Any] = [(kind.__name__, "serialization", TypeAdapter(kind)) for kind in sent]
    kinds.append((Frame.__name__, "validation", TypeAdapter(Frame)))
    _, schemas = TypeAdapter.json_schemas(kinds, ref_template=SCHEMAS + "{model}")
    return dict(schemas["$defs"])


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def _allow_no_body(operation: dict[str, Any]) -> None:
    """Say that a body of JSON may be left out, which counts as an empty object."""
    if JSON in operation.get("requestBody", {}).get("content", {}):
        operation["requestBody"]["required"] = False
