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

from rlstm_server.errors import OutcomeUnknown, StartupError, StoreUnavailable
from rlstm_server.store import embedded
from rlstm_server.store.embedded import EmbeddedValkey, find_binary
from rlstm_server.store.redis_store import RedisStore

# A server process that starts the store, commits as often as it can, and tells each acknowledged version.
OWNER = """
import asyncio, sys
from pathlib import Path
from rlstm_server.store.base import Commit, Creation, SessionKey
from rlstm_server.store.embedded import EmbeddedValkey
from rlstm_server.store.redis_store import RedisStore

async def main():
    server = EmbeddedValkey(Path(sys.argv[1]), maxmemory_bytes=64 << 20)
    await server.start()
    store = RedisStore(server.url, timeout_s=20)
    await store.check()
    key = SessionKey("owner", "session")
    creation = Creation(key=key, operation_id="op", body_hash=b"b" * 32, name=None, info=b"{}", state=b"s",
                        ttl_ms=3_600_000, answer=b"")
    await store.create(creation)
    print("pid", server.pid, flush=True)
    at = creation.position
    while True:
        commit = Commit(key=key, operation_id=str(at.version), body_hash=b"b" * 32, if_match=None, expects=at,
                        info=b"{}", state=b"s" * 10_000, ttl_ms=3_600_000, summary=b"")
        at = (await store.commit(commit)).position
        print("acknowledged", at.version, flush=True)

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


async def gone(pid: int) -> bool:
    for _ in range(500):
        if not exists(pid):
            return True
        await asyncio.sleep(0.02)
    return False


def kill_owner_at_work(data_dir: Path) -> tuple[int, list[int]]:
    """Return the process id of its store, and the versions it acknowledged before it was killed."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, data_dir], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline().split()[1])
        told = [owner.stdout.readline() for _ in range(20)]
        owner.kill()
        told += owner.stdout.readlines()
        return pid, [int(line.split()[1]) for line in told]


async def wait_until_ended(server: EmbeddedValkey) -> None:
    """Return when the killed process can be waited for, which takes until its last thread has ended."""
    for _ in range(1_000):
        if server.pid is None:
            return
        await asyncio.sleep(0.01)


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


async def test_data_outlive_a_stop(tmp_path, build):
    """What was committed is there after a proper stop and a new start, functions included."""
    first = EmbeddedValkey(tmp_path, maxmemory_bytes=64 << 20)
    await first.start()
    store = RedisStore(first.url)
    await store.check()
    key, start = await build.session(store)
    at = (await store.commit(build.commit(key, start))).position
    await store.close()
    pid = first.pid
    await first.stop()

    second = EmbeddedValkey(tmp_path, maxmemory_bytes=64 << 20)
    await second.start()
    store = RedisStore(second.url)
    head = await store.load_head(key)

    assert not exists(pid)
    assert (head.position, head.state) == (at, b"state 1")
    await store.close()
    await second.stop()


async def test_a_second_owner_is_refused_by_name(server, tmp_path):
    """Another server on the same folder is told which process holds it, and harms nothing."""
    second = EmbeddedValkey(tmp_path / "data")

    with pytest.raises(StartupError, match=f"held by process {os.getpid()}"):
        await second.start()

    assert exists(server.pid)


async def test_starting_twice_is_an_error(server):
    """The same object does not start a second process."""
    pid = server.pid

    with pytest.raises(StartupError, match="already"):
        await server.start()

    assert server.pid == pid


async def test_a_killed_store_comes_back_with_its_data(server, build):
    """Killed between commits, again and again, it is started again and has all that was acknowledged."""
    store = RedisStore(server.url, timeout_s=20)
    await store.check()
    key, at = await build.session(store)
    for _ in range(3):
        at = (await store.commit(build.commit(key, at))).position
        os.kill(server.pid, signal.SIGKILL)
        await wait_until_ended(server)
        with pytest.raises(StoreUnavailable):
            await store.load_head(key)

        assert await server.ensure_running()

        assert (await store.load_head(key)).position == at
    assert not await server.ensure_running()
    await store.close()


