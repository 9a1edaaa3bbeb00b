"""What Redis or Valkey servers must be like before sessions are trusted to them.

Every primary is asked, and all faults are named at once. What the store's user may do beyond what sessions
need is no fault but a warning: each right is tried by a command that is refused for its arguments, after the
server has looked at the rights. KEYS has no such form; to try it would hold up a store of many sessions.
"""

import hashlib
from collections.abc import Awaitable, Mapping
from importlib.resources import files
from typing import Any, Final, NamedTuple

from redis.exceptions import NoPermissionError

from rlstm_server.errors import InternalError, ServerError, StartupError
from rlstm_server.settings import Durability
from rlstm_server.store.redis_client import LIBRARY, RedisLink

MIN_VERSION: Final = (7, 0)
_PARAMETERS: Final = (
    "appendonly",
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "maxmemory-policy",
    "maxmemory",
)
_NOT_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "FLUSHALL": ("FLUSHALL", "rlstm"),
    "CONFIG SET": ("CONFIG", "SET", "rlstm", "rlstm"),
    "EVAL": ("EVAL", "", "rlstm"),
    "FUNCTION LOAD": ("FUNCTION", "LOAD", "rlstm"),
}
_NOT_NEEDED_KEYED: Final[Mapping[str, tuple[str, ...]]] = {
    "RESTORE": ("RESTORE", "rlstm:{check}", "rlstm", "rlstm"),
    "keys of others": ("GET", "not-of-rlstm"),
}


class Server(NamedTuple):
    """What one primary says of itself."""

    name: str
    version: tuple[int, ...]
    product: str
    is_primary: bool
    in_cluster: bool
    replicas: int


def library_code() -> str:
    """Return the text of functions.lua."""
    return (files("rlstm_server.store") / "functions.lua").read_text(encoding="utf-8")


def weaknesses(settings: Mapping[str, str]) -> list[str]:
    """Return what is wrong with a server's settings, one sentence each."""
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


async def read_servers(link: RedisLink) -> list[Server]:
    """Ask every primary what it is. Raises StartupError when one cannot be asked, or can never do."""
    replies = await _ask(link, "ask what it is (INFO)", "INFO")
    servers = [_server(name, reply) for name, reply in replies.items()]
    for server in servers:
        if server.version < MIN_VERSION:
            raise StartupError(f"the store is {server.product}: Redis 7.0 or Valkey is needed")
        if server.in_cluster and not link.is_cluster:
            raise StartupError(
                "the store is a cluster: its address must start with cluster:// or clusters://"
            )
        if not server.is_primary:
            raise StartupError("the store's address leads to a replica, which takes no changes")
    return servers


async def check_settings(
    link: RedisLink, servers: list[Server], *, wanted: Durability, allow_weaker: bool
) -> Durability:
    """Return how durable a change is on all of them.

    Raises StartupError unless all are set up for what is wanted, or `allow_weaker`.
    """
    replies = await _ask(link, "read its settings (CONFIG GET)", "CONFIG", "GET", *_PARAMETERS)
    settings = [
        {name.decode(): value.decode() for name, value in _pairs(reply).items()} for reply in replies.values()
    ]
    found = [sentence for each in settings for sentence in weaknesses(each)]
    alone = [server for server in servers if not server.replicas]
    if wanted == "replica" and alone:
        found.append("no replica is connected: durability replica cannot be reached")
    if found and not allow_weaker:
        listed = "; ".join(dict.fromkeys(found))
        raise StartupError(f"the store would not keep what it promises (allow_weaker accepts that): {listed}")
    names = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite")
    if any(tuple(each.get(name) for name in names) != ("yes", "always", "no") for each in settings):
        return "memory"
    return "replica" if wanted == "replica" and not alone else "fsync"


async def install_functions(link: RedisLink) -> None:
    """Give every primary exactly our library. Raises StartupError where that is refused."""
    try:
        await link.call_all("FUNCTION", "LOAD", "REPLACE", library_code())
    except ServerError as error:
        raise StartupError(
            f"the function library {LIBRARY} cannot be installed: a user who may FUNCTION LOAD is needed"
        ) from error


async def check_functions(link: RedisLink) -> None:
    """Make sure that every primary has exactly our library. Raises StartupError where it has not."""
    code = library_code()
    for found in (await _installed_code(link)).values():
        if found is None:
            raise StartupError(
                f"the store has no function library {LIBRARY}:"
                " an administrator must run `rlstm store install`"
            )
        if found != code:
            raise StartupError(
                f"the store's function library {LIBRARY} differs from this server's: it is {_digest(found)},"
                f" expected {_digest(code)}; run one release everywhere, or let an administrator run"
                " `rlstm store install`"
            )


async def ensure_functions(link: RedisLink) -> None:
    """Install our library where it is missing or differs, if this user may; else say who must."""
    code = library_code()
    if all(found == code for found in (await _installed_code(link)).values()):
        return
    try:
        await install_functions(link)
    except StartupError as refused:
        try:
            await check_functions(link)
        except StartupError as error:
            raise StartupError(f"{error.detail} ({refused.detail})") from refused


async def find_concerns(link: RedisLink) -> list[str]:
    """Return what does not weaken the promises but lets others break them, one sentence each."""
    found = []
    rights = [name for name, command in _NOT_NEEDED.items() if await _may(link.call_all(*command))]
    for name, keyed in _NOT_NEEDED_KEYED.items():
        if await _may(link.call(*keyed, changes=False)):
            rights.append(name)
    if rights:
        found.append(f"the store's user has rights that sessions do not need: {', '.join(rights)}")
    if not link.is_private:
        found.append("the store is on another machine and reached without TLS")
    return found


async def _may(attempt: Awaitable[Any]) -> bool:
    """Whether a command got past the user's rights: it was refused for something else, or answered."""
    try:
        await attempt
    except ServerError as error:
        return isinstance(error, InternalError) and not isinstance(error.__cause__, NoPermissionError)
    return True


def _server(name: str, reply: bytes) -> Server:
    lines = reply.decode(errors="replace").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    version = fields.get("redis_version", "0")
    product = f"Valkey {fields['valkey_version']}" if "valkey_version" in fields else f"Redis {version}"
    online = [value for key, value in fields.items() if key.startswith("slave") and "state=online" in value]
    return Server(
        name=name,
        version=tuple(int(part) for part in version.split(".") if part.isdigit()),
        product=product,
        is_primary=fields.get("role") == "master",
        in_cluster=fields.get("cluster_enabled") == "1",
        replicas=len(online),
    )


async def _ask(link: RedisLink, what: str, *command: str) -> dict[str, Any]:
    """Return what every primary replies. Raises StartupError, which says `what` this user may not."""
    try:
        return await link.call_all(*command)
    except InternalError as error:
        raise StartupError(f"the store does not let this user {what}") from error
    except ServerError as error:
        raise StartupError(f"no session store to start with: {error.detail}") from error


def _pairs(reply: list[Any]) -> dict[bytes, Any]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


async def _installed_code(link: RedisLink) -> dict[str, str | None]:
    asked = ("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY, "WITHCODE")
    replies = await _ask(link, "list its functions (FUNCTION LIST)", *asked)
    return {
        name: _pairs(reply[0])[b"library_code"].decode() if reply else None for name, reply in replies.items()
    }


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()[:12]
