"""Which servers a store is made of, and which of them takes the changes of a key.

One server is itself. Sentinels are asked who the primary is, again after every failure, and the answer is
believed only if that server agrees. A cluster has a module of its own.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from redis.asyncio import Sentinel
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError
from redis.backoff import NoBackoff
from redis.exceptions import AskError, RedisError

from rlstm_server.errors import StoreUnavailable
from rlstm_server.store.redis_address import Address, Endpoint
from rlstm_server.store.redis_server import NotApplied, Patience, RedisServer


class Topology(Protocol):
    """Where commands go."""

    @property
    def can_change(self) -> bool:
        """Whether another server can take the place of one that fails."""
        ...

    async def server(self, key: str) -> RedisServer:
        """Return the primary that has the key. Raises NotApplied when none is known."""
        ...

    async def primaries(self) -> Sequence[RedisServer]:
        """Return every server that takes changes. Raises NotApplied when they are not known."""
        ...

    def suspect(self, server: RedisServer) -> None:
        """Look again before the next command: this server failed, or takes no changes."""
        ...

    def redirected(self, server: RedisServer, where: AskError) -> RedisServer:
        """Return the server that `server` pointed to."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class OneServer:
    """A store that is one server."""

    can_change = False

    def __init__(self, address: Address, patience: Patience) -> None:
        self._server = reach(address, address.endpoints[0], patience)

    async def server(self, key: str) -> RedisServer:
        """Return the server."""
        return self._server

    async def primaries(self) -> Sequence[RedisServer]:
        """Return the server."""
        return (self._server,)

    def suspect(self, server: RedisServer) -> None:
        """There is no other."""

    def redirected(self, server: RedisServer, where: AskError) -> RedisServer:
        """Refuse: a server of a cluster was taken for a store of its own."""
        raise NotApplied(StoreUnavailable("the store is a cluster: its address must start with cluster://"))

    async def close(self) -> None:
        """Close all connections."""
        await self._server.close()


class Guarded:
    """A primary with replicas that Sentinels watch; when it fails, one of them takes its place."""

    can_change = True

    def __init__(self, address: Address, patience: Patience) -> None:
        self._address = address
        self._patience = patience
        self._primary: RedisServer | None = None
        self._servers: dict[Endpoint, RedisServer] = {}
        self._asking = asyncio.Lock()
        self._sentinels = Sentinel(  # type: ignore[no-untyped-call]
            [(endpoint.host, endpoint.port) for endpoint in address.endpoints],
            sentinel_kwargs={
                "username": address.sentinel_username,
                "password": address.sentinel_password,
                "socket_timeout": patience.timeout_s,
                "retry": Retry(NoBackoff(), 0),
                "protocol": 2,
                "ssl": address.tls is not None,
                **(address.tls or {}),
            },
        )

    async def server(self, key: str) -> RedisServer:
        """Return the primary, which has all keys."""
        async with self._asking:
            if self._primary is None:
                self._primary = await self._find()
            return self._primary

    async def primaries(self) -> Sequence[RedisServer]:
        """Return the primary."""
        return (await self.server(""),)

    def suspect(self, server: RedisServer) -> None:
        """Ask the Sentinels again."""
        if server is self._primary:
            self._primary = None

    def redirected(self, server: RedisServer, where: AskError) -> RedisServer:
        """Refuse: Sentinels watch a server of a cluster."""
        raise NotApplied(StoreUnavailable("the store is a cluster: its address must start with cluster://"))

    async def close(self) -> None:
        """Close all connections, those to Sentinels too."""
        with suppress(RedisError, OSError):
            await self._sentinels.aclose()
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    async def _find(self) -> RedisServer:
        try:
            async with asyncio.timeout(self._patience.timeout_s * len(self._address.endpoints)):
                host, port = await self._sentinels.discover_master(self._address.name)
        except (MasterNotFoundError, RedisError, OSError) as error:
            raise NotApplied(StoreUnavailable("no Sentinel knows a primary of the store")) from error
        endpoint = Endpoint(host, port)
        if endpoint not in self._servers:
            self._servers[endpoint] = reach(self._address, endpoint, self._patience)
        await self._make_sure(self._servers[endpoint])
        return self._servers[endpoint]

    async def _make_sure(self, server: RedisServer) -> None:
        """Ask the server itself: a Sentinel may not have heard yet that it was replaced."""
        try:
            role, _ = await server.send(("ROLE",))
        except (RedisError, OSError) as error:
            raise NotApplied(StoreUnavailable("the primary of the store does not answer")) from error
        if role[0] != b"master":
            raise NotApplied(StoreUnavailable("the store is changing its primary"))


def reach(address: Address, endpoint: Endpoint, patience: Patience) -> RedisServer:
    """Make a server of what is at `endpoint`, with the user and the certificates of `address`."""
    return RedisServer(str(endpoint), lambda: address.connection(endpoint), patience)
