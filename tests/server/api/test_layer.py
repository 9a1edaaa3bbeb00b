import asyncio
import logging

import httpx
import pytest

from rlstm_server.api.layer import RequestLayer
from rlstm_server.api.tracing import TRACE, Endpoints
from rlstm_server.caller import Principal
from rlstm_server.metrics import Metrics
from rlstm_server.settings import Limits

LIMITS = Limits(body_bytes=1024, receive_seconds=0.2)


class Everybody:
    """Lets everybody in, as the tenant that the scope names."""

    def admit(self, scope):
        """Give who asks."""
        return Principal(tenant=scope.get("tenant", "a"))


def layer(app, limits=LIMITS, metrics=None):
    return RequestLayer(
        app, access=Everybody(), endpoints=Endpoints(()), limits=limits, metrics=metrics or Metrics()
    )


async def get(app, metrics=None, **headers):
    transport = httpx.ASGITransport(layer(app, metrics=metrics))
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        return await client.get("/canary", headers=headers)


async def echo(scope, receive, send):
    """Answer with the body as received."""
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message["body"]})


async def post(content):
    transport = httpx.ASGITransport(layer(echo))
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        return await client.post("/", content=content)


async def chunks(count, size, pause=0.0):
    for _ in range(count):
        await asyncio.sleep(pause)
        yield b"x" * size


@pytest.mark.parametrize("size", [0, 1, 1024])
async def test_a_body_within_the_limit_arrives_whole(size):
    """At once or in pieces, to the last byte allowed."""
    assert (await post(b"x" * size)).content == b"x" * size
    assert (await post(chunks(size, 1))).content == b"x" * size


async def test_a_body_is_counted_as_it_arrives():
    """One byte more is 413, whether the length was declared or not; both numbers are named."""
    for content in (b"x" * 1025, chunks(41, 25)):
        answer = await post(content)
        assert answer.status_code == 413
        assert "1,025" in answer.json()["detail"]
        assert "1,024" in answer.json()["detail"]
        assert answer.headers["connection"] == "close"


async def test_a_body_has_one_length():
    """Given two, a proxy in front might believe the other."""
    transport = httpx.ASGITransport(layer(echo))
    headers = {"content-length": "3", "transfer-encoding": "chunked"}
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        answer = await client.post("/", content=b"abc", headers=headers)
    assert (answer.status_code, answer.json()["field"]) == (422, "content-length")


async def test_a_slow_body_is_cut_off():
    """The deadline is for the whole body: a byte now and then does not extend it."""
    answer = await post(chunks(20, 1, pause=0.05))
    assert answer.status_code == 408


async def run_layer(app, messages):
    """Run the layer under `app` with a client that sends `messages`, then stays."""
    queue = asyncio.Queue()
    for message in messages:
        queue.put_nowait(message)
    scope = {"type": "http", "path": "/score", "method": "POST", "headers": []}

    async def send(message):
        pass

    await layer(app)(scope, queue.get, send)
    return scope[TRACE]


WHOLE = {"type": "http.request", "body": b"", "more_body": False}
GONE = {"type": "http.disconnect"}


async def test_work_ends_when_its_client_leaves():
    """The application is cancelled at once, and the request counts as cancelled."""
    ended = []

    async def works(scope, receive, send):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    trace = await asyncio.wait_for(run_layer(works, [WHOLE, GONE]), 5)
    assert ended == ["cancelled"]
    assert trace.outcome == "cancelled"


async def test_a_client_that_leaves_before_its_body_is_whole_starts_no_work():
    """There is nothing to do for half a request."""

    async def never(scope, receive, send):
        raise AssertionError

    half = {"type": "http.request", "body": b"x", "more_body": True}
    assert (await run_layer(never, [half, GONE])).outcome == "cancelled"


