"""`rlstm serve --check`: whether a server would start here, and what to do where it would not.

One line a check. Each thing is tried as the server would use it; nothing is changed, no secret is printed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from rlstm_model import native
from rlstm_model.native.library import NativeUnavailable
from rlstm_server.api.auth import load_keys
from rlstm_server.engine.models import numerics_id
from rlstm_server.errors import ServerError, StartupError
from rlstm_server.models_loading import find_device, load_models
from rlstm_server.process import bound_socket, needed_files
from rlstm_server.settings import Settings, load_settings
from rlstm_server.store.embedded import EmbeddedValkey, holder_of
from rlstm_server.store.redis_check import (
    Server,
    check_functions,
    check_settings,
    find_concerns,
    read_servers,
)
from rlstm_server.store.redis_client import RedisLink
from rlstm_server.telemetry import provider_of_environment

LITTLE_ROOM: Final = 2**30
NO_ROOM: Final = 2**26
FULL: Final = 0.95
"""A disk of which so much is taken fills up before somebody looks again."""

SKEW_SECONDS: Final = 2.0

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """What one check found. `advice` says what to do; it is empty where nothing has to be done."""

    name: str
    status: Status
    said: str
    advice: str = ""

    def line(self) -> str:
        """One line, whatever was said."""
        told = f"{self.said}: {self.advice}" if self.advice else self.said
        return f"{self.status:<5} {self.name:<12} {' '.join(told.split())}"


def check(**options: object) -> Iterator[Finding]:
    """Check one thing after the other with these options of `rlstm serve`."""
    try:
        settings = load_settings(**options)
    except StartupError as error:
        yield Finding("settings", "fail", error.detail, "set it right; `rlstm serve --help` names them")
        return
    yield from _check_with(settings)


def _check_with(settings: Settings) -> Iterator[Finding]:
    embedded = settings.redis_url is None and settings.durability != "memory"
    holder = holder_of(settings.data_dir) if embedded else None
    yield _check_device(settings)
    yield _check_port(settings, holder)
    yield from _check_process(settings)
    yield _check_keys(settings)
    if embedded:
        yield _check_folder(settings.data_dir)
    yield from asyncio.run(_check_store(settings, holder))
    yield from _check_models(settings)


def _check_device(settings: Settings) -> Finding:
    """Whether the model can compute where it should, and what it computes with."""
    try:
        device = find_device(settings)
        core = f"{native.identity()} by {native.instructions()}"
    except NativeUnavailable as error:
        return Finding("device", "fail", str(error))
    except StartupError as error:
        return Finding(
            "device", "fail", str(error), "see nvidia-smi, install the extra gpu, or use --device cpu"
        )
    if device == "cuda":
        return Finding("device", "ok", numerics_id(device))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = settings.threads or cores
    said = f"cpu, {threads} threads of {cores} cores, native core {core}"
    if threads > cores:
        return Finding("device", "warn", said, f"threads wait for each other: use --threads {cores}")
    return Finding("device", "ok", said)


def _check_port(settings: Settings, holder: str | None) -> Finding:
    """Whether the port can be bound. `holder` is the process of a server that has the data folder already."""
    try:
        bound_socket(settings).close()
    except StartupError as error:
        if holder is not None:
            advice = f"process {holder} serves already; if there, all is well"
            return Finding("port", "warn", error.detail, advice)
        return Finding("port", "fail", error.detail)
    return Finding("port", "ok", f"{settings.host}:{settings.port} is free")


def _check_process(settings: Settings) -> Iterator[Finding]:
    """Whether its files can be opened, and OpenTelemetry's variables be used."""
    try:
        yield Finding("open files", "ok", f"{needed_files(settings):,} at most")
    except StartupError as error:
        yield Finding("open files", "fail", error.detail, "raise the limit (ulimit -n), or lower the setting")
    if settings.otel:
        try:
            provider_of_environment().shutdown()
            yield Finding("tracing", "ok", "by OpenTelemetry")
        except StartupError as error:
            yield Finding("tracing", "fail", error.detail)
    if (path := settings.audit_file) is not None:
        try:
            with path.open("a") if path.exists() else tempfile.TemporaryFile(dir=path.absolute().parent):
                yield Finding("audit file", "ok", f"{path} can be written")
        except OSError as error:
            yield Finding("audit file", "fail", f"RLSTM_AUDIT_FILE: cannot write {path}: {error.strerror}")


def _check_folder(folder: Path) -> Finding:
    """Whether the data folder, or the nearest above it that is there, can be written and has room."""
    place = _nearest(folder)
    try:
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(b"rlstm")
        room = shutil.disk_usage(place)
    except OSError as error:
        advice = "give it to this user, or choose another with --data-dir"
        return Finding("data folder", "fail", f"{folder} cannot be written ({error.strerror})", advice)
    taken = 1 - room.free / room.total
    said = f"{folder}, {room.free / 2**30:,.1f} GiB free, {taken:.0%} of the disk taken"
    if room.free < NO_ROOM:
        return Finding("data folder", "fail", said, "make room: no change could be kept")
    if room.free < LITTLE_ROOM or taken > FULL:
        return Finding("data folder", "warn", said, "make room before it is full")
    return Finding("data folder", "ok", said)


