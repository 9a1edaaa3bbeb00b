"""The Redis or Valkey servers of a store: which one has a key, and one try of one command at one of them.

redis-py gives connections, pools, Sentinels and the map of a cluster. Every failure gets its honest name.

All of a try goes over one connection of redis-py's pool, so that a replica is waited for behind the change
itself. A connection is used again only if every reply on it was read to its end: whoever is cancelled, nobody
is given the reply to another's command.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

from redis.asyncio import ConnectionPool, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    SlotNotCoveredError,
    TryAgainError,
)

from rlstm_server.errors import InternalError, ServerError, StoreFull, StoreUnavailable
from rlstm_server.store.redis_address import Address, Endpoint

Argument = bytes | str | int | float
Command = tuple[Argument, ...]

SLOW_BYTES_PER_SECOND: Final = 4 << 20
"""What a busy store with a slow disk still takes in; a large command may take longer than a small one."""
SLOTS: Final = 16_384
"""Of a cluster."""
LOADING: Final = "the store is loading its data"
"""What is said of a store that has started and does not answer yet."""

_WORDS: Final = {
    ReadOnlyError: "READONLY",
    MasterDownError: "MASTERDOWN",
    ClusterDownError: "CLUSTERDOWN",
    TryAgainError: "TRYAGAIN",
}
"""First words of refusals, which redis-py before 7.4 leaves out of an error's text."""

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
    """How many replicas must have a change and all before it, how long to wait, and a function that writes.

    That write is of no meaning. Waiting for it is waiting for all that was written before, by whichever
    connection; a change that had been made already is covered, too.
    """

    replicas: int
    within_s: float
    mark: str

    def commands(self, command: Command) -> list[Command]:
        """The write beside the first key of `command`, in its slot by what stands in braces, and the wait."""
        key = str(command[3 if command[0] == "FCALL" else 1])
        marked = ("FCALL", self.mark, 1, f"{key.rpartition(':')[0]}:mark")
        return [marked, ("WAIT", self.replicas, max(1, round(self.within_s * 1000)))]


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
            commands += [*before, *replication.commands(command)]
        async with self._connection(allowance_s) as connection:
            try:
                # both disconnect when they are cut short, so no reply is left for the next caller
                async with asyncio.timeout(self._patience.timeout_s + allowance_s):
                    await connection.send_packed_command(connection.pack_commands(commands))
                    replies = [await _reply(connection) for _ in (*before, command)]
            except (BusyLoadingError, AuthenticationError) as error:
                raise _refusal(error) from error
            except RuntimeError as error:
                # so uvloop says that the connection was reset while nobody used it
                raise ConnectionResetError("the store reset the connection") from error
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
            try:
                async with asyncio.timeout(self._patience.timeout_s):
                    connection: AbstractConnection = await self.pool.get_connection()  # type: ignore[no-untyped-call]
            except (RedisError, OSError) as error:
                raise unreachable(error) from error
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


async def _reply(connection: AbstractConnection) -> Any:
    """Read one reply to its end; what the server refused is a value, since others may follow it."""
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def unreachable(error: Exception) -> NotApplied:
    """Name why no connection came about: nothing was sent."""
    for cause in (error, error.__cause__, error.__context__):
        if reason := _reason(cause):
            return NotApplied(reason)
    return NotApplied(StoreUnavailable("the store cannot be reached"), elsewhere=True)


def _reason(error: BaseException | None) -> ServerError | None:
    """Name what has one name wherever it comes from."""
    match error:
        case AuthenticationError():
            return StoreUnavailable("the store refuses the user or password")
        case BusyLoadingError():
            return StoreUnavailable(LOADING)
        case OutOfMemoryError():
            return StoreFull("the store has no room; live sessions stay as they are")
        case NoPermissionError():
            return InternalError("the store does not let this user do what sessions need")
        case ssl.SSLError():
            return StoreUnavailable("the store and this server do not trust each other's certificates")
    return None


def _refusal(error: RedisError) -> NotApplied:
    """Name what the server refused. Its text can hold arguments, so only its first word is passed on."""
    if reason := _reason(error):
        return NotApplied(reason)
    if isinstance(error, AskError):
        reason = StoreUnavailable("the store is a cluster whose servers do not agree where a session is")
        return NotApplied(reason, redirect=error)
    text = str(error)
    word = next((word for kind, word in _WORDS.items() if isinstance(error, kind)), text.split(" ", 1)[0])
    if word in _TEMPORARY:
        reason = StoreUnavailable(f"the store takes no changes now ({word})")
        return NotApplied(reason, elsewhere=word in _ELSEWHERE, passing=word in _PASSING)
    if "Function not found" in text:
        return NotApplied(StoreUnavailable("the store has lost the function library; install it again"))
    return NotApplied(InternalError("the store refused a command"))


