import asyncio
import logging

import httpx
import pytest

from rlstm_server.api.auth import Access
from rlstm_server.api.layer import RequestLayer
from rlstm_server.api.tracing import Endpoints
from rlstm_server.metrics import Metrics
from rlstm_server.settings import Limits


async def ask(app, metrics=None, **headers):
    layer = RequestLayer(
        app,
        access=Access(None, host="a", failed_logins=1),
        endpoints=Endpoints(()),
        limits=Limits(),
        metrics=metrics or Metrics(),
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(layer), base_url="http://a") as client:
        return await client.get("/canary", headers=headers)


async def fine(scope, receive, send):
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def broken(scope, receive, send):
    raise RuntimeError("canary at 0x7f00")


async def test_a_request_id_is_taken_or_made():
    """One that is like ours comes back; anything else is replaced, and never repeated."""
    assert (await ask(fine, **{"x-request-id": "abc-1.2_3"})).headers["x-request-id"] == "abc-1.2_3"
    for bad in ("", "two words", "x" * 65, "<canary>", "é".encode()):
        made = (await ask(fine, **{"x-request-id": bad})).headers["x-request-id"]
        assert len(made) == 32
        assert made != bad


async def test_every_answer_carries_the_security_headers():
    """No sniffing, no framing, no caching, and nothing that lets another origin read it."""
    answer = await ask(fine, origin="https://evil.example")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert "server" not in answer.headers
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_an_exception_nobody_expected_is_a_fixed_500(caplog):
    """With the request id, by which the log tells more."""
    with caplog.at_level(logging.INFO, logger="rlstm_server"):
        answer = await ask(broken, **{"x-request-id": "r-77"})
    assert answer.status_code == 500
    assert answer.json()["request_id"] == "r-77"
    assert answer.json()["type"].endswith(":internal_error")
    assert "canary" not in answer.text
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.request_id == "r-77"


async def test_an_exception_after_the_first_byte_breaks_the_connection():
    """A cut answer must not look complete."""

    async def half(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await ask(half)


async def test_every_request_is_counted_once_whatever_becomes_of_it():
    """Also the one that broke."""
    metrics = Metrics()
    await ask(fine, metrics)
    await ask(broken, metrics)
    counted = {
        outcome: metrics.requests.labels("unknown", outcome)._value.get()
        for outcome in ("ok", "server_error")
    }
    assert counted == {"ok": 1, "server_error": 1}


async def test_a_request_that_its_server_cancels_counts_as_cancelled():
    """Even after a status was sent: the answer was not complete."""
    metrics, under_way = Metrics(), asyncio.Event()

    async def endless(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        under_way.set()
        await asyncio.sleep(60)

    work = asyncio.ensure_future(ask(endless, metrics))
    await under_way.wait()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert metrics.requests.labels("unknown", "cancelled")._value.get() == 1
