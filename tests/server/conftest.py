"""A whole server around a small random model, talked to without a port."""

import hashlib
import json
import logging
import shutil
from contextlib import asynccontextmanager

import httpx
import pytest

from rlstm_model.checkpoint import ADAPTATION
from rlstm_server.app import create_app
from rlstm_server.logs import AUDIT, LOGGER
from rlstm_server.settings import Settings
from rlstm_server.store.memory_store import MemoryStore

from .documented import checks


class Client(httpx.AsyncClient):
    """A client of an application in this process, `app`."""

    async def ask(self, status, method, path, body=None, **options):
        """Ask for what is answered with this status, and give what that says."""
        answer = await self.request(method, path, json=body, **options)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None


@pytest.fixture(scope="session")
def serve(tiny_checkpoint):
    """Give what runs an application and makes a client of it, to be entered with `async with`."""

    @asynccontextmanager
    async def running(*, store=None, headers=None, tracer_provider=None, **settings):
        app = create_app(
            Settings(**{"model": str(tiny_checkpoint), **settings}),
            store=store or MemoryStore(),
            tracer_provider=tracer_provider,
        )
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            Client(transport=transport, base_url="http://localhost", headers=headers) as client,
        ):
            client.app = app
            client.event_hooks = {"response": [checks(app)]}
            yield client

    return running


@pytest.fixture
async def client(serve):
    """A client of a server with default settings."""
    async with serve() as client:
        yield client


@pytest.fixture
def uncalibrated(tiny_checkpoint, tmp_path):
    """The same model without what it would learn by."""
    folder = tmp_path / "tiny"
    return str(shutil.copytree(tiny_checkpoint, folder, ignore=shutil.ignore_patterns(ADAPTATION)))


@pytest.fixture
def key_file(tmp_path):
    """Write a file of keys, with what the record of each says beside its digest; of tenant `a` if unsaid."""

    def write(keys):
        path = tmp_path / "keys.json"
        digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in keys}
        path.write_text(json.dumps([{"sha256": digests[name], "tenant": "a", **keys[name]} for name in keys]))
        return path

    return write


@pytest.fixture
def restored_logs():
    """Leave logging as it was."""
    loggers = [logging.getLogger(name) for name in (LOGGER, "uvicorn", AUDIT, None)]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        for handler in logger.handlers:
            if handler not in handlers:
                handler.close()
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)
