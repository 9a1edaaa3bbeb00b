"""Stores as real processes on a folder of their own, to be killed, paused, starved and started again."""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from rlstm_server.store.embedded import find_binary

START_SECONDS = 30
_POLL_SECONDS = 0.005
DURABLE = {
    "port": 0,
    "save": "",
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory": 512 << 20,
    "maxmemory-policy": "noeviction",
    "enable-debug-command": "local",
    "loglevel": "notice",
}


def program(name):
    """Give the path of `valkey` (the packaged one) or `redis` (the system's); None where it is not there."""
    if name == "valkey":
        return find_binary()
    found = shutil.which("redis-server")
    return None if found is None else Path(found)


class StoreProcess:
    """One Valkey or Redis server; its data stay in `folder` whatever becomes of it.

    options        over those of a store that keeps its promises
    environment    added to ours
    """

    def __init__(self, binary, folder, *, environment=None, **options):
        self._binary = binary
        self._folder = folder
        self._environment = os.environ | (environment or {})
        self._sockets = Path(tempfile.mkdtemp(prefix="rlstm-"))
        self.socket = self._sockets / "store.sock"
        self._options = DURABLE | options | {"dir": folder, "unixsocket": self.socket}
        self._process = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self):
        """Where it listens, also after a restart."""
        return f"unix://{self.socket}"

    @property
    def pid(self):
        """Its process id."""
        return self._process.pid

    @property
    def alive(self):
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def client(self, **options):
        """Give an administrator's client."""
        return Redis(unix_socket_path=str(self.socket), **{"socket_timeout": 5, **options})

    async def start(self):
        """Start it, and wait until it has loaded its data."""
        # What a killed server leaves lying is no server.
        self.socket.unlink(missing_ok=True)
        options = [part for name, value in self._options.items() for part in (f"--{name}", str(value))]
        with (self._folder / "store.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._binary), *options], stdout=log, stderr=log, env=self._environment
            )
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while not await self._answers():
            if not self.alive or asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"the store did not start:\n{self.log()[-2000:]}")
            await asyncio.sleep(_POLL_SECONDS)

    def kill(self):
        """End it by kill -9."""
        self._process.kill()
        self._process.wait()

    def pause(self):
        """Stop it where it is."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self):
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    async def admin(self, *command):
        """Send one command to it, as an administrator."""
        async with self.client() as client:
            return await client.execute_command(*command)

    def log(self):
        """What it printed."""
        return (self._folder / "store.log").read_text(errors="replace")

    def close(self):
        """End it and remove its socket."""
        if self.alive:
            self.kill()
        shutil.rmtree(self._sockets, ignore_errors=True)

    async def _answers(self):
        if not self.socket.exists():
            return False
        try:
            return bool(await self.admin("PING"))
        except (RedisError, OSError):
            return False
