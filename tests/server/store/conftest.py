"""Every store under one roof: a kit makes stores of one kind and lets time pass for them."""

import asyncio
import os
import re
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis import Redis

from rlstm_server.store.base import (
    Commit,
    Creation,
    Retention,
    Revision,
    SessionKey,
    SessionStore,
    new_id,
)
from rlstm_server.store.embedded import EmbeddedValkey
from rlstm_server.store.memory_store import MemoryStore
from rlstm_server.store.redis_store import RedisStore

from .proxy import FaultyProxy
from .servers import DEPLOY, program

HOUR_MS = 3_600_000


class FakeClock:
    """A clock that stands still between calls of `advance`."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        """Return the time."""
        return self.now_ms

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self.now_ms += ms


@dataclass(frozen=True, kw_only=True)
class Kit:
    """One kind of store. `wait` lets its clock pass the given milliseconds."""

    kind: str
    make: Callable[[Retention], SessionStore]
    wait: Callable[[int], None]


def memory_kit() -> Kit:
    clock = FakeClock()
    return Kit(
        kind="memory",
        make=lambda limits: MemoryStore(limits=limits, clock_ms=clock),
        wait=clock.advance,
    )


def redis_kit(kind: str, url: str) -> Kit:
    def make(limits: Retention) -> SessionStore:
        # stalls of a loaded test machine are not what these tests are about
        return RedisStore(url, limits=limits, timeout_s=20)

    return Kit(kind=kind, make=make, wait=lambda ms: time.sleep(ms / 1000))


@pytest.fixture(scope="session")
def embedded_url() -> Iterator[str]:
    """The address of an embedded Valkey that all tests share."""
    yield from _serve(None)


@pytest.fixture(scope="session")
def debian_url() -> Iterator[str]:
    """The address of a redis-server from PATH that all tests share."""
    yield from _serve(program("redis"))


@pytest.fixture
def admin(embedded_url: str) -> Iterator[Redis]:
    """A direct connection to the shared server."""
    with Redis.from_url(embedded_url, protocol=2) as client:
        yield client


def _serve(binary: Path | None) -> Iterator[str]:
    # in memory where that can be: these tests are about what is stored, and a disk takes its time
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as data_dir:
        server = EmbeddedValkey(Path(data_dir), binary=binary, maxmemory_bytes=256 << 20)
        asyncio.run(server.start())
        asyncio.run(_install(server.url))
        yield server.url
        asyncio.run(server.stop())


async def _install(url: str) -> None:
    store = RedisStore(url, timeout_s=20)
    await store.check()
    await store.close()


def with_few_rights(url: str) -> str:
    """Return the address for the user that `deploy/redis` gives to servers, whose rights must be enough."""
    [rights] = re.findall(r"^user rlstm (.*)$", (DEPLOY / "users.acl").read_text(), re.MULTILINE)
    with Redis.from_url(url, protocol=2) as admin:
        admin.execute_command("ACL", "SETUSER", "rlstm", "reset", *rights.split())
    return url.replace("unix://", "unix://rlstm:RLSTM-PASSWORD@")


@pytest.fixture(params=["memory", "valkey", "redis"])
def kit(request: pytest.FixtureRequest) -> Kit:
    """A kind of store: in memory, the embedded Valkey, Debian's Redis."""
    if request.param == "memory":
        return memory_kit()
    fixture = "embedded_url" if request.param == "valkey" else "debian_url"
    return redis_kit(request.param, with_few_rights(request.getfixturevalue(fixture)))


@pytest.fixture
async def store(kit: Kit) -> AsyncIterator[SessionStore]:
    """A store with the limits that servers use."""
    made = kit.make(Retention())
    await made.check()
    yield made
    await made.close()


@dataclass(frozen=True)
class Builder:
    """Makes requests of one tenant, with values of no importance but for those given."""

    tenant: str

    def creation(self, **changes: object) -> Creation:
        """Return a creation of a fresh session."""
        values: dict[str, object] = {
            "key": SessionKey(self.tenant, new_id()),
            "operation_id": new_id(),
            "body_hash": b"c" * 32,
            "name": None,
            "info": b"{}",
            "state": b"state 0",
            "ttl_ms": HOUR_MS,
            "answer": b"created",
        }
        return Creation(**(values | changes))  # type: ignore[arg-type]

    def commit(self, key: SessionKey, expects: Revision, **changes: object) -> Commit:
        """Return a commit of a fresh operation."""
        number = expects.version + 1
        values: dict[str, object] = {
            "key": key,
            "operation_id": new_id(),
            "body_hash": b"b" * 32,
            "if_match": None,
            "expects": expects,
            "info": b"{}",
            "state": f"state {number}".encode(),
            "ttl_ms": HOUR_MS,
            "summary": f"summary {number}".encode(),
            "details": f"details {number}".encode(),
        }
        return Commit(**(values | changes))  # type: ignore[arg-type]

    def of_another_tenant(self) -> "Builder":
        """Return requests of somebody else."""
        return Builder(f"{self.tenant[:31]}x")

    async def session(self, store: SessionStore, **changes: object) -> tuple[SessionKey, Revision]:
        """Make a session, and say where it stands."""
        creation = self.creation(**changes)
        await store.create(creation)
        return creation.key, creation.revision


@pytest.fixture
def build() -> Builder:
    """Requests of a tenant of its own, since stores are shared by all tests."""
    return Builder(uuid.uuid4().hex)


@pytest.fixture
async def proxy(embedded_url: str) -> AsyncIterator[FaultyProxy]:
    """A proxy before the embedded Valkey."""
    async with FaultyProxy(embedded_url) as faulty:
        yield faulty
