"""What jobs ask, and the session that a job keeps between two runs: by a name, or in a file."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from rlstm_client import AsyncClient, AsyncSession, Retries
from rlstm_client.cli import inputs, output
from rlstm_client.cli.commands import DEFAULT_MODEL, LOCAL_GROUP, load
from rlstm_client.cli.exits import CommandError
from rlstm_client.errors import ImportRejectedError
from rlstm_client.models import Adapt
from rlstm_client.options import CreateOptions

T = TypeVar("T")

USUAL: Final = "subwords-base"
"""The model of jobs with prose, where none is named and the server has it."""

LASTING: Final = Retries(attempts=10)
"""For what goes on for days: a server that starts again is waited for, 45 to 90 seconds."""


@dataclass(frozen=True, kw_only=True)
class Service(inputs.Server):
    """What a command asks: a server, or one in this process."""

    local: bool = inputs.option("Compute here, without a server.", default=False)
    model: str | None = inputs.option(
        "Of the server's; with --local a shipped one, or a folder [for prose subwords-base]."
    )

    @asynccontextmanager
    async def client(self, usual: str | None = None) -> AsyncIterator[AsyncClient]:
        """Open a client of the server, or of one in this process, of the usual model where none is named.

        Raises:
            CommandError: there is no such model here, or what serves it is not installed.
        """
        if not self.local:
            async with AsyncClient(self.url, api_key=self.api_key) as client:
                yield client
            return
        serving = load(LOCAL_GROUP, "serving", "server")
        async with AsyncExitStack() as stack:
            try:
                transport = await stack.enter_async_context(serving(self.model or usual or DEFAULT_MODEL))
            except Exception as error:
                raise CommandError(str(error) or type(error).__name__) from error
            yield await stack.enter_async_context(AsyncClient("http://localhost", transport=transport))

    def run(self, work: Callable[[AsyncClient], Awaitable[T]], usual: str | None = None) -> T:
        """Do some work with a client."""

        async def run() -> T:
            async with self.client(usual) as client:
                return await work(client)

        return asyncio.run(run())

    async def named(self, client: AsyncClient, usual: str | None = None) -> str | None:
        """The model that requests name: the one that is wanted, or the usual one where the server has it."""
        if self.model and not self.local:
            return self.model
        return usual if usual and any(one["model"] == usual for one in (await client.info()).models) else None


@dataclass(frozen=True, kw_only=True)
class Kept(Service):
    """A job's session; one that has neither a name nor a file ends with the job.

    Raises:
        CommandError: a name goes with a server, a file with --local.
        OSError: the file cannot be written.
    """

    name: str | None = inputs.option("Keep the session under this name, and go on with it.")
    state: Path | None = inputs.option("With --local: keep the session in this file.")
    adapt: Adapt = inputs.option("What learns, of a new session.", default="both")

    def __post_init__(self) -> None:
        if self.state and not self.local:
            raise CommandError("--state goes with --local; a server keeps the session under a --name")
        if self.name and self.local:
            raise CommandError("--name goes with a server; with --local the session is kept in a --state")
        if self.state:
            output.check_place(self.state)

    @asynccontextmanager
    async def session(self, client: AsyncClient, usual: str | None = None) -> AsyncIterator[AsyncSession]:
        """Go on with the session, or make one, of the usual model where none is named and it is there."""
        session, given = None, CreateOptions(adapt=self.adapt)
        if model := await self.named(client, usual):
            given["model"] = model
        if self.name:
            given["name"] = self.name
            session = await client.sessions.find(self.name)
        elif self.state is not None and await asyncio.to_thread(self.state.exists):
            try:
                session = await client.sessions.import_session(self.state)
            except ImportRejectedError as error:
                raise CommandError(f"{self.state}: {error.detail}") from error
        session = session or await client.sessions.create(**given)
        try:
            yield session
        finally:
            if not self.name:
                await session.delete()

    async def save(self, session: AsyncSession) -> None:
        """Write the session as it is to the file that it is kept in, if it is in one."""
        if self.state:
            await session.export(self.state)


service, kept = inputs.given("service", Service), inputs.given("kept", Kept)
