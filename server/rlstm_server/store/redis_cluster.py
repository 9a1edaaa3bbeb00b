"""A cluster: every key has a slot, every slot a primary, and the servers say so themselves.

The map is fetched again when something does not fit it: a server fails, or points elsewhere for good (MOVED).
Keys of a session share a slot by what stands in braces, and so do those of a tenant.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AskError, MovedError, RedisError

from rlstm_server.errors import StoreUnavailable
from rlstm_server.store.redis_address import Address, Endpoint
from rlstm_server.store.redis_server import NotApplied, Patience, RedisServer
from rlstm_server.store.redis_topology import reach

_SLOTS: Final = int(REDIS_CLUSTER_HASH_SLOTS)


class Cluster:
    """The primaries of a cluster, found from those of its servers that the address names."""

    can_change = True

    def __init__(self, address: Address, patience: Patience) -> None:
        self._address = address
        self._patience = patience
        self._servers: dict[Endpoint, RedisServer] = {}
        self._places: dict[RedisServer, Endpoint] = {}
        self._slots: list[Endpoint | None] = [None] * _SLOTS
        self._is_current = False
        self._fetching = asyncio.Lock()

    async def server(self, key: str) -> RedisServer:
        """Return the primary of the key's slot."""
        await self._make_current()
        endpoint = self._slots[key_slot(key.encode())]
        if endpoint is None:
            raise NotApplied(StoreUnavailable("no server of the cluster has this part of the store"))
        return self._at(endpoint)

    async def primaries(self) -> Sequence[RedisServer]:
        """Return the primaries of all slots; a part of the store that nobody has is an error."""
        await self._make_current()
        found = {endpoint for endpoint in self._slots if endpoint is not None}
        if None in self._slots:
            raise NotApplied(StoreUnavailable("a part of the store has no server in the cluster"))
        return [self._at(endpoint) for endpoint in sorted(found, key=str)]

    def suspect(self, server: RedisServer) -> None:
        """Fetch the map again."""
        self._is_current = False

    def redirected(self, server: RedisServer, where: AskError) -> RedisServer:
        """Return the server pointed to; MOVED is for good, ASK for this command alone."""
        host = where.host or self._places[server].host
        endpoint = Endpoint(host, where.port)
        if isinstance(where, MovedError):
            self._slots[where.slot_id] = endpoint
            self._is_current = False
        return self._at(endpoint)

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    def _at(self, endpoint: Endpoint) -> RedisServer:
        if endpoint not in self._servers:
            server = reach(self._address, endpoint, self._patience)
            self._servers[endpoint] = server
            self._places[server] = endpoint
        return self._servers[endpoint]

    async def _make_current(self) -> None:
        async with self._fetching:
            if not self._is_current:
                self._slots = await self._fetch()
                self._is_current = True

    async def _fetch(self) -> list[Endpoint | None]:
        """Ask the servers known so far, then those of the address, until one tells the map."""
        known = {endpoint for endpoint in self._slots if endpoint is not None}
        refusal = NotApplied(StoreUnavailable("the store cannot be reached"))
        for endpoint in (*sorted(known, key=str), *self._address.endpoints):
            try:
                async with asyncio.timeout(self._patience.timeout_s):
                    reply, _ = await self._at(endpoint).send(("CLUSTER", "SLOTS"))
            except NotApplied as error:
                refusal = error
            except (RedisError, OSError):
                continue
            else:
                return _slots_of(reply, endpoint.host)
        raise refusal


def _slots_of(reply: Iterable[Sequence[Any]], host: str) -> list[Endpoint | None]:
    """Read the map; a server that does not know its own host is at the one that was asked."""
    slots: list[Endpoint | None] = [None] * _SLOTS
    for first, last, primary, *_ in reply:
        endpoint = Endpoint((primary[0] or b"").decode() or host, int(primary[1]))
        slots[int(first) : int(last) + 1] = [endpoint] * (int(last) + 1 - int(first))
    return slots
