"""Who may do what: asked before every route, and whatever is not known is denied.

Keys are kept as SHA-256. A server without keys serves this machine only. There
the `Host` header must name this machine, so that no web page reaches the server under a name of its own, and
a browser must not say that another page asks.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections import OrderedDict
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.datastructures import Headers
from starlette.types import Scope

from rlstm_server.api.page import PAGE
from rlstm_server.caller import (
    ALL_SCOPES,
    DEFAULT_TENANT,
    LOCAL,
    NOBODY,
    Principal,
    Quota,
    ScopeName,
    TokenBucket,
)
from rlstm_server.errors import Forbidden, StartupError, Unauthorized
from rlstm_server.faults import reason
from rlstm_server.settings import Settings, is_loopback

OPEN_PATHS = frozenset({"/health/live", "/health/ready"})
"""Asked by machines that judge the server: they need no key and wait for nobody."""

ADMIN: tuple[ScopeName, ...] = ("admin",)
SCOPES: dict[str, tuple[ScopeName, ...]] = {
    "score": ("score",),
    "generate": ("generate",),
    "sessions": ("sessions",),
    "sessions/import": ADMIN,  # a file says what it likes: nothing in it is signed
    "metrics": ADMIN,
    "info": (),
    "openapi.json": (),
    "v1/completions": ("score", "generate"),
    "v1/engines": ("score",),
    "v1/models": (),
    "tokenize": ("score", "generate"),
    "detokenize": ("score", "generate"),
    "tokenizer_info": (),
}
"""Scopes of which a key needs one, by first path segment, or by the first two; none: any key will do.

What is not here needs `admin`.
"""

OWN_PAGES = frozenset({"same-origin", "none"})
"""What browsers say in `sec-fetch-site` of our page, and of what a user typed."""

KEY_PROTOCOL = "bearer."
KEY_ID_DIGITS = 8

ADDRESSES: Final = 4_096
"""So many are remembered, the latest. A caller with more may try more: keys must be too long to guess."""

ELSEWHERE: Final = "elsewhere"
"""Stands for everything that is no address: it could be anything, as often as its sender likes."""

PER_SECOND: Final = 1.0
IPV6_PREFIX: Final = 64
"""Bits of an IPv6 address that tell one caller from another: its holder may choose the rest."""

Rate = Annotated[float | None, Field(gt=0, le=1e9)]


class Quotas(BaseModel):
    """What one key may use up in a second, and what its tenant may keep when the key asks for more."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    requests_per_second: Rate = None
    tokens_per_second: Rate = None
    learned_tokens_per_second: Rate = None
    generated_tokens_per_second: Rate = None
    sessions: Annotated[int | None, Field(ge=0)] = None
    stored_bytes: Annotated[int | None, Field(ge=0)] = None

    def quota(self) -> Quota:
        """Start counting."""

        def bucket(what: str, rate: float | None) -> TokenBucket | None:
            return None if rate is None else TokenBucket(what, rate)

        return Quota(
            requests=bucket("requests", self.requests_per_second),
            tokens=bucket("tokens", self.tokens_per_second),
            learned=bucket("tokens learned from", self.learned_tokens_per_second),
            generated=bucket("tokens generated", self.generated_tokens_per_second),
            sessions=self.sessions,
            stored_bytes=self.stored_bytes,
        )


