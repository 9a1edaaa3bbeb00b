"""Commands to the servers of a store: which one, how often, and what is known afterwards.

redis-py gives connections, pools, Sentinels and the map of a cluster, with its own retries off: they re-send
commands on a time-out, which applies them twice. A command is sent again only by `RedisLink.call`, whose
commands all have the same effect once or twice.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from redis.asyncio import RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import AskError, MovedError, RedisClusterException, RedisError, SlotNotCoveredError

from rlstm_server.errors import DurabilityNotReached, OutcomeUnknown, StoreUnavailable
from rlstm_server.settings import is_loopback
from rlstm_server.store.redis_address import Address, Endpoint, read_address
from rlstm_server.store.redis_server import (
    Argument,
    Command,
    NotApplied,
    Patience,
    RedisServer,
    Replication,
    unreachable,
)

Answer = TypeVar("Answer")

TRIES: Final = 2
HOPS: Final = 5
"""How often a cluster may point elsewhere within one try."""
HOP_S: Final = 0.05
"""Between two of them, but for the first: what a key on its way from one server to another gets."""
SLOTS: Final = 16_384


class Replicas(NamedTuple):
    """How many replicas a change must have reached, how long they have, and a function that marks it."""

    number: int
    within_s: float
    mark: str


class Reply(NamedTuple):
    """What the server said; `resent` when an earlier try of the same call may have been applied.

    `replicas` counts those that have the change too, of the `wanted` ones that the link waits for.
    """

    content: Any
    resent: bool
    replicas: int = 0
    wanted: int = 0

    def require_replicas(self) -> None:
        """Raise errors.DurabilityNotReached for a change that too few replicas have."""
        if self.replicas < self.wanted:
            raise DurabilityNotReached(
                "the change is made, but no replica has it yet; repeat with the same key to learn of one"
            )


class _Servers:
    """Servers by where they are, each made once."""

    def __init__(self, address: Address, patience: Patience) -> None:
        self.address, self.patience = address, patience
        self._servers: dict[Endpoint, RedisServer] = {}

    def at(self, host: str, port: int) -> RedisServer:
        """Return the server there."""
        endpoint = Endpoint(host, port)
        if endpoint not in self._servers:
            self._servers[endpoint] = RedisServer(self.address, endpoint, self.patience)
        return self._servers[endpoint]

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(server.close() for server in self._servers.values()))


class _OneServer:
    """A store that is one server; those of several servers do more."""

    can_change = False
    """Whether another server can take the place of one that fails."""

    def __init__(self, servers: _Servers) -> None:
        self._servers = servers

    async def server(self, key: str) -> RedisServer:
        """Return the primary that has the key. Raises NotApplied when none is known."""
        endpoint = self._servers.address.endpoints[0]
        return self._servers.at(endpoint.host, endpoint.port)

    async def primaries(self) -> Sequence[RedisServer]:
        """Return every server that takes changes. Raises NotApplied when they are not known."""
        return (await self.server(""),)

    def suspect(self, server: RedisServer) -> None:
        """Look again before the next command: this server failed, or takes no changes."""

    async def close(self) -> None:
        """Close what is not a server's."""


class _Sentinels(_OneServer):
    """A primary with replicas that Sentinels watch; when it fails, one of them takes its place."""

    can_change = True

    def __init__(self, servers: _Servers) -> None:
        super().__init__(servers)
        address = servers.address
        self._primary: RedisServer | None = None
        self._asking = asyncio.Lock()
        self._sentinels = Sentinel(  # type: ignore[no-untyped-call]
            [(endpoint.host, endpoint.port) for endpoint in address.endpoints],
            sentinel_kwargs=address.sentinel_options | {"socket_timeout": servers.patience.timeout_s},
        )

    async def server(self, key: str) -> RedisServer:
        async with self._asking:
            if self._primary is None:
                self._primary = await self._find()
            return self._primary

    def suspect(self, server: RedisServer) -> None:
        if server is self._primary:
            self._primary = None

    async def close(self) -> None:
        with suppress(RedisError, OSError):
            await self._sentinels.aclose()

    async def _find(self) -> RedisServer:
        """Ask who the primary is, and believe it only if that server agrees: it may have been replaced."""
        address, patience = self._servers.address, self._servers.patience
        try:
            async with asyncio.timeout(patience.timeout_s * len(address.endpoints)):
                server = self._servers.at(*await self._sentinels.discover_master(address.name))
        except (MasterNotFoundError, RedisError, OSError) as error:
            raise NotApplied(StoreUnavailable("no Sentinel knows a primary of the store")) from error
        try:
            role, _ = await server.send(("ROLE",))
        except (RedisError, OSError) as error:
            raise NotApplied(StoreUnavailable("the primary of the store does not answer")) from error
        if role[0] != b"master":
            raise NotApplied(StoreUnavailable("the store is changing its primary"))
        return server


class _Cluster(_OneServer):
    """The primaries of a cluster, found from those of its servers that the address names."""

    can_change = True

    def __init__(self, servers: _Servers) -> None:
        super().__init__(servers)
        nodes = [ClusterNode(endpoint.host, endpoint.port) for endpoint in servers.address.endpoints]
        self._map = RedisCluster(
            startup_nodes=nodes, require_full_coverage=False, **servers.address.cluster_options
        )
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
        return self._servers.at(node.host, int(node.port))

    async def primaries(self) -> Sequence[RedisServer]:
        """Return the primaries of all slots; a part of the store that nobody has is an error."""
        await self._make_current()
        if len(self._map.nodes_manager.slots_cache) < SLOTS:
            raise NotApplied(StoreUnavailable("a part of the store has no server in the cluster"))
        places = sorted((node.host, int(node.port)) for node in self._map.get_primaries())
        return [self._servers.at(*place) for place in places]

    def suspect(self, server: RedisServer) -> None:
        self._is_current = False

    async def close(self) -> None:
        with suppress(RedisError, OSError):
            await self._map.aclose()

    async def _make_current(self) -> None:
        async with self._fetching:
            if self._is_current:
                return
            try:
                async with asyncio.timeout(self._servers.patience.timeout_s * TRIES):
                    await self._map.aclose()
                    await self._map.initialize()
            except (RedisClusterException, RedisError, OSError) as error:
                raise unreachable(error) from error
            self._is_current = True


