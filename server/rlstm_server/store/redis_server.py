"""One Redis or Valkey server, and one try of one command at it, with every failure given its honest name.

All of a try goes over one connection of redis-py's pool, so that a replica is waited for behind the change
itself. A connection is used again only if every reply on it was read to its end: whoever is cancelled, nobody
is given the reply to another's command.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
)

from rlstm_server.errors import InternalError, ServerError, StoreFull, StoreUnavailable
from rlstm_server.store.redis_address import Address, Endpoint

Argument = bytes | str | int | float
Command = tuple[Argument, ...]

SLOW_BYTES_PER_SECOND: Final = 4 << 20
"""What a busy store with a slow disk still takes in; a large command may take longer than a small one."""
LOADING: Final = "the store is loading its data"
"""What is said of a store that has started and does not answer yet."""

_ELSEWHERE: Final = frozenset({"READONLY", "MASTERDOWN", "CLUSTERDOWN"})
_PASSING: Final = frozenset({"TRYAGAIN"})
_TEMPORARY: Final = _ELSEWHERE | _PASSING | {"LOADING", "MISCONF", "BUSY", "NOREPLICAS"}


class NotApplied(Exception):
    """A try that changed nothing, for the reason in `error`.

    elsewhere   another server may take the command: this one is gone, or is none that takes changes
    passing     the same server may take it in a moment
    redirect    where a cluster says that the key is, or is on its way to
    """

    def __init__(
        self,
        error: ServerError,
        *,
        elsewhere: bool = False,
        passing: bool = False,
        redirect: AskError | None = None,
    ) -> None:
        super().__init__(error.detail)
        self.error = error
        self.elsewhere = elsewhere
        self.passing = passing
        self.redirect = redirect


class Patience(NamedTuple):
    """How long one server is waited for.

    timeout_s    for a small command, from the moment that it has a connection, and for connecting
    queue_s      for a connection, while all are in use
    connections  how many commands are under way at once
    """

    timeout_s: float
    queue_s: float
    connections: int


class Replication(NamedTuple):
    """How many replicas must have a change and all before it, how long to wait, and a write to wait for.

    The write is of no meaning. Waiting for it is waiting for all that was written before, by whichever
    connection; a change that had been made already is covered, too.
    """

    replicas: int
    within_s: float
    mark: Command


class RedisServer:
    """Sends commands to one server; `name` is what errors call it."""

    def __init__(self, address: Address, endpoint: Endpoint, patience: Patience) -> None:
        self.endpoint = endpoint
        self.name = str(endpoint)
        self._patience = patience
        self._permits = asyncio.Semaphore(patience.connections)
        kind, options = address.connection(endpoint)
        self.pool = ConnectionPool(connection_class=kind, max_connections=patience.connections, **options)

    async def send(
        self, command: Command, *, asking: bool = False, replication: Replication | None = None
    ) -> tuple[Any, int]:
        """Return the reply, and how many replicas have it (0 unless `replication` asks).

        Raises NotApplied when nothing was changed, RedisError or OSError when a change may have been made.
        `asking` takes a key that is on its way to this server.
        """
        allowance = sum(len(argument) for argument in command if isinstance(argument, bytes))
        allowance_s = allowance / SLOW_BYTES_PER_SECOND
        before: list[Command] = [("ASKING",)] if asking else []
        commands, awaited = [*before, command], 0
        if replication is not None:
            milliseconds = max(1, round(replication.within_s * 1000))
            commands += [*before, replication.mark, ("WAIT", replication.replicas, milliseconds)]
        async with self._connection(allowance_s) as connection:
            try:
                # both disconnect when they are cut short, so no reply is left for the next caller
                async with asyncio.timeout(self._patience.timeout_s + allowance_s):
                    await _written(connection, commands)
                    replies = [await _reply(connection) for _ in (*before, command)]
            except (BusyLoadingError, AuthenticationError) as error:
                raise _refusal(error) from error
            if replication is not None:
                awaited = await self._replicas(connection, replication.within_s, len(before) + 2)
            if isinstance(replies[-1], ResponseError):
                raise _refusal(replies[-1]) from replies[-1]
            return replies[-1], awaited

    async def close(self) -> None:
        """Close all connections; commands under way end as if the server were gone."""
        with suppress(RedisError, OSError):
            await self.pool.aclose()

    async def _replicas(self, connection: AbstractConnection, within_s: float, replies: int) -> int:
        """Read how many replicas have it all; 0 when that cannot be learnt."""
        try:
            async with asyncio.timeout(within_s + self._patience.timeout_s):
                *marked, number = [await _reply(connection) for _ in range(replies)]
        except (RedisError, OSError):
            return 0
        return 0 if any(isinstance(reply, ResponseError) for reply in (*marked, number)) else int(number)

    @asynccontextmanager
    async def _connection(self, allowance_s: float) -> AsyncIterator[AbstractConnection]:
        try:
            async with asyncio.timeout(self._patience.queue_s + allowance_s):
                await self._permits.acquire()
        except TimeoutError as error:
            raise NotApplied(StoreUnavailable("the store has more to do than it gets done")) from error
        try:
            connection = await self._connected()
            try:
                yield connection
            except NotApplied:
                raise
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
            finally:
                await self.pool.release(connection)
        finally:
            self._permits.release()

    async def _connected(self) -> AbstractConnection:
        try:
            async with asyncio.timeout(self._patience.timeout_s):
                connection: AbstractConnection = await self.pool.get_connection()  # type: ignore[no-untyped-call]
                return connection
        except (RedisError, OSError) as error:
            raise unreachable(error) from error


async def _written(connection: AbstractConnection, commands: list[Command]) -> None:
    try:
        await connection.send_packed_command(connection.pack_commands(commands))
    except RuntimeError as error:
        # so uvloop says that the connection was reset while nobody used it
        raise ConnectionResetError("the store reset the connection") from error


async def _reply(connection: AbstractConnection) -> Any:
    """Read one reply to its end; what the server refused is a value, since others may follow it."""
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def unreachable(error: Exception) -> NotApplied:
    """Name why no connection came about: nothing was sent."""
    causes = (error, error.__cause__, error.__context__)
    if any(isinstance(cause, AuthenticationError) for cause in causes):
        return NotApplied(StoreUnavailable("the store refuses the user or password"))
    if any(isinstance(cause, BusyLoadingError) for cause in causes):
        return NotApplied(StoreUnavailable(LOADING))
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return NotApplied(
            StoreUnavailable("the store and this server do not trust each other's certificates")
        )
    return NotApplied(StoreUnavailable("the store cannot be reached"), elsewhere=True)


def _refusal(error: RedisError) -> NotApplied:
    """Name what the server refused. Its text can hold arguments, so only its first word is passed on."""
    text = str(error)
    word = getattr(error, "status_code", None) or text.split(" ", 1)[0]
    if isinstance(error, AskError):
        reason = StoreUnavailable("the store is a cluster whose servers do not agree where a session is")
        return NotApplied(reason, redirect=error)
    if isinstance(error, OutOfMemoryError):
        return NotApplied(StoreFull("the store has no room; live sessions stay as they are"))
    if isinstance(error, BusyLoadingError):
        return NotApplied(StoreUnavailable(LOADING))
    if isinstance(error, AuthenticationError):
        return NotApplied(StoreUnavailable("the store refuses the user or password"))
    if isinstance(error, NoPermissionError):
        return NotApplied(InternalError("the store does not let this user do what sessions need"))
    if word in _TEMPORARY:
        reason = StoreUnavailable(f"the store takes no changes now ({word})")
        return NotApplied(reason, elsewhere=word in _ELSEWHERE, passing=word in _PASSING)
    if "Function not found" in text:
        return NotApplied(StoreUnavailable("the store has lost the function library; install it again"))
    return NotApplied(InternalError("the store refused a command"))
