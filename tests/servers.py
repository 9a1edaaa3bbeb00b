"""Real server processes on free ports."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx

RLSTM = Path(sys.executable).with_name("rlstm")
ADDRESS = re.compile(r"http://\S+:\d+")


def free_ports(count):
    """So many ports that nobody listens on, below those that the system gives to connections."""
    with ExitStack() as stack:
        ports = []
        while len(ports) < count:
            held, port = stack.enter_context(socket.socket()), random.randrange(20_000, 32_000)
            with suppress(OSError):
                held.bind(("127.0.0.1", port))
                ports.append(port)
        return ports


def until(condition, *, within=20.0, passing=(OSError,), said=lambda: "it did not come to pass"):
    """Wait for a condition and give its value; what is `passing` counts as not yet."""
    deadline = time.monotonic() + within
    while True:
        with suppress(*passing):
            if found := condition():
                return found
        assert time.monotonic() < deadline, said()
        time.sleep(0.02)


class Process:
    """A program whose output goes to a file; it may be started again after its end."""

    process = None

    def __init__(self, command, log, environment=None, **options):
        self.command, self.log = [str(part) for part in command], log
        self._options = {"env": environment, **options}

    @property
    def alive(self):
        """Whether it runs."""
        return self.process is not None and self.process.poll() is None

    def start(self):
        """Start it."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, **{"stdout": log, "stderr": log, **self._options})
        return self

    def check(self):
        """Whether it runs still; a failure says what it wrote."""
        assert self.alive, self.errors()[-2_000:]
        return True

    def kill(self):
        """End it by kill -9."""
        self.process.kill()
        self.process.wait(10)

    def pause(self):
        """Stop it where it is; its connections stay open."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def end(self, number=signal.SIGTERM, patience=30):
        """Send a signal and wait; gives the exit code and how long it took."""
        began = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(patience)
        return code, time.monotonic() - began

    def close(self):
        """End it, if it runs."""
        if self.alive:
            self.kill()

    def errors(self):
        """What it wrote."""
        return self.log.read_text()


class Server(Process):
    """One `rlstm serve` process; its log is what it wrote to standard error."""

    def __init__(self, arguments, environment, log):
        super().__init__([RLSTM, "serve", *arguments], log, environment, stdout=subprocess.PIPE, text=True)
        self.start()
        self.greeting = self.process.stdout.readline()
        found = ADDRESS.search(self.greeting)
        self.url = found[0] if found else None

    def client(self, **options):
        """A client of this server."""
        return httpx.Client(base_url=self.url, timeout=60, **options)

    def close(self):
        """End it, whatever it does."""
        super().close()
        self.process.stdout.close()


def clean_environment(**variables):
    """Give this environment without settings of ours, plus `variables`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RLSTM_")}
    return kept | {"OMP_NUM_THREADS": "1"} | variables


@contextmanager
def serving(folder, *arguments, **variables):
    """A server whose log, and whose data unless the variables say otherwise, are in `folder`."""
    environment = clean_environment(**({"RLSTM_DATA_DIR": str(folder / "data")} | variables))
    server = Server(["--port", "0", *map(str, arguments)], environment, folder / "log")
    try:
        yield server
    finally:
        server.close()