_TOPOLOGIES: Final[dict[str, Callable[[_Servers], _OneServer]]] = {
    "server": _OneServer,
    "sentinel": _Sentinels,
    "cluster": _Cluster,
}


class RedisLink:
    """Sends commands to the store at `url` (see `redis_address`).

    timeout_s       for one try of a small command, from the moment that it has a connection; each gets two
    queue_s         for a connection, while all of a server's are in use
    connections     how many commands are under way at once at one server; more wait
    """

    def __init__(
        self, url: str, *, timeout_s: float = 1.5, queue_s: float = 5.0, connections: int = 8
    ) -> None:
        self._address = read_address(url)
        self.servers = _Servers(self._address, Patience(timeout_s, queue_s, connections))
        self._topology = _TOPOLOGIES[self._address.kind](self.servers)
        self._replicas: Replicas | None = None

    @property
    def is_cluster(self) -> bool:
        """Whether keys are spread over several servers."""
        return self._address.kind == "cluster"

    @property
    def is_private(self) -> bool:
        """Whether what is sent stays on this machine, or is encrypted."""
        places = self._address.endpoints
        return self._address.tls is not None or all(
            not place.port or is_loopback(place.host) for place in places
        )

    def wait_for_replicas(self, replicas: Replicas) -> None:
        """From here on, count for each change the replicas that have it."""
        self._replicas = replicas

    async def call(self, *command: Argument, changes: bool) -> Reply:
        """Return the reply to `command`, which must be safe to apply twice, from the server of its first key.

        It is sent once more when the first try leaves open whether it was applied, and when another server
        took the place of the one that it went to. Raises StoreFull and StoreUnavailable when it was not
        applied, OutcomeUnknown when a change may have been.
        """
        key = str(command[3 if command[0] == "FCALL" else 1])
        replication = self._replication(key) if changes else None
        (content, replicas), resent = await self._tried(
            lambda: self._at_key(key, command, replication), changes
        )
        return Reply(content, resent, replicas, replication.replicas if replication else 0)

    async def call_all(self, *command: Argument) -> dict[str, Any]:
        """Return every primary's reply by its name; an error of one is an error."""
        replies, _ = await self._tried(lambda: self._at_all(command), changes=False)
        return replies

    async def close(self) -> None:
        """Close all connections."""
        await self._topology.close()
        await self.servers.close()

    def _replication(self, key: str) -> Replication | None:
        if self._replicas is None:
            return None
        mark = f"{key.rpartition(':')[0]}:mark"  # in the slot of the key, by what stands in braces
        return Replication(
            replicas=self._replicas.number,
            within_s=self._replicas.within_s,
            mark=("FCALL", self._replicas.mark, 1, mark),
        )

    async def _tried(self, attempt: Callable[[], Awaitable[Answer]], changes: bool) -> tuple[Answer, bool]:
        """Return the answer, and whether an earlier try may have been applied."""
        indeterminate = False
        for left in reversed(range(TRIES)):
            try:
                return await attempt(), indeterminate
            except NotApplied as failure:
                if left and failure.elsewhere and self._topology.can_change:
                    continue
                if indeterminate and changes:
                    break
                raise failure.error from failure.__cause__
            except (RedisError, OSError):
                indeterminate = True
        if changes:
            raise OutcomeUnknown("the store did not answer; repeat with the same key to learn the outcome")
        raise StoreUnavailable("the store does not answer")

    async def _at_key(self, key: str, command: Command, replication: Replication | None) -> tuple[Any, int]:
        """Send to the server that has the key, or to where it points, a few times."""
        server, asking, hops = await self._topology.server(key), False, HOPS
        while True:
            try:
                return await self._sent(server, command, asking=asking, replication=replication)
            except NotApplied as failure:
                hops -= 1
                if not hops or not (failure.redirect or failure.passing):
                    raise
                if failure.redirect:
                    server = self._redirected(server, failure.redirect)
                    asking = not isinstance(failure.redirect, MovedError)
            await asyncio.sleep(HOP_S if hops < HOPS - 1 else 0)

    def _redirected(self, server: RedisServer, where: AskError) -> RedisServer:
        """The server pointed to: by MOVED for good, by ASK for this command alone."""
        if not self.is_cluster:
            raise NotApplied(
                StoreUnavailable("the store is a cluster: its address must start with cluster://")
            )
        if isinstance(where, MovedError):
            self._topology.suspect(server)
        return self.servers.at(where.host or server.endpoint.host, int(where.port))

    async def _at_all(self, command: Command) -> dict[str, Any]:
        return {
            server.name: (await self._sent(server, command))[0] for server in await self._topology.primaries()
        }

    async def _sent(
        self,
        server: RedisServer,
        command: Command,
        *,
        asking: bool = False,
        replication: Replication | None = None,
    ) -> tuple[Any, int]:
        try:
            return await server.send(command, asking=asking, replication=replication)
        except NotApplied as failure:
            if failure.elsewhere:
                self._topology.suspect(server)
            raise
        except (RedisError, OSError):
            self._topology.suspect(server)
            raise
