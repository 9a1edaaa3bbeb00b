"""The examples as modules, and as the processes that people start."""

import importlib.util
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from rlstm_client import Client

FOLDER = Path(__file__).parents[3] / "clients" / "python" / "examples"


@pytest.fixture(scope="session")
def example():
    """Give what loads an example by its name."""

    def load(name):
        full = f"examples.{name}"
        if full not in sys.modules:
            spec = importlib.util.spec_from_file_location(full, FOLDER / f"{name}.py")
            sys.modules[full] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[full])
        return sys.modules[full]

    return load


@pytest.fixture
def heeds_ctrl_c():
    """Tests that a script runs in the background ignore Ctrl-C, and so would what they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def run(rlstm, heeds_ctrl_c):
    """Give what starts an example as a process; the test's end is the end of all of them."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with ExitStack() as stack:

        def start(name, *arguments):
            command = [sys.executable, str(FOLDER / f"{name}.py"), *arguments]
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
