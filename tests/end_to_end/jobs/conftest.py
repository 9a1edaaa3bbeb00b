"""The jobs as the processes that people start."""

import signal
import subprocess
from contextlib import ExitStack

import pytest

from rlstm_client import Client


@pytest.fixture
def heeds_ctrl_c():
    """Tests that a script runs in the background ignore Ctrl-C, and so would what they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def run(rlstm, heeds_ctrl_c):
    """Give what starts a job as a process; the test's end is the end of all of them."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with ExitStack() as stack:

        def start(name, *arguments):
            command = [str(rlstm.path), name, *map(str, arguments)]
            process = subprocess.Popen(command, env=rlstm.environment, encoding="utf-8", **pipes)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture(scope="session")
def shipped(start):
    """One server of the shipped model."""
    with start("--durability", "memory", model="bytes-small") as one:
        assert one.url, one.errors()
        yield one


@pytest.fixture
def client(server):
    """A client of that server."""
    with Client(server.url) as one:
        yield one
