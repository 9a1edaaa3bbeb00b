"""`rlstm store …`: what an administrator does once for a store that servers share.

Sessions need a user who may do little; the function library is installed by one who may more.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import click

from rlstm_server.check import check_shared, report
from rlstm_server.errors import ServerError, StartupError
from rlstm_server.settings import Durability, load_settings
from rlstm_server.store.redis_check import install_functions, read_servers
from rlstm_server.store.redis_client import LIBRARY, RedisLink

_url = click.argument(
    "url",
    required=False,
    help="redis://, rediss://, unix://, sentinel(s):// or cluster(s)://; best given by RLSTM_REDIS_URL or"
    " a file of RLSTM_SECRETS_DIR, since others on this machine can see arguments.",
)


@click.command()
@_url
def install(url: str | None) -> None:
    """Install this release's function library on every primary; those of other releases stay."""
    try:
        asyncio.run(_install(url or _known_url()))
    except ServerError as error:
        click.echo(f"rlstm store install: {error.detail}", err=True)
        raise click.exceptions.Exit(1) from None


@click.command()
@_url
@click.option(
    "--durability",
    type=click.Choice(("fsync", "replica")),
    default="fsync",
    help="fsync, or replica: a replica must be there too.",
)
def check(url: str | None, durability: Durability) -> None:
    """Say whether servers would trust the store, as the user of the address; change nothing."""
    raise click.exceptions.Exit(report(check_shared(url or _known_url(), durability=durability)))


def _known_url() -> str:
    """The address that a server would use."""
    try:
        known = load_settings(host="127.0.0.1").redis_url  # it serves nobody: no keys are needed
    except StartupError as error:
        raise click.BadParameter(error.detail) from None
    if known is None:
        raise click.BadParameter("give it, or set RLSTM_REDIS_URL", param_hint="URL")
    return known.get_secret_value()


async def _install(url: str) -> None:
    async with aclosing(RedisLink(url)) as link:
        servers = await read_servers(link)
        await install_functions(link)
    for server in servers:
        click.echo(f"{server.name}: {server.product}, {LIBRARY} installed")
