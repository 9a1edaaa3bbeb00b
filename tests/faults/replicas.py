"""Replicas as real processes: each runs what `rlstm serve` runs, forked from one that imported all of it.

The fork server imports the server and starts no thread, so a replica is there in a fraction of a second and a
kill costs as little. A replica dies with the fork server, and that with the tests.
"""

import asyncio
import ctypes
import gc
import json
import multiprocessing
import os
import re
import resource
import signal
import sys
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

ADDRESS = re.compile(rb"http://\S+:\d+")
_PR_SET_PDEATHSIG = 1
_BUFFER = 65_536
COUNT_SECONDS = 30


@cache
def fork_server():
    """Give the context that forks replicas; its first process waits until everything is imported."""
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["orjson", "rlstm_server.cli", __name__])
    return context


class NotStarted(Exception):
    """A replica ended before it served; the message is its log."""


class Replica:
    """One server process."""

    def __init__(self, process, url, log):
        self._process = process
        self.url = url
        self.log = log
        self.paused = False

    @property
    def pid(self):
        """Its process id."""
        return self._process.pid

    @property
    def alive(self):
        """Whether it has not ended."""
        return self._process.is_alive()

    def pause(self):
        """Stop it where it is, as a long collection or a suspended machine does."""
        self.paused = True
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self):
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)
        self.paused = False

    def kill(self):
        """End it by kill -9, whatever it does."""
        self._process.kill()
        self._process.join()

    async def end(self, seconds=15):
        """Ask it to end; gives its exit code."""
        self._process.terminate()
        await asyncio.to_thread(self._process.join, seconds)
        return self._process.exitcode

    async def counts(self, folder):
        """Have it count its objects and states (see `_count_on_signal`)."""
        path = Path(folder) / f"counts-{self.pid}.json"
        path.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        async with asyncio.timeout(COUNT_SECONDS):
            while not path.exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.05)
        return json.loads(path.read_text())

    @property
    def descriptors(self):
        """How many files and sockets it has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    @property
    def resident_bytes(self):
        """Its memory, by the kernel's count."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()


class Replicas:
    """All replicas of one service, a seat for each of `ports`; 0 is one that is free."""

    def __init__(self, folder, settings, ports):
        self._context = fork_server()
        self._folder = folder
        self._settings = settings
        self._started = 0
        self._ports = ports
        self.seats = [None] * len(ports)

    @property
    def serving(self):
        """Those that were not killed; a paused one counts, for nobody can tell."""
        return [replica for replica in self.seats if replica is not None]

    def logs(self):
        """Everything that all of them wrote."""
        return "".join(
            path.read_text(errors="replace") for path in sorted(self._folder.glob("replica-*.log"))
        )

    async def start(self, seat):
        """Start a replica on a seat that is free, and wait until it listens."""
        self._started += 1
        log = self._folder / f"replica-{self._started}.log"
        receive, send = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=_serve,
            args=(self._settings | {"port": self._ports[seat]}, send, str(log), str(self._folder)),
            daemon=True,
        )
        process.start()
        send.close()
        greeting = await asyncio.to_thread(_first_line, receive)
        found = ADDRESS.search(greeting)
        if found is None:
            process.join()
            raise NotStarted(log.read_text(errors="replace"))
        self.seats[seat] = Replica(process, found[0].decode(), log)
        return self.seats[seat]

    def kill(self, seat):
        """End the replica on a seat by kill -9."""
        replica, self.seats[seat] = self.seats[seat], None
        replica.kill()

    async def end(self, seat):
        """End the replica on a seat as an operator does; gives its exit code."""
        replica, self.seats[seat] = self.seats[seat], None
        return await replica.end()

    def close(self):
        """End all of them."""
        for seat, replica in enumerate(self.seats):
            if replica is not None:
                self.kill(seat)


@asynccontextmanager
async def running(folder, settings, ports):
    """Give replicas on all seats; killed at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    replicas = Replicas(folder, settings, ports)
    try:
        await asyncio.gather(*(replicas.start(seat) for seat in range(len(ports))))
        yield replicas
    finally:
        replicas.close()


def _first_line(receive):
    line = b""
    while not line.endswith(b"\n") and (part := os.read(receive.fileno(), _BUFFER)):
        line += part
    # What it prints later nobody reads, but the pipe must not break.
    receive.keep = True
    return line


def _serve(settings, greetings, log, folder):
    """What a forked replica runs: `rlstm serve` from its settings on."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        raise AssertionError(f"forked from a process with {threads} threads")
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for name in [name for name in os.environ if name.startswith("RLSTM_")]:
        del os.environ[name]  # the tests' own, which are no settings
    # The fork server ignores SIGINT, and so would we.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(greetings.fileno(), 1)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)

    from rlstm_server import cli
    from rlstm_server.errors import StartupError
    from rlstm_server.logs import configure_logs
    from rlstm_server.settings import load_settings

    _count_on_signal(folder)
    try:
        chosen = load_settings(**settings)
        configure_logs(chosen.log_level)
        cli.run(chosen)
    except StartupError as error:
        print(error.detail, file=sys.stderr)
        sys.exit(1)


def _count_on_signal(folder):
    """On SIGUSR1 write what is alive in this process to a file: a hook of the tests, not of the product."""
    from rlstm_model.adaptation.state import AdaptedState

    def count(*_):
        gc.collect()
        alive = gc.get_objects()
        states = sum(isinstance(one, AdaptedState) for one in alive)
        counts = {"objects": len(alive), "states": states}
        path = Path(folder) / f"counts-{os.getpid()}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(counts))
        partial.replace(path)

    signal.signal(signal.SIGUSR1, count)
