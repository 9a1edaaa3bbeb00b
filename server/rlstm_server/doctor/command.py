"""`rlstm doctor`: one line a check, what to do where something is wrong, and an exit code."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rlstm_server.doctor.finding import Finding
from rlstm_server.doctor.machine import (
    check_clock,
    check_device,
    check_folder,
    check_packages,
    check_port,
    check_python,
)
from rlstm_server.doctor.service import check_keys, check_models, check_store
from rlstm_server.errors import StartupError
from rlstm_server.settings import Settings, load_settings
from rlstm_server.store.embedded import holder_of

FAILED = 1


def doctor(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="A shipped model's name, a checkpoint folder, or NAME=FOLDER [bytes-small].",
        ),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to bind [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind [8000].")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the embedded store.")] = None,
    redis_url: Annotated[str | None, typer.Option(help="Redis or Valkey to use instead.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda [auto].")] = None,
    durability: Annotated[str | None, typer.Option(help="fsync, replica or memory [fsync].")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads that compute.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Say whether `rlstm serve` would start here with the same settings, and what to do if not.

    Exit code 1 where something fails; a warning alone is 0. Nothing is changed, no secret is printed.
    """
    found = []
    for finding in _look(
        model=tuple(models) if models else None,
        host=host,
        port=port,
        data_dir=data_dir,
        redis_url=redis_url,
        device=device,
        durability=durability,
        threads=threads,
    ):
        found.append(finding)
        if not as_json:
            typer.echo(finding.line())
    well = all(finding.status != "fail" for finding in found)
    if as_json:
        typer.echo(json.dumps({"ok": well, "checks": [asdict(finding) for finding in found]}))
    if not well:
        raise typer.Exit(FAILED)


def _look(**options: object) -> Iterable[Finding]:
    """Look at one thing after the other: what needs no settings first."""
    yield check_python()
    yield from check_packages()
    yield check_clock()
    try:
        settings = load_settings(**options)
    except StartupError as error:
        yield Finding("settings", "fail", error.detail, "set it right; `rlstm serve --help` names them")
        return
    yield from _look_with(settings)


def _look_with(settings: Settings) -> Iterable[Finding]:
    embedded = settings.redis_url is None and settings.durability != "memory"
    holder = holder_of(settings.data_dir) if embedded else None
    yield check_device(settings.device, settings.threads)
    yield check_port(settings.host, settings.port, holder)
    yield check_keys(settings)
    if embedded:
        yield check_folder(settings.data_dir)
    yield from asyncio.run(check_store(settings, holder))
    yield from check_models(settings)
