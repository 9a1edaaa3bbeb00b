"""One command and its reply, with every failure given its honest name.

Client libraries re-send commands on a time-out, which applies them twice. Here the library's retries are off,
and a command is sent again only by `RedisLink.call`, whose commands all have the same effect once or twice.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from redis.exceptions import MovedError, RedisError

from rlstm_server.errors import DurabilityNotReached, OutcomeUnknown, StoreUnavailable
from rlstm_server.settings import is_loopback
from rlstm_server.store.redis_address import Address, Kind, read_address
from rlstm_server.store.redis_cluster import Cluster
from rlstm_server.store.redis_server import Argument, Command, NotApplied, Patience, RedisServer, Replication
from rlstm_server.store.redis_topology import Guarded, OneServer, Topology

Answer = TypeVar("Answer")

TRIES: Final = 2
HOPS: Final = 5
"""How often a cluster may point elsewhere within one try."""
HOP_S: Final = 0.05
"""Between two of them, but for the first: what a key on its way from one server to another gets."""
_TOPOLOGIES: Final[dict[Kind, Callable[[Address, Patience], Topology]]] = {
    "server": OneServer,
    "sentinel": Guarded,
    "cluster": Cluster,
}


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


class Replicas(NamedTuple):
    """How many replicas a change must have reached, how long they are waited for, and a function to mark it.

    The function writes something of no meaning beside a key. Waiting for that is waiting for all that was
    written before, by whichever connection; a change that had been made already is covered, too.
    """

    number: int
    within_s: float
    mark: str


class Link(Protocol):
    """What a store asks of its servers."""

    @property
    def is_cluster(self) -> bool:
        """Whether keys are spread over several servers."""
        ...

    @property
    def is_private(self) -> bool:
        """Whether what is sent stays on this machine, or is encrypted."""
        ...

    async def call(self, *command: Argument, changes: bool) -> Reply:
        """Send a command to the server that has its first key."""
        ...

    async def call_all(self, *command: Argument) -> dict[str, Any]:
        """Send a command that names no key to every server that takes changes; replies by its name."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


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
        patience = Patience(timeout_s, queue_s, connections)
        self._topology = _TOPOLOGIES[self._address.kind](self._address, patience)
        self._replicas: Replicas | None = None

    @property
    def is_cluster(self) -> bool:
        """Whether the address is a cluster's."""
        return self._address.kind == "cluster"

    @property
    def is_private(self) -> bool:
        """Whether the address is one with TLS, or leads to this machine only."""
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
        key = _first_key(command)
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
        in_doubt = False
        for left in reversed(range(TRIES)):
            try:
                return await attempt(), in_doubt
            except NotApplied as failure:
                if left and failure.elsewhere and self._topology.can_change:
                    continue
                if in_doubt and changes:
                    break
                raise failure.error from failure.__cause__
            except (RedisError, OSError):
                in_doubt = True
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
                    server = self._topology.redirected(server, failure.redirect)
                    asking = not isinstance(failure.redirect, MovedError)
            await asyncio.sleep(HOP_S if hops < HOPS - 1 else 0)

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


def _first_key(command: Command) -> str:
    """Return the first key: behind the name and the count of a function, else behind the command."""
    return str(command[3 if command[0] == "FCALL" else 1])
