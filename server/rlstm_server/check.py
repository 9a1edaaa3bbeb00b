"""`rlstm serve --check`: whether a server would start here, and what to do where it would not.

One line a check. Each thing is tried as the server would use it; nothing is changed, no secret is printed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, aclosing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

import click

from rlstm_model import native
from rlstm_model.native.library import NativeUnavailable
from rlstm_server.api.auth import load_keys
from rlstm_server.app import find_device, load_models
from rlstm_server.engine.models import numerics_id
from rlstm_server.errors import ServerError, StartupError
from rlstm_server.process import bound_socket, needed_files
from rlstm_server.settings import Durability, Settings, load_settings
from rlstm_server.store.embedded import EmbeddedValkey, holder_of
from rlstm_server.store.redis_check import check_functions, check_settings, find_concerns, read_servers
from rlstm_server.store.redis_client import RedisLink
from rlstm_server.telemetry import provider_of_environment

LITTLE_ROOM: Final = 2**30
NO_ROOM: Final = 2**26
FULL: Final = 0.95
"""A disk of which so much is taken fills up before somebody looks again."""

SKEW_SECONDS: Final = 2.0
USER: Final = "deploy/redis shows a user with few rights, and TLS"

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


def report(findings: Iterable[Finding], *, as_json: bool = False) -> int:
    """Print what every check found; 1 where something fails, while a warning alone is 0."""
    found = []
    for finding in findings:
        found.append(finding)
        if not as_json:
            click.echo(finding.line())
    well = all(finding.status != "fail" for finding in found)
    if as_json:
        click.echo(json.dumps({"ok": well, "checks": [asdict(finding) for finding in found]}))
    return 0 if well else 1


def check(**options: object) -> Iterator[Finding]:
    """Check one thing after the other with these options of `rlstm serve`."""
    try:
        settings = load_settings(**options)
    except StartupError as error:
        yield Finding("settings", "fail", error.detail, "set it right; `rlstm serve --help` names them")
        return
    embedded = settings.redis_url is None and settings.durability != "memory"
    holder = holder_of(settings.data_dir) if embedded else None
    yield _check_device(settings)
    yield _check_port(settings, holder)
    limit = "raise the limit (ulimit -n), or lower the setting"
    yield _tried("open files", lambda: f"{needed_files(settings):,} at most", limit)
    if settings.otel:
        yield _tried("tracing", _trace)
    if settings.audit_file is not None:
        yield _tried("audit file", partial(_write_audit_file, settings.audit_file))
    yield _tried("keys", partial(_read_keys, settings), "mend the file, or name another")
    if embedded:
        yield _check_folder(settings.data_dir)
    if settings.redis_url is not None:
        yield from check_shared(
            settings.redis_url.get_secret_value(),
            durability=settings.durability,
            allow_weaker=settings.allow_weaker,
            may_install=settings.install_functions,
        )
    else:
        yield _check_own_store(settings, holder)
    yield from _check_models(settings)


def _tried(name: str, work: Callable[[], str], advice: str = "") -> Finding:
    """What is well, as `work` says, or fails as the server would refuse it."""
    try:
        return Finding(name, "ok", work())
    except ServerError as error:
        return Finding(name, "fail", error.detail, advice)


def _check_device(settings: Settings) -> Finding:
    """Whether the model can compute where it should, and what it computes with."""
    try:
        device = find_device(settings)
        core = f"{native.identity()} by {native.instructions()}"
    except NativeUnavailable as error:
        return Finding("device", "fail", str(error))
    except StartupError as error:
        advice = "see nvidia-smi, install the extra gpu, or use --device cpu"
        return Finding("device", "fail", error.detail, advice)
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


def _trace() -> str:
    provider_of_environment().shutdown()
    return "by OpenTelemetry"


def _write_audit_file(path: Path) -> str:
    try:
        with path.open("a") if path.exists() else tempfile.TemporaryFile(dir=path.absolute().parent):
            return f"{path} can be written"
    except OSError as error:
        raise StartupError(f"RLSTM_AUDIT_FILE: cannot write {path}: {error.strerror}") from None


def _read_keys(settings: Settings) -> str:
    """Whether the keys can be used; none of them is told."""
    return "none: this machine only" if load_keys(settings) is None else "callers must show one"


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


def _check_own_store(settings: Settings, holder: str | None) -> Finding:
    """Whether a store of its own can be used. `holder` is a server's process that has the data folder."""
    if settings.durability == "memory":
        return Finding("store", "warn", "none: sessions end with the server", "for tests only")
    if holder is not None:
        said = f"{settings.data_dir} is in use by process {holder}"
        return Finding("store", "warn", said, "a second server needs a --data-dir of its own")
    advice = "choose another --data-dir, or set RLSTM_REDIS_URL"
    return _tried("store", lambda: asyncio.run(_embedded(settings.data_dir)), advice)


async def _embedded(folder: Path) -> str:
    """Run the embedded store on its folder or, while there is none, on one beside that goes again."""
    named, folder, place = folder, folder.absolute(), _nearest(folder)  # noqa: ASYNC240 - nobody else waits
    try:
        with ExitStack() as stack:
            if place != folder:
                beside = tempfile.TemporaryDirectory(prefix=".rlstm-check-", dir=place)
                folder = Path(stack.enter_context(beside))
            store = EmbeddedValkey(folder)
            try:
                await store.start()
                async with aclosing(RedisLink(store.url, connections=1)) as link:
                    (server,) = await read_servers(link)
            finally:
                await store.stop()
    except OSError as error:
        raise StartupError(f"the data folder {named} cannot be used: {error.strerror}") from error
    return f"embedded {server.product}, started and ended"


def check_shared(
    url: str, *, durability: Durability, allow_weaker: bool = False, may_install: bool = False
) -> list[Finding]:
    """Whether servers would trust the store that they share, as the user of its address."""

    async def found() -> list[Finding]:
        async with aclosing(RedisLink(url, connections=1)) as link:
            servers = await read_servers(link)
            kept = await check_settings(link, servers, wanted=durability, allow_weaker=allow_weaker)
            told = [f"{server.name}: {server.product}, {server.replicas} replicas" for server in servers]
            return [
                Finding("store", "ok", f"{'; '.join(told)}; a change survives: {kept}"),
                await _functions(link, may_install=may_install),
                *[Finding("store user", "warn", one, USER) for one in await find_concerns(link)],
                *await _clocks(link),
            ]

    try:
        return asyncio.run(found())
    except ServerError as error:
        advice = "deploy/redis shows how a store is set up"
        return [Finding("store", "fail", error.detail, advice)]


async def _functions(link: RedisLink, *, may_install: bool) -> Finding:
    try:
        await check_functions(link)
    except StartupError as error:
        if may_install:
            advice = "`rlstm serve` installs it at its start, if its user may; else `rlstm store install`"
            return Finding("functions", "warn", error.detail, advice)
        return Finding("functions", "fail", error.detail, "let an administrator run `rlstm store install`")
    return Finding("functions", "ok", "this release's")


async def _clocks(link: RedisLink) -> list[Finding]:
    """How far the store's clock is from ours; nothing where its user may not ask."""
    try:
        replies = await link.call_all("TIME")
    except ServerError:
        return []
    apart = max(abs(time.time() - int(reply[0]) - int(reply[1]) / 1e6) for reply in replies.values())
    if apart > SKEW_SECONDS:
        advice = "let both follow one time server: sessions expire by the store's"
        return [Finding("clocks", "warn", f"the store's is {apart:,.0f} s from this machine's", advice)]
    return [Finding("clocks", "ok", "the store's is this machine's")]
