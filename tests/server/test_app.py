import asyncio
import gc

import pytest

from rlstm_server.api.auth import ALL_SCOPES, SCOPES
from rlstm_server.app import create_app
from rlstm_server.errors import StartupError
from rlstm_server.settings import Settings
from rlstm_server.store.memory_store import MemoryStore


def routes(app):
    """Every route that answers requests, with its method."""
    found = app.openapi()["paths"]
    documented = [(method.upper(), path) for path, item in found.items() for method in item]
    return [*documented, ("GET", "/openapi.json")]


async def test_every_route_has_a_scope(serve):
    """A new route must be named in the table, or only admins reach it."""
    async with serve() as client:
        parts = [template.split("/")[1:3] for _, template in routes(client.app)]
    paths = [{first, "/".join([first, *second])} for first, *second in parts]
    named = set().union(*(path & SCOPES.keys() or path for path in paths))
    assert {name for name in named if not name.startswith("health")} == set(SCOPES)
    assert {scope for scopes in SCOPES.values() for scope in scopes} == ALL_SCOPES


async def test_two_applications_in_one_process_share_nothing(serve):
    """Sessions and counts are each one's own."""
    async with serve() as first, serve() as second:
        await first.post("/sessions", json={"name": "mine"})
        assert (await second.get("/sessions")).json()["sessions"] == []
        assert 'endpoint="POST /sessions",outcome="ok"} 0.0' in (await second.get("/metrics")).text


async def test_without_calibration_a_server_scores_and_does_not_learn(serve, uncalibrated):
    """Learning is refused by a sentence that says what is missing; everything else works."""
    async with serve(model=uncalibrated) as client:
        assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["tiny"]
        assert (await client.post("/score", json={"text": "a"})).status_code == 200
        refused = await client.post("/score", json={"text": "a", "adapt": True})
        assert refused.status_code == 422
        assert "calibration" in refused.json()["detail"]


async def test_of_two_faults_at_the_start_one_is_told(monkeypatch):
    """The other is nobody's any more, and no fault of a running server."""
    told, store = [], MemoryStore()

    async def check():
        await asyncio.sleep(0.1)
        raise StartupError("no store")

    monkeypatch.setattr(store, "check", check)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    app = create_app(Settings(model="/no/such/model"), store=store)
    with pytest.raises(StartupError, match="no store"):
        async with app.router.lifespan_context(app):
            pass
    gc.collect()
    assert not told


async def test_the_engine_is_built_by_the_settings(serve):
    """Rows of a batch step, memory for copies, and places in the queue."""
    async with serve(rows=24, cache_bytes=1_000_000, limits={"queued_jobs": 77}) as client:
        services = client.app.state.services
        engine = services.engine
        assert (engine.worker.rows, engine.worker.capacity) == (24, 77)
        assert engine.sessions.cache.max_bytes == 1_000_000
        assert services.about["limits"]["queued_jobs"] == 77
