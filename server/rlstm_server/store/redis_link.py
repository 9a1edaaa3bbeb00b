"""One command and its reply over a pool of Redis connections, with every failure given its honest name.

Client libraries re-send commands on a time-out, which applies them twice. Here the library's retries are off,
and a command is sent again only by `RedisLink.call`, whose commands all have the same effect once or twice.
"""

import asyncio
from typing import Any, Final, NamedTuple

from redis.asyncio.connection import BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
)

from rlstm_server.errors import InternalError, OutcomeUnknown, StartupError, StoreFull, StoreUnavailable

Argument = bytes | str | int | float

TRIES: Final = 2
SLOW_BYTES_PER_SECOND: Final = 4 << 20
"""What a busy store with a slow disk still takes in; a large command may take longer than a small one."""
_TEMPORARY: Final = frozenset(
    {"LOADING", "MISCONF", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "NOREPLICAS"}
)
_SCHEMES: Final = ("redis://", "rediss://", "unix://")


class Reply(NamedTuple):
    """What the server said; `resent` when an earlier try of the same call may have been applied."""

    content: Any
    resent: bool


class RedisLink:
    """Sends commands to the server at `url` (redis://, rediss:// or unix://).

    timeout_s       for one try of a small command, from the moment that it has a connection; each gets two
    connections     how many commands are under way at once; more wait, and the wait does not count
    """

    def __init__(self, url: str, *, timeout_s: float = 1.5, connections: int = 8) -> None:
        if not url.startswith(_SCHEMES):
            raise StartupError(f"the store's address must start with one of {', '.join(_SCHEMES)}")
        self._timeout_s = timeout_s
        try:
            self._pool = BlockingConnectionPool.from_url(
                url,
                max_connections=connections,
                timeout=None,
                socket_timeout=10 * timeout_s,  # bounds a handshake, which no timeout of ours covers
                socket_connect_timeout=timeout_s,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
                driver_info=None,
            )
        except ValueError as error:
            raise StartupError("the store's address cannot be understood") from error

    async def call(self, *command: Argument, changes: bool) -> Reply:
        """Return the reply to `command`, which must be safe to apply twice.

        It is sent once more when the first try leaves open whether it was applied. Raises StoreFull and
        StoreUnavailable when it was not applied, OutcomeUnknown when a change may have been.
        """
        in_doubt = False
        for _ in range(TRIES):
            try:
                return Reply(await self._try(command), in_doubt)
            except _NotApplied as failure:
                if in_doubt and changes:
                    break
                raise failure.error from failure.__cause__
            except (RedisError, OSError):
                in_doubt = True
        if changes:
            raise OutcomeUnknown("the store did not answer; repeat with the same key to learn the outcome")
        raise StoreUnavailable("the store does not answer")

    async def _try(self, command: tuple[Argument, ...]) -> Any:
        sent = False
        try:
            connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
            try:
                async with asyncio.timeout(self._timeout_s + _size(command) / SLOW_BYTES_PER_SECOND):
                    sent = True
                    # both disconnect when they are cut short, so no reply is left for the next caller
                    await connection.send_command(*command)
                    return await connection.read_response()
            finally:
                await asyncio.shield(self._pool.release(connection))
        except (ResponseError, BusyLoadingError, AuthenticationError) as error:
            raise _NotApplied(_refusal(error)) from error
        except (RedisError, OSError) as error:
            if sent:
                raise
            raise _NotApplied(StoreUnavailable("the store cannot be reached")) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.disconnect()


def _size(command: tuple[Argument, ...]) -> int:
    return sum(len(argument) for argument in command if isinstance(argument, bytes))


class _NotApplied(Exception):
    """The try changed nothing, for the reason in `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _refusal(error: RedisError) -> Exception:
    """Name what the server refused. Its text can hold arguments, so only its first word is passed on."""
    if isinstance(error, OutOfMemoryError):
        return StoreFull("the store has no room; live sessions stay as they are")
    if isinstance(error, BusyLoadingError):
        return StoreUnavailable("the store is loading its data")
    if isinstance(error, AuthenticationError):
        return StoreUnavailable("the store refuses the user or password")
    text = str(error)
    word = text.split(" ", 1)[0]
    if word in _TEMPORARY:
        return StoreUnavailable(f"the store takes no changes now ({word})")
    if "Function not found" in text:
        return StoreUnavailable("the store has lost the function library; restart the server to install it")
    return InternalError("the store refused a command")
