"""Where the store is: an address as operators write it, read once and refused if it cannot be meant.

    redis://[user:password@]host[:port][/database]       one server
    rediss://…                                           over TLS
    unix://[user:password@]/path/of/socket[?db=0]        over a Unix socket
    sentinel://[user:password@]host:port,host:port/name  the primary that Sentinels call `name`
    cluster://[user:password@]host:port,host:port        the primaries of a cluster, found from these
    sentinels://…   clusters://…                         over TLS, Sentinels included

Behind a question mark, of which nothing else is taken, since it could turn on what must stay off:

    db                      the number of the database, where it is not in the path
    username, password      for who cannot write them in front
    sentinel_username, sentinel_password
    ssl_ca_certs            file of the authorities to trust instead of the system's
    ssl_certfile, ssl_keyfile    our certificate, for servers that ask for one
    ssl_check_hostname      `no` where servers are found by numbers that their certificates do not hold
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import redis
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from rlstm_server.errors import StartupError

Kind = Literal["server", "sentinel", "cluster"]

_UNTOLD: Final[Mapping[str, None]] = (
    {"driver_info": None} if hasattr(redis, "DriverInfo") else {"lib_name": None, "lib_version": None}
)
"""No command to tell the server which library calls, as redis-py 7.1 and those before it are told so."""

_OURS: Final[Mapping[str, Any]] = {
    "socket_timeout": None,
    "socket_connect_timeout": None,
    "retry": Retry(NoBackoff(), 0),
    "protocol": 2,
    **_UNTOLD,
}
"""Of every connection: redis-py's own retries and time-outs are off, others keep them."""

_KINDS: Final[Mapping[str, tuple[Kind, bool]]] = {
    "redis": ("server", False),
    "rediss": ("server", True),
    "unix": ("server", False),
    "sentinel": ("sentinel", False),
    "sentinels": ("sentinel", True),
    "cluster": ("cluster", False),
    "clusters": ("cluster", True),
}
_PORTS: Final[Mapping[Kind, int]] = {"server": 6379, "sentinel": 26379, "cluster": 6379}
_TLS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")
_OPTIONS: Final = ("db", "username", "password", "sentinel_username", "sentinel_password", *_TLS)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one server listens: a host and a port, or the path of a socket (and port 0)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Address:
    """A store's address, taken apart; it holds passwords, so it never shows itself.

    endpoints      the server, the Sentinels, or some servers of the cluster
    name           what Sentinels call the primary
    user           its `username` and `password`; `sentinel_user` those for Sentinels
    tls            options of the TLS context, or None without TLS
    """

    kind: Kind
    endpoints: tuple[Endpoint, ...]
    name: str
    database: int
    user: Mapping[str, str | None]
    sentinel_user: Mapping[str, str | None]
    tls: Mapping[str, str | bool] | None

    @property
    def sentinel_options(self) -> dict[str, Any]:
        """What connections to Sentinels need."""
        return {**self.cluster_options, **self.sentinel_user}

    @property
    def cluster_options(self) -> dict[str, Any]:
        """What those need to the servers that are asked for a cluster's map."""
        return {**self.user, **_OURS, "ssl": self.tls is not None, **(self.tls or {})}

    def connection(self, endpoint: Endpoint) -> tuple[type[AbstractConnection], dict[str, Any]]:
        """Return the class of connections to `endpoint`, and what they are made with."""
        options = {**self.user, **_OURS, "db": self.database}
        if not endpoint.port:
            return UnixDomainSocketConnection, {"path": endpoint.host, **options}
        place = {"host": endpoint.host, "port": endpoint.port, **options}
        return (Connection, place) if self.tls is None else (SSLConnection, {**place, **self.tls})


def read_address(url: str) -> Address:
    """Take an address apart. Raises StartupError, which repeats nothing of it: it may hold a password."""
    try:
        address = _read(url)
    except ValueError as error:
        raise StartupError("the store's address cannot be understood") from error
    if address.tls is not None:
        _try_certificates(address)
    return address


def _read(url: str) -> Address:
    scheme, _, rest = url.partition("://")
    if scheme not in _KINDS or not rest:
        listed = ", ".join(f"{name}://" for name in _KINDS)
        raise StartupError(f"the store's address must start with one of {listed}")
    kind, encrypted = _KINDS[scheme]
    parts = urlsplit(url)
    options = _options(parts.query, encrypted=encrypted)
    path = unquote(parts.path)
    userinfo, _, place = parts.netloc.rpartition("@")
    username, _, password = userinfo.partition(":")
    return Address(
        kind=kind,
        endpoints=(Endpoint(path, 0),) if scheme == "unix" else _endpoints(place, kind),
        name=path.strip("/") if kind == "sentinel" else "",
        database=_database(parts, kind, options),
        user={
            "username": options.get("username") or unquote(username) or None,
            "password": options.get("password") or unquote(password) or None,
        },
        sentinel_user={
            "username": options.get("sentinel_username"),
            "password": options.get("sentinel_password"),
        },
        tls=_tls(options) if encrypted else None,
    )


def _options(query: str, *, encrypted: bool) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    for name in options:
        if name not in _OPTIONS:
            raise StartupError(f"the store's address has an option besides {', '.join(_OPTIONS)}")
        if name in _TLS and not encrypted:
            raise StartupError(f"the store's address has {name}, but its form is one without TLS")
    return options


def _endpoints(places: str, kind: Kind) -> tuple[Endpoint, ...]:
    listed = places.split(",")
    if kind == "server" and len(listed) != 1:
        raise ValueError("one server has one place")
    return tuple(_endpoint(place, _PORTS[kind]) for place in listed)


def _endpoint(place: str, port: int) -> Endpoint:
    parts = urlsplit(f"//{place}")
    if not parts.hostname:
        raise ValueError("a place has no host")
    return Endpoint(parts.hostname, parts.port or port)


def _database(parts: SplitResult, kind: Kind, options: Mapping[str, str]) -> int:
    path = unquote(parts.path).strip("/")
    if kind == "sentinel":
        if not path or "/" in path:
            raise StartupError("the store's address must end with the name that Sentinels give the primary")
        path = ""
    if parts.scheme == "unix":
        if not path:
            raise ValueError("a socket has a path")
        path = ""
    database = int(options.get("db") or path or 0)
    if database < 0 or (kind == "cluster" and database):
        raise StartupError("the store's address names a database that cannot be: a cluster has only 0")
    return database


def _tls(options: Mapping[str, str]) -> dict[str, str | bool]:
    chosen: dict[str, str | bool] = {name: options[name] for name in _TLS[:3] if options.get(name)}
    chosen["ssl_check_hostname"] = options.get("ssl_check_hostname", "yes") not in ("no", "false", "0")
    return chosen


def _try_certificates(address: Address) -> None:
    kind, options = address.connection(address.endpoints[0])
    connection = kind(**options)
    assert isinstance(connection, SSLConnection)
    try:
        connection.ssl_context.get()
    except OSError as error:
        raise StartupError(
            f"a certificate or key that the store's address names cannot be used: {error.strerror or error}"
        ) from error
