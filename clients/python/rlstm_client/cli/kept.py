"""Sessions that a job keeps between two runs: by a name on a server, or in a file where there is none."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from rlstm_client import AsyncClient, AsyncSession
from rlstm_client.cli import commands, output
from rlstm_client.cli.exits import CommandError
from rlstm_client.models import Adapt
from rlstm_client.options import CreateOptions

Name = Annotated[str | None, typer.Option(help="Keep the session under this name, and go on with it.")]
State = Annotated[Path | None, typer.Option(help="With --local: keep the session in this file.")]

USUAL: Final = "subwords-base"
"""The model of jobs with prose, where none is named and the server has it."""


@dataclass(frozen=True)
class KeptSession:
    """A session, and the file that it is kept in, if it is in one."""

    session: AsyncSession
    state: Path | None = None

    async def save(self) -> None:
        """Write the session as it is to the file that it is kept in."""
        if self.state is not None:
            await self.session.export(self.state)


def check(*, local: bool, names: Sequence[str], states: Sequence[Path]) -> None:
    """Refuse what cannot be kept, before anything is learned.

    Raises:
        CommandError: a name goes with a server, a file with --local.
        OSError: the file cannot be written.
    """
    if states and not local:
        raise CommandError("--state goes with --local; a server keeps the session under a --name")
    if names and local:
        raise CommandError("--name goes with a server; with --local the session is kept in a --state")
    for state in states:
        output.check_place(state)


def wanted(adapt: Adapt, *, name: str | None, local: bool, model: str | None) -> CreateOptions:
    """What a new session is to be; here, where there is one model, none is named."""
    options: CreateOptions = {"adapt": adapt}
    if model and not local:
        options["model"] = model
    if name:
        options["name"] = name
    return options


@asynccontextmanager
async def served(
    url: str, api_key: str | None, local: bool, model: str | None, usual: str | None = None
) -> AsyncIterator[AsyncClient]:
    """Open a client of a server, or of one in this process, of the usual model where none is named."""
    if local:
        async with commands.serving_locally(model or usual) as client:
            yield client
    else:
        async with AsyncClient(url, api_key=api_key) as client:
            yield client


@asynccontextmanager
async def opened(
    client: AsyncClient, given: CreateOptions, state: Path | None = None, usual: str | None = None
) -> AsyncIterator[KeptSession]:
    """Go on with the session of a name or a file, or make one as wanted; what is not kept ends with it.

    One that is made, and of which no model is wanted, is of the usual one where the server has it.
    """
    session = None
    if usual and "model" not in given and await has(client, usual):
        given = {**given, "model": usual}
    if state is not None and await asyncio.to_thread(state.exists):
        session = await client.sessions.import_session(state)
    elif "name" in given:
        session = await client.sessions.find(given["name"])
    session = session or await client.sessions.create(**given)
    try:
        yield KeptSession(session, state)
    finally:
        if "name" not in given:
            await session.delete()


async def has(client: AsyncClient, model: str) -> bool:
    """Whether a server has this model."""
    return any(one["model"] == model for one in (await client.info()).models)
