"""E4: a pickle that would run a program, put wherever bytes are stored or taken: nothing of it ever runs."""

import hashlib
import io
import json
import os
import pickle
import re
import shutil
import tempfile
import zipfile
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from redis import Redis
from tests.memory_store import MemoryStore

from rlstm_server.app import create_app
from rlstm_server.engine.state import MAGIC
from rlstm_server.settings import Settings
from rlstm_server.store.base import SessionKey
from rlstm_server.store.embedded import EmbeddedValkey
from rlstm_server.store.redis_client import session_key
from rlstm_server.store.redis_store import RedisStore

OCTETS = {"content-type": "application/octet-stream"}
ONCE = {"idempotency-key": "k-1"}
COMPUTED = (b"expires_at", b"details_from", b"details_bytes", b"o:k-1")
"""What the store's own functions compute with: they fail there, before any of us sees it."""


class Bomb:
    """What leaves a file behind when somebody loads it."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        """Make whoever unpickles this run a program."""
        return os.system, (f"touch {self.marker}",)


def bombs(marker):
    """The bomb in every wrapping that some loader unpacks."""
    plain = [pickle.dumps(Bomb(marker), protocol) for protocol in (0, 2, 5)]
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", plain[1])
        file.writestr("archive/version", "3\n")
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + plain[1]
    return {
        "text": plain[0],
        "binary": plain[1],
        "newest": plain[2],
        "torch": archive.getvalue(),
        "numpy": array,
    }


def armed(value, bomb):
    """A value with the bomb in its place: as it is, and where there was a checksum, with the right one."""
    if not value.startswith(MAGIC):
        return [bomb]
    header = json.dumps({"__metadata__": {"rlstm": "{}"}}).encode()
    whole = len(header).to_bytes(8, "little") + header + bomb
    return [bomb, _sealed(bomb), _sealed(whole)]


def _sealed(content):
    return MAGIC + hashlib.blake2b(content, digest_size=32).digest() + content


@pytest.fixture
def marker(tmp_path):
    """A file that is there only after a bomb went off; one does, to show that they would."""
    path = tmp_path / "went-off"
    for bomb in bombs(path).values():
        if not bomb.startswith((b"PK", b"\x93")):
            pickle.loads(bomb)
            assert path.exists()
            path.unlink()
    return path


@pytest.fixture
async def valkey():
    """A Valkey of our own, in memory where that can be; gives its address."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(dir=memory))
    server = EmbeddedValkey(folder, maxmemory_bytes=64 << 20)
    await server.start()
    yield server.url
    await server.stop()
    shutil.rmtree(folder)


@asynccontextmanager
async def served(model, store):
    """A client of a server that keeps no copies: every call reads what is stored."""
    settings = Settings(model=str(model), cache_bytes=0)
    app = create_app(settings, store=store)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client


class Target:
    """A session whose values lie in a store: named, changed and put back one by one."""

    def __init__(self, admin, session):
        self.admin = admin
        own = session_key(SessionKey("default", session), "*")
        self.keys = sorted(admin.scan_iter(own.replace("{", "[{]").replace("}", "[}]")))

    def places(self):
        """Every field of every hash."""
        for key in self.keys:
            yield from ((key, name, value) for name, value in self.admin.hgetall(key).items())

    def put(self, key, name, value):
        """Put another value there."""
        self.admin.hset(key, name, value)


async def use(client, session):
    """Everything that reads a session; gives each answer."""
    path = f"/sessions/{session}"
    yield await client.get(path)
    yield await client.get("/sessions")
    yield await client.post(f"{path}/score", json={"candidates": [{"text": "a"}]})
    yield await client.post(f"{path}/append", json={"text": "again"}, headers=ONCE)
    yield await client.get(f"{path}/snapshots")
    yield await client.post(f"{path}/restore", json={"snapshot": "one"})
    yield await client.get(f"{path}/export")


async def metrics(client):
    return (await client.get("/metrics")).text


async def restored(client, session):
    """What a client is told who goes back to the snapshot."""
    return await client.post(f"/sessions/{session}/restore", json={"snapshot": "one"})


async def test_a_pickle_in_the_store_never_runs(tiny_checkpoint, valkey, marker):
    """In any value of a session, with a checksum or without: it is refused as damage, never loaded."""
    bomb = bombs(marker)["binary"]
    async with served(tiny_checkpoint, RedisStore(valkey, timeout_s=20)) as client:
        made = (await client.post("/sessions", json={"text": "before"})).json()["id"]
        await client.post(f"/sessions/{made}/append", json={"text": "again"}, headers=ONCE)
        await client.post(f"/sessions/{made}/snapshots", json={"name": "one"})
        statuses, faults = set(), []
        with Redis.from_url(valkey, protocol=2) as admin:
            target = Target(admin, made)
            whole = {key: admin.dump(key) for key in target.keys}
            for key, name, value in list(target.places()):
                for weapon in armed(value, bomb):
                    target.put(key, name, weapon)
                    async for answer in use(client, made):
                        statuses.add(answer.status_code)
                        fault = answer.status_code >= 500 and name not in COMPUTED
                        if fault and not answer.json()["type"].endswith(":state_corrupt"):
                            faults.append(
                                (key, name, answer.request.method, answer.request.url.path, answer.text)
                            )
                    for one, dumped in whole.items():
                        admin.restore(one, 0, dumped, replace=True)
        assert not marker.exists()
        assert not faults, "\n".join(
            sorted({f"{key.split(b':')[-1]} {name} {method}" for key, name, method, *_ in faults})
        )
        assert 500 in statuses
        refused = re.findall(
            r"^rlstm_restore_failures_total.* ([0-9.]+)$", await metrics(client), re.MULTILINE
        )
        assert sum(map(float, refused)) > 0
        assert (await restored(client, made)).status_code == 200


async def test_a_pickle_that_is_imported_never_runs(tiny_checkpoint, marker):
    """As the file, and as its header, its tensors and behind them: 422."""
    async with served(tiny_checkpoint, MemoryStore()) as client:
        made = (await client.post("/sessions", json={"text": "before"})).json()["id"]
        whole = (await client.get(f"/sessions/{made}/export")).content
        for kind, bomb in bombs(marker).items():
            for data in files_with(bomb, whole):
                answer = await client.post("/sessions/import", content=data, headers=OCTETS)
                assert answer.status_code == 422, (kind, answer.text)
                assert answer.json()["type"].endswith(":import_rejected")
    assert not marker.exists()


def files_with(bomb, whole):
    """The bomb as a file, and in every part of an export, with the right lengths."""
    end = 8 + int.from_bytes(whole[:8], "little")
    header, tensors = json.loads(whole[8:end]), whole[end:]

    def file(text, behind):
        return len(text).to_bytes(8, "little") + text + behind

    said = header | {"__metadata__": {"rlstm": bomb.decode("latin-1")}}
    yield from (bomb, file(bomb, tensors), file(whole[8:end], bomb), whole + bomb)
    yield from (file(json.dumps(said).encode(), tensors), file(b"{}", bomb))
