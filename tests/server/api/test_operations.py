import asyncio
import random
import string
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rlstm_server.errors import StoreUnavailable
from rlstm_server.store.memory_store import MemoryStore

TEXT = "It was the best of times, it was the worst of times. "


async def samples(client):
    """Read /metrics as {(name, labels): value}."""
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(found, name, **labels):
    return found[name, tuple(sorted(labels.items()))]


def requests(found, endpoint, outcome="ok"):
    return value(found, "rlstm_requests_total", endpoint=endpoint, outcome=outcome)


async def test_metrics_count_exactly_what_was_sent(client):
    """Requests by route and outcome, tokens by kind, updates, and both losses as the answers sum them."""
    for _ in range(3):
        await client.post("/score", json={"text": TEXT})
    await client.post("/generate", json={"max_tokens": 5, "seed": 1})
    session = (await client.post("/sessions", json={})).json()["id"]
    appends = [
        (await client.post(f"/sessions/{session}/append", json={"text": TEXT})).json() for _ in range(4)
    ]
    await client.post(f"/sessions/{session}/append", json={"text": ""})
    await client.get(f"/sessions/{session}")
    for _ in range(2):
        await client.delete(f"/sessions/{session}")
    found = await samples(client)
    template = "POST /sessions/{session_id}/append"
    assert requests(found, "POST /score") == 3
    assert requests(found, "POST /generate") == 1
    assert requests(found, template) == 4
    assert requests(found, template, "client_error") == 1
    assert requests(found, "GET /sessions/{session_id}") == 1
    assert value(found, "rlstm_request_duration_seconds_count", endpoint=template) == 5
    assert value(found, "rlstm_tokens_total", kind="generated") == 5
    assert value(found, "rlstm_tokens_total", kind="scored") == 7 * len(TEXT)
    assert value(found, "rlstm_tokens_total", kind="adapted") == 4 * len(TEXT)
    assert value(found, "rlstm_gradient_norm_count") == sum(append["updates"] for append in appends)
    assert value(found, "rlstm_adapt_updates_total", outcome="applied") + value(
        found, "rlstm_adapt_updates_total", outcome="clipped"
    ) == sum(append["updates"] for append in appends)
    for weights, name in (("adapted", "logprob"), ("static", "static_logprob")):
        nats = -sum(append["totals"][name] for append in appends)
        assert value(found, "rlstm_loss_nats_total", part=weights) == pytest.approx(nats, rel=1e-6)
        assert value(found, "rlstm_loss_tokens_total", part=weights) == 4 * len(TEXT)
    assert value(found, "rlstm_sessions_created_total") == 1
    assert value(found, "rlstm_sessions_ended_total", reason="closed") == 1


async def test_the_number_of_series_does_not_depend_on_what_is_asked(client):
    """Hundreds of paths, methods, sessions and ids later there are as many series as at the start."""
    before = (await samples(client)).keys()
    draw = random.Random(7)
    for number in range(300):
        path = "/" + "".join(draw.choices(string.ascii_letters + "/%{}", k=draw.randint(1, 20)))
        method = draw.choice(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "BREW"])
        await client.request(method, f"http://localhost{path}", headers={"x-request-id": f"r{number}"})
    for number in range(20):
        made = await client.post("/sessions", json={"name": f"n{number}"})
        await client.post(f"/sessions/{made.json()['id']}/append", json={"text": "a"})
    after = await samples(client)
    assert after.keys() == before
    assert sum(count for (name, _), count in after.items() if name == "rlstm_requests_total") >= 340


async def test_sessions_are_counted_where_they_are(serve):
    """Copies in this server's memory, which is the host's without an accelerator, and all in the store."""
    async with serve() as client:
        for _ in range(3):
            await client.post("/sessions", json={"text": "a"})
        found = await samples(client)
    assert value(found, "rlstm_sessions", tier="host") == 3
    assert value(found, "rlstm_sessions", tier="device") == 0
    assert value(found, "rlstm_sessions", tier="store") == 0  # asked for every 15 s, and at the start


async def test_refusals_are_counted_by_reason(serve):
    """A wrong key is `auth`, an oversized body `too_large`; both count as rejected."""
    async with serve(api_keys="right-key") as client:
        await client.post("/score", json={"text": "a"}, headers={"authorization": "Bearer wrong-key"})
        client.headers["authorization"] = "Bearer right-key"
        await client.post("/score", json={"items": [{"text": "a"}] * 257})
        found = await samples(client)
    assert value(found, "rlstm_requests_rejected_total", reason="auth") == 1
    assert value(found, "rlstm_requests_rejected_total", reason="too_large") == 1
    assert requests(found, "POST /score", "rejected") == 2


async def test_the_lateness_of_the_event_loop_is_measured(client):
    """Several times a second, without anybody asking."""
    async with asyncio.timeout(60):
        while value(await samples(client), "rlstm_event_loop_lag_seconds_count") < 2:  # noqa: ASYNC110 - the server counts
            await asyncio.sleep(0.01)


class LostStore(MemoryStore):
    """A store that stops answering when told."""

    lost = False

    async def ping(self):
        """Answer, unless lost."""
        if self.lost:
            raise StoreUnavailable("the store does not answer")


async def test_ready_follows_the_store_and_live_does_not(serve):
    """A store that is away makes the server unready, not dead."""
    store = LostStore()
    async with serve(store=store) as client:
        assert (await client.get("/health/ready")).status_code == 200
        store.lost = True
        lost = await client.get("/health/ready")
        assert lost.status_code == 503
        assert lost.json()["type"].endswith(":store_unavailable")
        assert lost.headers["retry-after"]
        assert (await client.get("/health/live")).status_code == 200
        store.lost = False
        assert (await client.head("/health/ready")).status_code == 200


async def test_a_draining_server_takes_no_work_and_says_so(serve):
    """Ready and work are 503 `draining`; live still answers, and so do reads of what there is."""
    async with serve() as client:
        await client.app.state.services.engine.close()
        for answer in (
            await client.get("/health/ready"),
            await client.post("/score", json={"text": "a"}),
            await client.post("/generate", json={"stream": True}),
            await client.post("/sessions", json={}),
        ):
            assert answer.status_code == 503
            assert answer.json()["type"].endswith(":draining")
        assert (await client.get("/health/live")).status_code == 200
        found = await samples(client)
        assert value(found, "rlstm_draining") == 1
        assert value(found, "rlstm_requests_rejected_total", reason="drain") == 4


async def test_info_tells_a_stranger_what_runs_here(client):
    """Identity, card, limits and defaults, and the bits that a model without knowledge would need."""
    about = (await client.get("/info")).json()
    assert about["model"] == "tiny"
    assert about["vocabulary"]["uniform_bits"] == 8.0
    assert about["limits"]["append_tokens"] == 65_536
    assert about["durability"] == "memory"
    assert about["version"]
    assert "library_name: mogrifier-rlstm" in about["card"]


async def test_callers_are_told_no_place_on_the_disk(serve, tiny_checkpoint, tmp_path):
    """Neither where the model is, nor where the store is; nor by any other route."""
    async with serve(data_dir=tmp_path) as client:
        document = (await client.get("/openapi.json")).json()
        paths = [path for path, operations in document["paths"].items() if "get" in operations]
        told = [(await client.get(path)).text for path in ("/", "/openapi.json", *paths)]
    assert len(told) > 8
    for place in (tiny_checkpoint.parent, tmp_path, Path.home()):
        assert not [text for text in told if str(place) in text]
