"""The embedded server: one owner a folder, nothing left behind, nothing lost."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from redis import Redis

from rlstm_server.errors import StartupError, StoreUnavailable
from rlstm_server.store.embedded import EmbeddedValkey, find_binary
from rlstm_server.store.redis_store import RedisStore

from .servers import until

# A server process that starts the store, says which process that is, and waits.
OWNER = """
import asyncio, sys
from pathlib import Path
from rlstm_server.store.embedded import EmbeddedValkey

async def main():
    server = EmbeddedValkey(Path(sys.argv[1]), maxmemory_bytes=64 << 20)
    await server.start()
    print(server.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
async def server(tmp_path):
    """An embedded server on a folder of its own."""
    made = EmbeddedValkey(tmp_path / "data", maxmemory_bytes=64 << 20)
    await made.start()
    yield made
    await made.stop()


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def once_there(call):
    """What a call gives when the store is there again."""
    for _ in range(400):
        await asyncio.sleep(0.05)
        with suppress(StoreUnavailable):
            return await call()
    raise AssertionError("the store did not come back")


async def test_it_is_set_up_to_lose_nothing(server):
    """It passes the check that any server must pass, on a socket of its own and on no port."""
    store = RedisStore(server.url)
    await store.check()
    with Redis.from_url(server.url, protocol=2) as admin:
        settings = admin.config_get("*")

    assert store.durability == "fsync"
    assert settings["port"] == "0"
    assert settings["auto-aof-rewrite-min-size"] == str(64 << 20)
    assert Path(settings["unixsocket"]).parent.stat().st_mode & 0o077 == 0
    await store.close()


async def test_a_second_owner_is_refused_by_name(server, tmp_path):
    """Another server on the same folder is told which process holds it; the same does not start again."""
    pid = server.pid
    with pytest.raises(StartupError, match=f"held by process {os.getpid()}"):
        await EmbeddedValkey(tmp_path / "data").start()
    with pytest.raises(StartupError, match="already"):
        await server.start()

    assert server.pid == pid
    assert exists(pid)
    assert os.getpgid(pid) != os.getpgid(0)  # Ctrl-C reaches its owner alone


async def test_a_killed_store_comes_back_with_its_data(server, build):
    """Under supervision, again and again: it is started and has all that was acknowledged."""
    store = RedisStore(server.url, timeout_s=20)
    await store.check()
    key, at = await build.session(store)
    watch = asyncio.create_task(server.supervise(every_s=0.05))
    for _ in range(3):
        at = (await store.commit(build.commit(key, at))).revision
        os.kill(server.pid, signal.SIGKILL)
        assert (await once_there(lambda: store.load_head(key))).revision == at
    watch.cancel()
    await asyncio.wait([watch])
    await store.close()


def test_a_killed_owner_leaves_no_store_behind(tmp_path):
    """After kill -9 of a server its store ends too."""
    with subprocess.Popen([sys.executable, "-c", OWNER, tmp_path], stdout=subprocess.PIPE) as owner:
        pid = int(owner.stdout.readline())
        assert exists(pid)
        owner.kill()

    until(lambda: not exists(pid))


async def test_an_orphan_is_taken_over(tmp_path, monkeypatch, build):
    """A store that outlived its owner, as where no signal tells it, is ended by the next one."""
    monkeypatch.setattr(
        "rlstm_server.store.embedded._SHIM", "import os, sys; os.execv(sys.argv[2], sys.argv[2:])"
    )
    owner = EmbeddedValkey(tmp_path, maxmemory_bytes=64 << 20)
    await owner.start()
    store = RedisStore(owner.url)
    await store.check()
    key, _ = await build.session(store)
    await store.close()
    pid, socket = owner.pid, owner.url.removeprefix("unix://")
    os.close(owner._lock)  # the owner is gone; its store is not

    heir = EmbeddedValkey(tmp_path, maxmemory_bytes=64 << 20)
    await heir.start()

    owner._process.wait()
    assert heir.pid != pid
    assert not Path(socket).parent.exists()
    store = RedisStore(heir.url)
    assert (await store.load_head(key)).version == 0
    await store.close()
    await heir.stop()


async def test_a_store_that_cannot_start_says_why(tmp_path):
    """A damaged log ends the start with the server's own words, and leaves the folder free."""
    damaged = tmp_path / "valkey" / "appendonlydir"
    damaged.mkdir(parents=True)
    (damaged / "appendonly.aof.manifest").write_text("nonsense\n")
    server = EmbeddedValkey(tmp_path)

    with pytest.raises(StartupError, match="manifest"):
        await server.start()

    (damaged / "appendonly.aof.manifest").unlink()
    await server.start()
    await server.stop()


async def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    """A file where the folder should be is an error that names it."""
    (tmp_path / "file").write_text("")

    with pytest.raises(StartupError, match="file"):
        await EmbeddedValkey(tmp_path / "file").start()


async def test_a_long_temporary_path_is_avoided(tmp_path, monkeypatch):
    """A socket's path must be short, whatever TMPDIR is."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    server = EmbeddedValkey(tmp_path / "data", maxmemory_bytes=64 << 20)

    await server.start()

    assert len(server.url) < 115
    await server.stop()


def test_a_program_is_found_or_asked_for(monkeypatch, tmp_path):
    """The packaged one first, then one on PATH, else an error that names the way out."""
    assert find_binary().name == "valkey-server"

    monkeypatch.setattr("rlstm_server.store.embedded.files", lambda package: None)
    (tmp_path / "redis-server").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_binary() == tmp_path / "redis-server"
    (tmp_path / "redis-server").unlink()
    with pytest.raises(StartupError, match="RLSTM_REDIS_URL"):
        find_binary()