class KeyRecord(BaseModel):
    """One entry of the keys file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="Of the key's UTF-8 bytes, in hex.")]
    tenant: Annotated[str, Field(pattern=r"^[a-z0-9]{1,32}$")]
    scopes: list[ScopeName] = ["score", "generate", "sessions"]
    quotas: Quotas = Quotas()


KeyRing = Mapping[bytes, Principal]
"""Whose each key is, by its SHA-256: the time that a look-up takes tells of no key."""


def load_keys(settings: Settings) -> KeyRing | None:
    """Collect the keys of the environment and of the keys file; None where there are none.

    Raises:
        StartupError: the file cannot be read or used; the sentence names it.
    """
    if not settings.has_keys:
        return None
    plain = [
        KeyRecord(
            sha256=hashlib.sha256(key.get_secret_value().encode()).hexdigest(),
            tenant=DEFAULT_TENANT,
            scopes=sorted(ALL_SCOPES),
        )
        for key in settings.api_keys
    ]
    records = plain + _records_of_file(settings)
    if len({record.sha256 for record in records}) < len(records):
        raise StartupError(
            "RLSTM_API_KEYS, RLSTM_API_KEYS_FILE: one key is there twice, and could be either's"
        )
    return {bytes.fromhex(record.sha256): _principal(record) for record in records}


def _principal(record: KeyRecord) -> Principal:
    return Principal(
        tenant=record.tenant,
        key_id=record.sha256[:KEY_ID_DIGITS],
        scopes=frozenset(record.scopes),
        quota=record.quotas.quota(),
    )


def _records_of_file(settings: Settings) -> list[KeyRecord]:
    path = settings.api_keys_file
    if path is None:
        return []
    try:
        records = TypeAdapter(list[KeyRecord]).validate_json(path.read_bytes())
    except OSError as error:
        raise StartupError(f"RLSTM_API_KEYS_FILE: cannot read {path}: {error.strerror}") from None
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in fault["loc"]) or "the file"
        raise StartupError(f"RLSTM_API_KEYS_FILE: {path}: {place}: {reason(fault)}") from None
    if not records:
        raise StartupError(f"RLSTM_API_KEYS_FILE: {path} holds no key")
    return records


class FailedLogins:
    """Wrong keys, counted by the address they come from: `burst` at once, and one more a second.

    An address that has shown too many waits, and so do right keys that it never used before: a guess that
    fits must not stand out. Keys that it did use go on, so that others behind the same address are served.
    """

    def __init__(self, burst: int) -> None:
        self._burst = burst
        self._addresses: OrderedDict[str, tuple[TokenBucket, set[str]]] = OrderedDict()

    def failed(self, address: str) -> None:
        """Count a wrong key. Raises RateLimited when there were too many."""
        wrong, _ = self._of(address)
        wrong.take()

    def succeeded(self, address: str, key_id: str) -> None:
        """Remember the key of this address. Raises RateLimited when it is new amid too many wrong ones."""
        wrong, used = self._of(address)
        if key_id not in used:
            wrong.check()
            used.add(key_id)

    def _of(self, address: str) -> tuple[TokenBucket, set[str]]:
        """Give what an address has left of wrong keys, and the right ones that it used."""
        caller = caller_of(address)
        if (found := self._addresses.get(caller)) is None:
            wrong = TokenBucket("wrong keys from this address", PER_SECOND, burst=self._burst)
            found = self._addresses[caller] = wrong, set()
        self._addresses.move_to_end(caller)
        if len(self._addresses) > ADDRESSES:
            self._addresses.popitem(last=False)
        return found


def caller_of(address: str) -> str:
    """Give the part of an address that its holder cannot choose."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return ELSEWHERE
    if parsed.version == 6 and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed.packed, IPV6_PREFIX), strict=False))
    return str(parsed)


class Access:
    """Lets a request pass when its key may do what the path asks; says nothing about what exists."""

    def __init__(self, ring: KeyRing | None, *, host: str, failed_logins: int) -> None:
        self._ring, self._host = ring, host
        self._failed = FailedLogins(failed_logins)

    def admit(self, scope: Scope) -> Principal:
        """Give who asks. Health, and files without data, may be read without a key, spelt exactly so.

        Raises Unauthorized, Forbidden, RateLimited.
        """
        path = scope["path"]
        if (path in OPEN_PATHS or path in PAGE) and scope.get("method") in {"GET", "HEAD"}:
            return NOBODY
        headers = Headers(scope=scope)
        if self._ring is None:  # the user of this machine, but no other web page
            name = _host_name(headers.get("host", ""))
            if name != self._host and not is_loopback(name):
                raise Forbidden("without keys the server answers to this machine's own names only")
            origins = [_host_name(origin.partition("://")[2]) for origin in headers.getlist("origin")]
            sites = headers.getlist("sec-fetch-site")
            if not all(map(is_loopback, origins)) or not OWN_PAGES.issuperset(sites):
                raise Forbidden("without keys the server answers to no other web page")
            return LOCAL
        client = scope.get("client")  # of a proxy that is trusted, what it says
        principal = self._identify(self._ring, _bearer(scope, headers), str(client[0]) if client else "")
        principal.require(*_needed(path))
        if principal.quota.requests is not None:
            principal.quota.requests.take()
        return principal

    def _identify(self, ring: KeyRing, key: bytes, address: str) -> Principal:
        principal = ring.get(hashlib.sha256(key).digest())
        if principal is None:
            self._failed.failed(address)
            raise Unauthorized("the key is not known")
        self._failed.succeeded(address, principal.key_id or "")
        return principal


def _needed(path: str) -> tuple[ScopeName, ...]:
    parts = path.strip("/").split("/")
    return SCOPES.get("/".join(parts[:2]), SCOPES.get(parts[0], ADMIN))


def _bearer(scope: Scope, headers: Headers) -> bytes:
    """Give the key. A page cannot set headers of a WebSocket: its key comes as a subprotocol."""
    values = headers.getlist("authorization")
    if not values:
        offered = [name for name in scope.get("subprotocols", ()) if name.startswith(KEY_PROTOCOL)]
        values = [f"Bearer {name.removeprefix(KEY_PROTOCOL)}" for name in offered]
    if len(values) != 1 or not values[0].startswith("Bearer ") or len(values[0]) <= len("Bearer "):
        raise Unauthorized("send one header authorization: Bearer <key>")
    return values[0].removeprefix("Bearer ").encode("latin-1")


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host[1:].split("]")[0]
    return host.split(":")[0].lower()