async def test_what_follows_a_complete_answer_is_not_cancelled():
    """A server reports a disconnect after every whole answer; that is no reason to stop."""
    finished = []

    async def answers(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        await asyncio.sleep(0.01)
        finished.append(True)

    trace = await run_layer(answers, [WHOLE, GONE])
    assert finished == [True]
    assert not trace.cancelled


HALF = {"type": "http.request", "body": b"x" * 600, "more_body": True}


async def test_there_is_room_for_so_many_bodies():
    """All at once, and of one tenant; what ends gives its room back, however it ends."""
    limits = Limits(body_bytes=1024, import_bytes=1024, score_numbers=8, requests_bytes=2000)
    limited = layer(echo, limits)
    leave = asyncio.Event()
    sent = []

    def request(tenant, *messages):
        """Run a request whose client sends these messages, and leaves when told."""
        coming = list(messages)

        async def receive():
            if coming:
                return coming.pop(0)
            await leave.wait()
            return GONE

        async def send(message):
            sent.append(message.get("status"))

        scope = {"type": "http", "path": "/score", "method": "POST", "headers": [], "tenant": tenant}
        return asyncio.ensure_future(limited(scope, receive, send))

    whole = {"type": "http.request", "body": b"x" * 600, "more_body": False}
    waiting = [request("a", HALF), request("a", HALF)]
    for _ in range(100):  # until both wait for their second half
        await asyncio.sleep(0)
    await request("a", whole)
    await request("b", whole)
    await request("b", HALF | {"body": b"x" * 900}, whole)
    assert [status for status in sent if status] == [503, 200, 503]
    leave.set()
    await asyncio.gather(*waiting)
    for tenant in "ab":
        await request(tenant, whole)
    assert [status for status in sent if status] == [503, 200, 503, 200, 200]


async def test_a_body_that_is_refused_is_passed_over_for_a_while():
    """So that a client who reads the answer after sending gets it; but not without end."""
    count = 0

    async def endless():
        nonlocal count
        while True:
            count += 1
            yield b"x" * 512

    answer = await post(endless())
    assert answer.status_code == 413
    assert count * 512 < 8 * 1024


async def test_whoever_has_no_key_sends_no_body(serve):
    """It is refused at its first byte, and takes nothing from anybody's memory, however many do so."""
    limits = {"body_bytes": 2**16, "import_bytes": 2**16, "score_numbers": 64, "requests_bytes": 2**18}
    bearer = {"authorization": "Bearer the-right-key"}
    release = asyncio.Event()

    async def body():
        yield b"x"
        await release.wait()

    async with serve(api_keys="the-right-key", limits=limits) as client:
        for path in ("/health/live", "/health/ready", "/"):
            assert (await client.get(path)).status_code == 200
            declared = await client.request("GET", path, content=b"x" * 2**16)
            assert (declared.status_code, declared.json()["limit"]) == (413, 0)
        many = [
            asyncio.ensure_future(client.request("GET", "/health/live", content=body())) for _ in range(50)
        ]
        await asyncio.sleep(0.05)
        scored = await client.post("/score", json={"text": "a"}, headers=bearer)
        release.set()
        assert {answer.status_code for answer in await asyncio.gather(*many)} == {413}
    assert scored.status_code == 200


async def test_answers_that_grow_with_their_requests_are_counted_too(serve):
    """A score or an append whose answer does not fit beside those under way is refused before any work."""
    limits = {"body_bytes": 2048, "import_bytes": 1024, "score_numbers": 1_000, "requests_bytes": 200_000}
    async with serve(limits=limits) as client:
        session = (await client.post("/sessions", json={})).json()["id"]
        asked = [("/score", {"text": "x" * 900})] * 2
        asked += [(f"/sessions/{session}/append", {"text": "x" * 1_000, "learn": False})] * 2
        answers = await asyncio.gather(*(client.post(path, json=body) for path, body in asked))
        assert sorted(answer.status_code for answer in answers) == [200, 503, 503, 503]
        assert {answer.json()["type"][-10:] for answer in answers if answer.is_error} == {"overloaded"}
        for path, body in asked[::2]:
            assert (await client.post(path, json=body)).status_code == 200


async def test_every_answer_that_may_be_large_is_counted(serve):
    """A list, and a text of as many tokens as were asked for, besides scores."""
    limits = {"body_bytes": 2048, "import_bytes": 1024, "score_numbers": 8, "requests_bytes": 40_000}
    async with serve(limits=limits) as client:
        session = (await client.post("/sessions", json={})).json()["id"]
        for path, body in (("/generate", {}), (f"/sessions/{session}/generate", {})):
            assert (await client.post(path, json=body | {"max_tokens": 8})).status_code == 200
            assert (await client.post(path, json=body | {"max_tokens": 300})).status_code == 503
        assert (await client.get("/sessions?limit=1")).status_code == 200
        assert (await client.get("/sessions?limit=2")).status_code == 503


# ---- what is said and written of each ----------------------------------------------------------------------


async def fine(scope, receive, send):
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def broken(scope, receive, send):
    raise RuntimeError("canary at 0x7f00")


async def test_a_request_id_is_taken_or_made():
    """One that is like ours comes back; anything else is replaced, and never repeated."""
    assert (await get(fine, **{"x-request-id": "abc-1.2_3"})).headers["x-request-id"] == "abc-1.2_3"
    for bad in ("", "two words", "x" * 65, "<canary>", "é".encode()):
        made = (await get(fine, **{"x-request-id": bad})).headers["x-request-id"]
        assert len(made) == 32
        assert made != bad


async def test_every_answer_carries_the_security_headers():
    """No sniffing, no framing, no caching, and nothing that lets another origin read it."""
    answer = await get(fine, origin="https://evil.example")
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
        answer = await get(broken, **{"x-request-id": "r-77"})
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
        await get(half)


async def test_every_request_is_counted_once_whatever_becomes_of_it():
    """Also the one that broke."""
    metrics = Metrics()
    await get(fine, metrics)
    await get(broken, metrics)
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

    work = asyncio.ensure_future(get(endless, metrics))
    await under_way.wait()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert metrics.requests.labels("unknown", "cancelled")._value.get() == 1
