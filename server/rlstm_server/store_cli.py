"""`rlstm store …`: what an administrator does once for a store that servers share.

Sessions need a user who may do little; the function library is installed by one who may more.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Annotated

import typer

from rlstm_server.check import check_shared, report
from rlstm_server.errors import ServerError, StartupError
from rlstm_server.settings import Durability, load_settings
from rlstm_server.store.redis_check import install_functions, read_servers
from rlstm_server.store.redis_client import LIBRARY, RedisLink

Url = Annotated[
    str | None,
    typer.Argument(
        help="redis://, rediss://, unix://, sentinel(s):// or cluster(s)://; best given by RLSTM_REDIS_URL or"
        " a file of RLSTM_SECRETS_DIR, since others on this machine can see arguments.",
    ),
]
Wanted = Annotated[str, typer.Option("--durability", help="fsync, or replica: a replica must be there too.")]


def install(url: Url = None) -> None:
    """Install this release's function library on every primary; those of other releases stay."""
    try:
        asyncio.run(_install(url or _known_url()))
    except ServerError as error:
        typer.echo(f"rlstm store install: {error.detail}", err=True)
        raise typer.Exit(1) from None


def check(url: Url = None, durability: Wanted = "fsync") -> None:
    """Say whether servers would trust the store, as the user of the address; change nothing."""
    if durability not in ("fsync", "replica"):
        raise typer.BadParameter("must be fsync or replica", param_hint="--durability")
    wanted: Durability = "replica" if durability == "replica" else "fsync"
    raise typer.Exit(report(check_shared(url or _known_url(), durability=wanted)))


def _known_url() -> str:
    """The address that a server would use."""
    try:
        known = load_settings(host="127.0.0.1").redis_url  # it serves nobody: no keys are needed
    except StartupError as error:
        raise typer.BadParameter(error.detail) from None
    if known is None:
        raise typer.BadParameter("give it, or set RLSTM_REDIS_URL", param_hint="URL")
    return known.get_secret_value()


async def _install(url: str) -> None:
    async with aclosing(RedisLink(url)) as link:
        servers = await read_servers(link)
        await install_functions(link)
    for server in servers:
        typer.echo(f"{server.name}: {server.product}, {LIBRARY} installed")
