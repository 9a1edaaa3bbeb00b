"""`rlstm serve`: one server process, from its settings to its end.

The socket is bound before the model is loaded, so a port in use is told at once. The first Ctrl-C or SIGTERM
drains: no new work, open work ends or commits, then everything that was started is stopped, in order. A
second one does not wait for open work.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, reduce
from types import FrameType
from typing import Literal, get_args, get_origin

import click
import uvicorn
from fastapi import FastAPI

from rlstm_server.api.dependencies import Services
from rlstm_server.api.stream import FRAME_BYTES
from rlstm_server.app import EMBEDDED, create_app
from rlstm_server.check import check as check_all
from rlstm_server.check import report
from rlstm_server.errors import StartupError
from rlstm_server.logs import catch_stray_faults, configure_logs
from rlstm_server.process import bound_socket, prepare
from rlstm_server.settings import Settings, load_settings

FAREWELL_SECONDS = 1.5
"""What a stream that was ended by the drain gets to tell its reader so."""

OPTIONS = (
    *("host", "port", "data_dir", "redis_url", "device", "durability", "api_keys_file", "log_level"),
    *("install_functions", "allow_weaker", "threads", "rows", "cache_bytes", "audit_file"),
)
"""Settings that are options of the command too."""


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each of `OPTIONS`, as the settings describe them.

    Their values stay words, which the settings read and refuse by name.
    """
    return reduce(lambda given, name: _option(name)(given), reversed(OPTIONS), command)


def _option(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    field, flag = Settings.model_fields[name], f"--{name.replace('_', '-')}"
    default, is_bool = field.get_default(), field.annotation is bool
    words = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    usual = f" [{default}]" if isinstance(default, int | str) and not is_bool else ""
    return click.option(
        f"{flag}/--no-{flag[2:]}" if default is True else flag,
        is_flag=is_bool,
        default=None,
        help=f"{(field.description or '').removesuffix('.')}{usual}.",
        metavar="|".join(words) or None,
    )


@click.command()
@click.argument(
    "models",
    nargs=-1,
    metavar="[MODEL]...",
    help="A shipped model's name, a checkpoint folder, or NAME=FOLDER [both shipped models].",
)
@click.option(
    "--check", is_flag=True, help="Start nothing: say whether it would start, and what to do if not."
)
@click.option("as_json", "--json", is_flag=True, help="With --check: print JSON.")
@with_options
def serve(models: Sequence[str], check: bool, as_json: bool, **options: object) -> None:
    """Serve models whose sessions go on learning. Every option is also an environment variable RLSTM_*."""
    options["model"] = models or None
    if check:
        raise click.exceptions.Exit(report(check_all(**options), as_json=as_json))
    try:
        settings = load_settings(**options)
        configure_logs(settings.log_level, audit_file=settings.audit_file)
        run(settings)
    except StartupError as error:
        click.echo(f"rlstm serve: {error.detail}", err=True)
        raise click.exceptions.Exit(1) from None


def run(settings: Settings) -> None:
    """Serve until a signal ends it.

    Raises:
        StartupError: something that it needs is not there; nothing is left running.
    """
    with contextlib.closing(bound_socket(settings)) as bound:
        prepare(settings)
        app = create_app(settings)
        config = _uvicorn_config(app, settings)
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(_serve(app, config, settings, bound))


async def _serve(app: FastAPI, config: uvicorn.Config, settings: Settings, bound: socket.socket) -> None:
    loop, starting = asyncio.get_running_loop(), asyncio.current_task()
    catch_stray_faults(loop)
    server = _Server(config)
    server.on_signal = partial(loop.call_soon_threadsafe, starting.cancel if starting else server.end)
    with server.capture_signals(), contextlib.suppress(asyncio.CancelledError):
        async with app.router.lifespan_context(app):
            _settle_memory()
            services: Services = app.state.services
            server.greeting = _greeting(settings, services, bound)
            server.drain = partial(services.engine.close, settings.limits.drain_seconds)
            server.on_signal = partial(loop.call_soon_threadsafe, server.end)
            await server.serve(sockets=[bound])


class _Server(uvicorn.Server):
    """uvicorn, whose own handling of a signal would end the process by it once it has drained.

    `on_signal` ends the start-up while there is nothing to drain, and drains later.
    """

    on_signal: Callable[[], object]
    drain: Callable[[], Awaitable[None]]
    greeting = ""
    _draining: asyncio.Future[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Leave the signal to the event loop."""
        self.on_signal()

    def end(self) -> None:
        """Stop listening and wait for open work, which the drain ends; the second time, do not wait."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._draining = self._draining or asyncio.ensure_future(self.drain())

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        click.echo(self.greeting)


def _uvicorn_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        workers=1,  # told, or a variable of uvicorn's is read
        http="h11",
        limit_concurrency=settings.limits.connections,
        ws="websockets-sansio",
        ws_max_size=FRAME_BYTES,
        ws_per_message_deflate=False,  # a few bytes could become many
        lifespan="off",  # entered by us, so that its errors reach the person who started it
        log_config=None,
        access_log=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=[str(network) for network in settings.trusted_proxies],
        server_header=False,
        timeout_keep_alive=settings.limits.idle_seconds,
        timeout_graceful_shutdown=math.ceil(settings.limits.drain_seconds + FAREWELL_SECONDS),
    )


def _settle_memory() -> None:
    """Leave what was made at start out of later collections: walking all of it would hold up every answer."""
    gc.collect()
    gc.freeze()


def _greeting(settings: Settings, services: Services, bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    keys = "" if settings.has_keys else ", no keys: this machine only"
    store = services.about["store"]
    models = ", ".join(served.name for served in services.engine.models)
    if store == EMBEDDED:
        store = f"{store} in {settings.data_dir}"  # told here alone: callers need not know
    return f"rlstm serving {models} on http://{shown}:{port} (store: {store}{keys})"
