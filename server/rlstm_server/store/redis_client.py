"""Commands to a store, and its functions: how often they are sent, and what is known afterwards.

redis-py's own retries are off: they re-send commands on a time-out, which applies them twice. A command is
sent again only by `RedisLink.call`, whose commands all have the same effect once or twice.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from redis.exceptions import AskError, MovedError, RedisError

from rlstm_server.errors import (
    DurabilityNotReached,
    Gone,
    IdempotencyMismatch,
    NotFound,
    OutcomeUnknown,
    StateCorrupt,
    StoreUnavailable,
)
from rlstm_server.settings import is_loopback
from rlstm_server.store.base import SessionKey
from rlstm_server.store.redis_address import Endpoint, read_address
from rlstm_server.store.redis_server import (
    TOPOLOGIES,
    Argument,
    Command,
    NotApplied,
    Patience,
    RedisServer,
    Replication,
)

AnswerT = TypeVar("AnswerT")

TRIES: Final = 2
HOPS: Final = 5
"""How often a cluster may point elsewhere within one try."""
HOP_S: Final = 0.05
"""Between two of them, but for the first: what a key on its way from one server to another gets."""

LIBRARY: Final = "rlstm_v3"
"""Releases whose functions differ have libraries of their own, side by side on one server."""
_SESSION_PARTS: Final = ("head", "ops", "tomb", "named", "states")
_TENANT_PARTS: Final = ("names", "index", "ids", "creations")


def session_key(key: SessionKey, part: str) -> str:
    """Return a stored key; what stands in braces puts all keys of a session in one cluster slot."""
    return f"rlstm:{{{key.tenant}/{key.session_id}}}:{part}"


def tenant_key(tenant: str, part: str) -> str:
    """Return a stored key of a tenant; they share a slot too."""
    return f"rlstm:{{{tenant}}}:{part}"


class Reply(NamedTuple):
    """What the server said.

    replicated  so many replicas have the change as the link waits for
    """

    content: Any
    replicated: bool

    def require_replicas(self) -> None:
        """Raise errors.DurabilityNotReached for a change that too few replicas have."""
        if not self.replicated:
            raise DurabilityNotReached(
                "the change is made, but no replica has it yet; repeat with the same key to learn of one"
            )


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
        self.servers = TOPOLOGIES[self._address.kind](self._address, patience)
        self._replication: Replication | None = None

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

    def wait_for_replicas(self, replicas: int, within_s: float) -> None:
        """From here on, wait for so many replicas, so long, to have each change."""
        self._replication = Replication(replicas, within_s, f"{LIBRARY}_mark")

    async def session(
        self,
        name: str,
        key: SessionKey,
        *arguments: Argument,
        changes: bool,
        again: bool = True,
        absent: bool = False,
    ) -> Sequence[Any]:
        """Call a function of one session, and return what it said: a word, and what belongs to it.

        All functions have the same effect once or twice. Raises errors.Gone, errors.NotFound,
        errors.IdempotencyMismatch, errors.DurabilityNotReached, and errors.StateCorrupt for a session that
        another release stored; `absent` takes the words GONE, NOT_FOUND and FORM too.
        """
        keys = [session_key(key, part) for part in _SESSION_PARTS]
        command = ("FCALL", f"{LIBRARY}_{name}", len(keys), *keys, *arguments)
        reply = await self.call(*command, changes=changes, again=again)
        word = reply.content[0]
        if word in (b"OK", b"REPLAY"):
            reply.require_replicas()
        elif word == b"MISMATCH":
            raise IdempotencyMismatch
        elif word == b"NOT_FOUND" and not absent:
            raise NotFound
        elif word == b"GONE" and not absent:
            raise Gone(reply.content[1].decode())
        elif word == b"FORM" and not absent:
            raise StateCorrupt("the session is stored in a form that this release cannot read")
        return reply.content  # type: ignore[no-any-return]

    async def tenant(self, name: str, tenant: str, *arguments: Argument, changes: bool) -> Reply:
        """Call a function of a tenant's names, indexes and creations."""
        keys = [tenant_key(tenant, part) for part in _TENANT_PARTS]
        return await self.call("FCALL", f"{LIBRARY}_{name}", len(keys), *keys, *arguments, changes=changes)

    async def call(self, *command: Argument, changes: bool, again: bool = True) -> Reply:
        """Return the reply to `command`, which must be safe to apply twice, from the server of its first key.

        It is sent once more when another server took the place of the one that it went to and, with `again`,
        when the first try leaves open whether it was applied. Raises StoreFull and StoreUnavailable when it
        was not applied, OutcomeUnknown when a change may have been.
        """
        key = str(command[3 if command[0] == "FCALL" else 1])
        replication = self._replication if changes else None
        attempt = partial(self._at_key, key, command, replication)
        content, replicas = await self._tried(attempt, changes=changes, again=again)
        return Reply(content, replication is None or replicas >= replication.replicas)

    async def call_all(self, *command: Argument) -> dict[str, Any]:
        """Return every primary's reply by its name; an error of one is an error."""
        return await self._tried(partial(self._at_all, command), changes=False)

    async def aclose(self) -> None:
        """Close all connections."""
        await self.servers.close()

    async def _tried(
        self, attempt: Callable[[], Awaitable[AnswerT]], *, changes: bool, again: bool = True
    ) -> AnswerT:
        indeterminate = False
        for left in reversed(range(TRIES)):
            try:
                return await attempt()
            except NotApplied as failure:
                if failure.elsewhere:
                    self.servers.suspect()
                if left and failure.elsewhere and self.servers.can_change:
                    continue
                if indeterminate and changes:
                    break
                raise failure.error from failure.__cause__
            except (RedisError, OSError):
                self.servers.suspect()
                indeterminate = True
                if not again:
                    break
        if changes:
            raise OutcomeUnknown("the store did not answer; repeat with the same key to learn the outcome")
        raise StoreUnavailable("the store does not answer")

    async def _at_key(self, key: str, command: Command, replication: Replication | None) -> tuple[Any, int]:
        """Send to the server that has the key, or to where it points, a few times."""
        server, asking, hop = await self.servers.server(key), False, 0
        while True:
            try:
                return await server.send(command, asking=asking, replication=replication)
            except NotApplied as failure:
                hop += 1
                if hop == HOPS or not (failure.redirect or failure.passing):
                    raise
                if failure.redirect:
                    server = self._redirected(server, failure.redirect)
                    asking = not isinstance(failure.redirect, MovedError)
            await asyncio.sleep(HOP_S if hop > 1 else 0)

    def _redirected(self, server: RedisServer, where: AskError) -> RedisServer:
        """The server pointed to: by MOVED for good, by ASK for this command alone."""
        if not self.is_cluster:
            raise NotApplied(
                StoreUnavailable("the store is a cluster: its address must start with cluster://")
            )
        if isinstance(where, MovedError):
            self.servers.suspect()
        return self.servers.at(Endpoint(where.host or server.endpoint.host, int(where.port)))

    async def _at_all(self, command: Command) -> dict[str, Any]:
        return {server.name: (await server.send(command))[0] for server in await self.servers.primaries()}
