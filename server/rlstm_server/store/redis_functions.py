"""Calls of the functions in functions.lua: which keys they get, and what their first word means."""

from typing import Final

from rlstm_server.errors import Gone, NotFound, StateCorrupt
from rlstm_server.store.base import SessionKey
from rlstm_server.store.redis_client import RedisLink, Reply
from rlstm_server.store.redis_server import Argument

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


class RedisFunctions:
    """The functions of the library, over `link`. Each has the same effect once or twice."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link

    async def session(self, name: str, key: SessionKey, *arguments: Argument, changes: bool) -> Reply:
        """Call a function of one session.

        Raises errors.Gone, errors.NotFound, errors.DurabilityNotReached, and errors.StateCorrupt for a
        session that another release stored.
        """
        reply = await self.session_or_absence(name, key, *arguments, changes=changes)
        match reply.content[0]:
            case b"NOT_FOUND":
                raise NotFound
            case b"GONE":
                raise Gone(reply.content[1].decode())
            case b"FORM":
                raise StateCorrupt("the session is stored in a form that this release cannot read")
            case b"OK" | b"REPLAY":
                reply.require_replicas()
        return reply

    async def session_or_absence(
        self, name: str, key: SessionKey, *arguments: Argument, changes: bool
    ) -> Reply:
        """Call a function of one session; the reply may begin with GONE, NOT_FOUND or FORM."""
        keys = tuple(session_key(key, part) for part in _SESSION_PARTS)
        return await self._call(name, keys, arguments, changes)

    async def tenant(self, name: str, tenant: str, *arguments: Argument, changes: bool) -> Reply:
        """Call a function of a tenant's names, indexes and creations."""
        keys = tuple(tenant_key(tenant, part) for part in _TENANT_PARTS)
        return await self._call(name, keys, arguments, changes)

    async def _call(
        self, name: str, keys: tuple[str, ...], arguments: tuple[Argument, ...], changes: bool
    ) -> Reply:
        return await self._link.call(
            "FCALL", f"{LIBRARY}_{name}", len(keys), *keys, *arguments, changes=changes
        )
