"""Real server processes on free ports."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

RLSTM = Path(sys.executable).with_name("rlstm")
ADDRESS = re.compile(r"http://\S+:\d+")


def free_ports(count):
    """So many ports that nobody listens on."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]


class Server:
    """One `rlstm serve` process."""

    def __init__(self, arguments, environment, log):
        self.log = log
        self._errors = log.open("wb")
        self.process = subprocess.Popen(
            [str(RLSTM), "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
        )
        self.greeting = self.process.stdout.readline()
        found = ADDRESS.search(self.greeting)
        self.url = found[0] if found else None

    def client(self, **options):
        """A client of this server."""
        return httpx.Client(base_url=self.url, timeout=60, **options)

    def end(self, number=signal.SIGTERM, patience=30):
        """Send a signal and wait; gives the exit code and how long it took."""
        began = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(patience)
        return code, time.monotonic() - began

    def close(self):
        """End it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self.process.stdout.close()
        self._errors.close()

    def errors(self):
        """What it wrote to standard error."""
        return self.log.read_text()


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