def _nearest(folder: Path) -> Path:
    """Give the folder, or the nearest above it that is there."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def _check_keys(settings: Settings) -> Finding:
    """Whether the keys can be used; none of them is told."""
    try:
        ring = load_keys(settings)
    except StartupError as error:
        return Finding("keys", "fail", error.detail, "mend the file, or name another")
    return Finding("keys", "ok", "none: this machine only" if ring is None else "callers must show one")


def _check_models(settings: Settings) -> Iterator[Finding]:
    """Whether each model is there, whole, and calibrated, and whether all can be served together."""
    try:
        models = load_models(settings)
    except StartupError as error:
        yield Finding("model", "fail", error.detail, "name another by --model; `rlstm models` lists them")
        return
    for served in models:
        weights = f"{served.parameters.config.num_parameters:,} weights"
        said = f"{served.name}, {weights}, fingerprint {served.fingerprint[:12]}"
        if served.rules:
            yield Finding("model", "ok", f"{said}, {len(served.rules)} rules")
        else:
            advice = "to have sessions learn, run `rlstm calibrate` on its folder"
            yield Finding("model", "warn", f"{said}, not calibrated", advice)


async def _check_store(settings: Settings, holder: str | None) -> list[Finding]:
    """Whether the store can be used and keeps what is promised; its settings and data stay as they are.

    `holder` is the process of a server that has the data folder.
    """
    if settings.redis_url is not None:
        return await _shared(settings, settings.redis_url.get_secret_value())
    if settings.durability == "memory":
        return [Finding("store", "warn", "none: sessions end with the server", "for tests only")]
    if holder is not None:
        said = f"{settings.data_dir} is in use by process {holder}"
        return [Finding("store", "warn", said, "a second server needs a --data-dir of its own")]
    try:
        async with _embedded(settings.data_dir) as url:
            server = (await _servers(url))[0]
    except ServerError as error:
        return [Finding("store", "fail", error.detail, "choose another --data-dir, or set RLSTM_REDIS_URL")]
    except OSError as error:
        said = f"the embedded store does not start ({error.strerror})"
        return [Finding("store", "fail", said, "choose another --data-dir, or set RLSTM_REDIS_URL")]
    return [Finding("store", "ok", f"embedded {server.product}, started and ended")]


@asynccontextmanager
async def _embedded(folder: Path) -> AsyncIterator[str]:
    """Run the embedded store on its folder or, while there is none, on one beside that goes again."""
    folder, place = folder.absolute(), _nearest(folder)  # noqa: ASYNC240 - nobody else waits
    if place == folder:
        store, beside = EmbeddedValkey(folder), None
    else:
        beside = tempfile.TemporaryDirectory(prefix=".rlstm-check-", dir=place)
        store = EmbeddedValkey(Path(beside.name))
    try:
        await store.start()
        yield store.url
    finally:
        await store.stop()
        if beside is not None:
            beside.cleanup()


async def _servers(url: str) -> list[Server]:
    link = RedisLink(url, connections=1)
    try:
        return await read_servers(link)
    finally:
        await link.close()


async def _shared(settings: Settings, url: str) -> list[Finding]:
    """Say of a store that servers share what `rlstm store check` says, and how far its clock is from ours."""
    found = []
    try:
        link = RedisLink(url)
        try:
            servers = await read_servers(link)
            kept = await check_settings(
                link, servers, wanted=settings.durability, allow_weaker=settings.allow_weaker
            )
            products = ", ".join(f"{server.product}, {server.replicas} replicas" for server in servers)
            found.append(Finding("store", "ok", f"{products}; a change survives: {kept}"))
            found.append(await _functions(link, settings))
            found += [
                Finding("store user", "warn", concern, "deploy/redis shows a user with few rights, and TLS")
                for concern in await find_concerns(link)
            ]
            found += await _clocks(link)
        finally:
            await link.close()
    except ServerError as error:
        found.append(
            Finding("store", "fail", error.detail, "see `rlstm store check` and `rlstm store install`")
        )
    return found


async def _functions(link: RedisLink, settings: Settings) -> Finding:
    try:
        await check_functions(link)
    except StartupError as error:
        if settings.install_functions:
            advice = "`rlstm serve` installs it at its start, if its user may; else `rlstm store install`"
            return Finding("functions", "warn", error.detail, advice)
        return Finding("functions", "fail", error.detail, "let an administrator run `rlstm store install`")
    return Finding("functions", "ok", "this release's")


async def _clocks(link: RedisLink) -> list[Finding]:
    try:
        replies = await link.call_all("TIME")
    except ServerError:  # the user may not ask
        return []
    apart = max(abs(time.time() - int(reply[0]) - int(reply[1]) / 1e6) for reply in replies.values())
    if apart > SKEW_SECONDS:
        advice = "let both follow one time server: sessions expire by the store's"
        return [Finding("clocks", "warn", f"the store's is {apart:,.0f} s from this machine's", advice)]
    return [Finding("clocks", "ok", "the store's is this machine's")]
