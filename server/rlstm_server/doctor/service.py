"""What a server is made of: its keys, its store, its model. Each is tried as `rlstm serve` would use it."""

import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import torch

from rlstm_model.adaptation.calibration import CalibrationError, load_calibration
from rlstm_model.checkpoint import CheckpointError, load
from rlstm_server.api.auth import load_keys
from rlstm_server.doctor.finding import Finding
from rlstm_server.doctor.machine import nearest
from rlstm_server.engine.models import check_apart
from rlstm_server.errors import ServerError, StartupError
from rlstm_server.settings import Settings
from rlstm_server.store.embedded import EmbeddedValkey
from rlstm_server.store.redis_check import (
    Server,
    check_functions,
    check_settings,
    find_concerns,
    read_servers,
)
from rlstm_server.store.redis_link import RedisLink

SKEW_SECONDS: Final = 2.0


def check_keys(settings: Settings) -> Finding:
    """Whether the keys can be used; none of them is told."""
    try:
        ring = load_keys(settings)
    except StartupError as error:
        return Finding("keys", "fail", error.detail, "mend the file, or name another")
    return Finding("keys", "ok", "none: this machine only" if ring is None else "callers must show one")


def check_models(settings: Settings) -> Iterator[Finding]:
    """Whether each model is there, whole, and calibrated, and whether all can be served together."""
    names, identities = [], []
    for setting in settings.models:
        began = time.monotonic()
        try:
            checkpoint = load(setting.place, torch.device("cpu"))
            file = checkpoint.adaptation_file
            calibrated = None if file is None else load_calibration(file, checkpoint.model)
        except (CheckpointError, CalibrationError) as error:
            yield Finding("model", "fail", str(error), "name another by --model; `rlstm models` lists them")
            continue
        name = setting.name or checkpoint.name
        names.append(name)
        identities.append((checkpoint.fingerprint, calibrated.fingerprint if calibrated else ""))
        said = (
            f"{name}, {checkpoint.model.config.num_parameters:,} weights,"
            f" fingerprint {checkpoint.fingerprint[:12]}, loaded in {time.monotonic() - began:.1f} s"
        )
        if calibrated is None or not calibrated.choices:
            advice = f"to have sessions learn, rlstm calibrate {setting.place}"
            yield Finding("model", "warn", f"{said}, not calibrated", advice)
        else:
            yield Finding("model", "ok", f"{said}, {len(calibrated.choices)} rules")
    try:
        check_apart(names, identities)
    except ValueError as error:
        yield Finding("models", "fail", str(error), "name each once; NAME=FOLDER gives one another name")


async def check_store(settings: Settings, holder: str | None) -> list[Finding]:
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
    folder, place = folder.absolute(), nearest(folder)  # noqa: ASYNC240 - nobody else waits
    if place == folder:
        store, beside = EmbeddedValkey(folder), None
    else:
        beside = tempfile.TemporaryDirectory(prefix=".rlstm-doctor-", dir=place)
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