async def test_a_full_disk_loses_nothing(tmp_path, build, monkeypatch):
    """When the log cannot grow the store refuses or ends, and all that it acknowledged is there later."""
    limited = "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))"
    monkeypatch.setattr("rlstm_server.store.embedded._SHIM", "import resource\n" + limited + embedded._SHIM)
    full = EmbeddedValkey(tmp_path, maxmemory_bytes=64 << 20)
    await full.start()
    store = RedisStore(full.url, timeout_s=20)
    await store.check()
    key, at = await build.session(store)
    acknowledged = 0
    with suppress(StoreUnavailable, OutcomeUnknown):
        while acknowledged < 1_000:
            at = (await store.commit(build.commit(key, at, state=bytes(20_000)))).position
            acknowledged = at.version
    await store.close()
    await full.stop()

    monkeypatch.undo()
    roomy = EmbeddedValkey(tmp_path, maxmemory_bytes=64 << 20)
    await roomy.start()
    store = RedisStore(roomy.url)
    present = (await store.load_head(key)).version

    print(f"disk full: acknowledged {acknowledged}, present {present}")
    assert 0 < acknowledged < 15
    assert present in (acknowledged, acknowledged + 1)
    await store.close()
    await roomy.stop()


async def test_supervision_needs_nobody(server, build):
    """Under supervision a killed store is back by itself."""
    store = RedisStore(server.url, timeout_s=20)
    await store.check()
    key, start = await build.session(store)
    watch = asyncio.create_task(server.supervise(every_s=0.05))
    os.kill(server.pid, signal.SIGKILL)

    version = None
    for _ in range(200):
        await asyncio.sleep(0.05)
        try:
            version = (await store.load_head(key)).version
            break
        except StoreUnavailable:
            continue

    watch.cancel()
    await asyncio.wait([watch])
    assert version == start.version == 0
    await store.close()


async def test_a_killed_owner_leaves_nothing_behind_and_loses_nothing(tmp_path):
    """After kill -9 of the server its store ends too, and the next owner finds every acknowledged commit."""
    pid, acknowledged = await asyncio.to_thread(kill_owner_at_work, tmp_path)
    assert await gone(pid)
    heir = EmbeddedValkey(tmp_path, maxmemory_bytes=64 << 20)
    await heir.start()

    with Redis.from_url(heir.url, protocol=2) as admin:
        version = int(admin.hget("rlstm:{owner/session}:head", "version"))
    assert version in (acknowledged[-1], acknowledged[-1] + 1)
    await heir.stop()


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


async def test_ctrl_c_reaches_only_the_owner(server):
    """The store is not in the process group that a terminal interrupts."""
    assert os.getpgid(server.pid) != os.getpgid(0)


async def test_stop_leaves_no_process_and_no_socket(tmp_path):
    """After a stop the folder is free, the socket's folder is gone, and a second stop does nothing."""
    server = EmbeddedValkey(tmp_path, maxmemory_bytes=64 << 20)
    await server.start()
    pid, folder = server.pid, Path(server.url.removeprefix("unix://")).parent

    await server.stop()
    await server.stop()

    assert not exists(pid)
    assert not folder.exists()
    with pytest.raises(StartupError):
        _ = server.url


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


async def test_without_a_folder_nothing_is_written(build):
    """Durability memory: a Valkey without a file, that says so, and leaves nothing behind."""
    server = EmbeddedValkey(None, maxmemory_bytes=64 << 20)
    await server.start()
    folder = server._data_dir
    store = RedisStore(server.url, durability="memory", allow_weaker=True, shared=False)
    await store.check()
    key, start = await build.session(store)
    await store.commit(build.commit(key, start))

    assert store.durability == "memory"
    assert not list((folder / "valkey").iterdir())
    watch = asyncio.create_task(server.supervise(store.check, every_s=0.05))
    os.kill(server.pid, signal.SIGKILL)
    made = None
    for _ in range(200):
        await asyncio.sleep(0.05)
        with suppress(StoreUnavailable):
            made = await build.session(store)  # empty, with its functions
            break
    assert made is not None
    watch.cancel()
    await asyncio.wait([watch])
    await store.close()
    await server.stop()
    assert not folder.exists()