# ---- which server has a key -------------------------------------------------------------------------------


class Servers:
    """The servers of a store, each made once; of a store that is one server there is only that.

    `can_change` says whether another can take the place of one that fails.
    """

    can_change = False

    def __init__(self, address: Address, patience: Patience) -> None:
        self.address, self.patience = address, patience
        self._servers: dict[Endpoint, RedisServer] = {}

    def at(self, endpoint: Endpoint) -> RedisServer:
        """Return the server there."""
        if endpoint not in self._servers:
            self._servers[endpoint] = RedisServer(self.address, endpoint, self.patience)
        return self._servers[endpoint]

    async def server(self, key: str) -> RedisServer:
        """Return the primary that has the key. Raises NotApplied when none is known."""
        return self.at(self.address.endpoints[0])

    async def primaries(self) -> Sequence[RedisServer]:
        """Return every server that takes changes. Raises NotApplied when they are not known."""
        return (await self.server(""),)

    def suspect(self) -> None:
        """Look again before the next command: a server failed, or takes no changes."""

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(server.close() for server in self._servers.values()))


class _Sentinels(Servers):
    """A primary with replicas that Sentinels watch; when it fails, one of them takes its place."""

    can_change = True

    def __init__(self, address: Address, patience: Patience) -> None:
        super().__init__(address, patience)
        self._primary: RedisServer | None = None
        self._asking = asyncio.Lock()
        self._sentinels = Sentinel(  # type: ignore[no-untyped-call]
            [(endpoint.host, endpoint.port) for endpoint in address.endpoints],
            sentinel_kwargs=address.sentinel_options | {"socket_timeout": patience.timeout_s},
        )

    async def server(self, key: str) -> RedisServer:
        async with self._asking:
            if self._primary is None:
                self._primary = await self._find()
            return self._primary

    def suspect(self) -> None:
        self._primary = None

    async def close(self) -> None:
        with suppress(RedisError, OSError):
            await self._sentinels.aclose()
        await super().close()

    async def _find(self) -> RedisServer:
        """Ask who the primary is, and believe it only if that server agrees: it may have been replaced."""
        address, patience = self.address, self.patience
        try:
            async with asyncio.timeout(patience.timeout_s * len(address.endpoints)):
                server = self.at(Endpoint(*await self._sentinels.discover_master(address.name)))
        except (MasterNotFoundError, RedisError, OSError) as error:
            raise NotApplied(StoreUnavailable("no Sentinel knows a primary of the store")) from error
        try:
            role, _ = await server.send(("ROLE",))
        except (RedisError, OSError) as error:
            raise NotApplied(StoreUnavailable("the primary of the store does not answer")) from error
        if role[0] != b"master":
            raise NotApplied(StoreUnavailable("the store is changing its primary"))
        return server


class _Cluster(Servers):
    """The primaries of a cluster, found from those of its servers that the address names."""

    can_change = True

    def __init__(self, address: Address, patience: Patience) -> None:
        super().__init__(address, patience)
        nodes = [ClusterNode(endpoint.host, endpoint.port) for endpoint in address.endpoints]
        self._map = RedisCluster(startup_nodes=nodes, require_full_coverage=False, **address.cluster_options)
        self._is_current = False
        self._fetching = asyncio.Lock()

    async def server(self, key: str) -> RedisServer:
        await self._make_current()
        try:
            node = self._map.get_node_from_key(key)
        except SlotNotCoveredError:
            node = None
        if node is None:
            raise NotApplied(StoreUnavailable("no server of the cluster has this part of the store"))
        return self.at(Endpoint(node.host, int(node.port)))

    async def primaries(self) -> Sequence[RedisServer]:
        """Return the primaries of all slots; a part of the store that nobody has is an error."""
        await self._make_current()
        if len(self._map.nodes_manager.slots_cache) < SLOTS:
            raise NotApplied(StoreUnavailable("a part of the store has no server in the cluster"))
        places = sorted((node.host, int(node.port)) for node in self._map.get_primaries())
        return [self.at(Endpoint(*place)) for place in places]

    def suspect(self) -> None:
        self._is_current = False

    async def close(self) -> None:
        with suppress(RedisError, OSError):
            await self._map.aclose()
        await super().close()

    async def _make_current(self) -> None:
        async with self._fetching:
            if self._is_current:
                return
            try:
                async with asyncio.timeout(self.patience.timeout_s * 2):
                    await self._map.aclose()
                    await self._map.initialize()
            except (RedisClusterException, RedisError, OSError) as error:
                raise unreachable(error) from error
            self._is_current = True


TOPOLOGIES: Final[dict[str, type[Servers]]] = {
    "server": Servers,
    "sentinel": _Sentinels,
    "cluster": _Cluster,
}
