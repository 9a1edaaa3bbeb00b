"""Real server processes on free ports."""

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.servers import RLSTM, Server, clean_environment


@dataclass(frozen=True)
class Command:
    """The installed command, and an environment for it without settings of ours."""

    path: Path
    environment: dict[str, str]


@pytest.fixture(scope="session")
def rlstm():
    """Give the installed command."""
    return Command(RLSTM, clean_environment())


@pytest.fixture(scope="session")
def start(tiny_checkpoint, tmp_path_factory):
    """Give what starts a server and ends it afterwards, to be entered with `with`."""

    @contextmanager
    def running(*arguments, data_dir=None, model=tiny_checkpoint, **variables):
        folder = tmp_path_factory.mktemp("server")
        environment = clean_environment(RLSTM_DATA_DIR=str(data_dir or folder / "data"), **variables)
        server = Server([str(model), "--port", "0", *arguments], environment, folder / "log")
        try:
            yield server
        finally:
            server.close()

    return running


@pytest.fixture(scope="module")
def server(start):
    """One server for a module's tests, with short pings and no store on disk."""
    with start(
        "--durability", "memory", RLSTM_LIMITS__PING_SECONDS="0.2", RLSTM_LIMITS__RECEIVE_SECONDS="1"
    ) as one:
        assert one.url, one.errors()
        yield one
