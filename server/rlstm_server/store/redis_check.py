"""What a Redis or Valkey server must be like before sessions are trusted to it."""

import hashlib
from importlib.resources import files
from typing import Any, Final

from rlstm_server.errors import InternalError, ServerError, StartupError
from rlstm_server.store.base import Durability
from rlstm_server.store.redis_link import RedisLink

LIBRARY: Final = "rlstm_v1"
_PARAMETERS: Final = (
    "appendonly",
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "maxmemory-policy",
    "maxmemory",
)


def library_code() -> str:
    """Return the text of functions.lua."""
    return (files("rlstm_server.store") / "functions.lua").read_text(encoding="utf-8")


def weaknesses(settings: dict[str, str]) -> list[str]:
    """Return what is wrong with a server's settings, one sentence each.

    >>> weaknesses({"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no",
    ...             "maxmemory-policy": "noeviction", "maxmemory": "0"})
    ['maxmemory is 0: set a limit, or the machine runs out of memory']
    """
    found = []
    if settings.get("appendonly") != "yes":
        found.append("appendonly is not yes: everything is lost when the store ends")
    if settings.get("appendfsync") != "always":
        found.append("appendfsync is not always: acknowledged operations are lost when the store is killed")
    if settings.get("no-appendfsync-on-rewrite") != "no":
        found.append("no-appendfsync-on-rewrite is not no: appendfsync is off while the log is rewritten")
    if settings.get("maxmemory-policy") != "noeviction":
        found.append("maxmemory-policy is not noeviction: live sessions vanish when the store is full")
    if settings.get("maxmemory", "0") == "0":
        found.append("maxmemory is 0: set a limit, or the machine runs out of memory")
    return found


async def check_settings(link: RedisLink, *, allow_weaker: bool) -> Durability:
    """Return how durable the server is.

    Raises StartupError unless its settings are right or `allow_weaker`.
    """
    settings = await _read_settings(link)
    found = weaknesses(settings)
    if found and not allow_weaker:
        listed = "; ".join(found)
        raise StartupError(f"the store would not keep what it promises (allow_weaker accepts that): {listed}")
    names = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite")
    lossless = tuple(settings.get(name) for name in names) == ("yes", "always", "no")
    return "fsync" if lossless else "memory"


async def install_functions(link: RedisLink, *, install: bool) -> None:
    """Make sure the server has exactly our library. Raises StartupError if it has not and may not get it."""
    code = library_code()
    found = await _installed_code(link)
    if found == code:
        return
    if not install:
        raise StartupError(
            f"the store has no function library {LIBRARY}; an administrator must install functions.lua"
            if found is None
            else f"the store's function library {LIBRARY} differs from this server's: it is {_digest(found)},"
            f" expected {_digest(code)}; run one release everywhere, or let an administrator replace it"
        )
    try:
        await link.call("FUNCTION", "LOAD", "REPLACE", code, changes=False)
    except ServerError as error:
        raise StartupError(
            f"the function library {LIBRARY} cannot be installed (Redis 7 or Valkey, and a user who may"
            " FUNCTION LOAD, are needed)"
        ) from error


async def _read_settings(link: RedisLink) -> dict[str, str]:
    try:
        return {name: await _read_setting(link, name) for name in _PARAMETERS}
    except InternalError as error:
        raise StartupError("the store does not let this user read its settings (CONFIG GET)") from error
    except ServerError as error:
        raise StartupError(f"no session store to start with: {error.detail}") from error


async def _read_setting(link: RedisLink, name: str) -> str:
    pair = (await link.call("CONFIG", "GET", name, changes=False)).content
    return pair[1].decode() if pair else ""


async def _installed_code(link: RedisLink) -> str | None:
    try:
        reply = await link.call("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY, "WITHCODE", changes=False)
    except ServerError as error:
        raise StartupError("the store cannot list its functions: Redis 7 or Valkey is needed") from error
    if not reply.content:
        return None
    fields: list[Any] = reply.content[0]
    return str(dict(zip(fields[::2], fields[1::2], strict=True))[b"library_code"].decode())


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()[:12]
