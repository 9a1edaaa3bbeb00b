"""The shipped nginx configuration: what goes where, what is never sent twice, that nothing is held back."""

import asyncio
import time
from contextlib import asynccontextmanager

import httpx
import pytest
from tests.deploy import proxy
from tests.servers import free_ports

PROBE = {"candidates": [{"text": "the quick brown fox"}]}


async def made(client, count=1):
    """Ids of new sessions."""
    body = {"adaptation": {"kind": "output_bias"}}
    return [(await client.post("/sessions", json=body)).json()["id"] for _ in range(count)]


async def append(client, session, text):
    answer = await client.post(f"/sessions/{session}/append", json={"text": text})
    assert answer.status_code == 200, answer.text
    return answer.json()


def homes(nginx):
    """Which replicas answered each session's requests."""
    found = {}
    for _, path, _, asked in nginx.served():
        parts = path.split("/")
        if parts[1] == "sessions" and len(parts) > 3:
            found.setdefault(parts[2], set()).add(asked[-1])
    return found


async def test_sessions_stay_with_a_replica_and_outlive_it(serve):
    """Each has one home while both live; those of one that is killed go on at the other, at once, whole."""
    async with serve() as service, service.client() as client:
        sessions = await made(client, 8)
        for turn in range(2):
            for session in sessions:
                assert (await append(client, session, f"text {turn} "))["version"] == turn + 1
        before = homes(service.nginx)
        assert all(len(asked) == 1 for asked in before.values())
        assert set().union(*before.values()) == {*service.addresses}
        spread = {asked[-1] for _, path, _, asked in service.nginx.served() if path == "/sessions"}
        assert spread == {*service.addresses}

        service.fleet.kill(0)
        began = time.monotonic()
        for session in sessions:
            assert (await append(client, session, "after"))["version"] == 3
        assert time.monotonic() - began < 5
        scores = [(await client.post(f"/sessions/{each}/score", json=PROBE)).json() for each in sessions]
        assert len({score["candidates"][0]["logprob"] for score in scores}) == 1
        assert all(len(asked) <= 2 for asked in homes(service.nginx).values())


async def test_events_are_not_held_back(serve):
    """They arrive while the text is being written: in several reads, the first long before the last."""
    async with serve() as service, service.client() as client:
        body = {"prompt": "the ", "max_tokens": 800, "stream": True, "seed": 1}
        async with client.stream("POST", "/generate", json=body) as answer:
            assert "x-accel-buffering" not in answer.headers
            times = [time.monotonic() async for _ in answer.aiter_raw()]

    assert len(times) >= 3
    assert times[len(times) // 2] < times[-1]


async def test_limits_are_kept_at_the_door(serve):
    """A body that is too long is not taken in, and no replica's metrics are passed on as if they were all."""
    async with serve() as service, service.client() as client:
        long = await client.post("/score", content=b"x" * (4 * 2**20 + 1))
        assert long.status_code == 413
        assert (await client.get("/metrics")).status_code == 404
        assert (await client.get("/health/ready")).status_code == 200
        asked = [asked for _, path, _, asked in service.nginx.served() if path in ("/score", "/metrics")]
        assert asked == [["-"], ["-"]]


async def test_a_session_that_is_imported_may_be_larger_than_any_other_body(serve):
    """It reaches a server, which looks at it."""
    octets = {"content-type": "application/octet-stream"}
    async with serve() as service, service.client() as client:
        answer = await client.post("/sessions/import", content=b"x" * (9 * 2**20), headers=octets)
        assert (answer.status_code, answer.json()["type"][-15:]) == (422, "import_rejected")
        larger = await client.post("/sessions/import", content=b"x" * (32 * 2**20 + 1), headers=octets)
        assert larger.status_code == 413
        for _ in range(200):  # the log is written after the answer
            if len(served := service.nginx.served()) >= 2:
                break
            await asyncio.sleep(0.05)
        assert [asked for *_, asked in served][1] == ["-"]


async def test_a_body_that_trickles_is_cut_off(serve):
    """By the server's deadline, whole: nginx would wait for ever for bytes that come now and then."""
    async with serve(limits={"receive_seconds": 1.0}) as service:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.nginx.port)
        writer.write(b"POST /score HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n")
        began, answer = time.monotonic(), asyncio.ensure_future(reader.read())
        while not answer.done() and time.monotonic() - began < 12:
            writer.write(b"x")
            await asyncio.wait({answer}, timeout=0.1)
        took = time.monotonic() - began
        writer.close()
        assert (await answer).startswith(b"HTTP/1.1 408")
    assert took < 10


async def test_each_caller_is_one_behind_the_proxy(serve):
    """Whoever shows wrong keys is told to wait, whatever address he makes up, and nobody else is."""
    path, right, wrong = f"/sessions/{'0' * 32}", "the-right-key", "a-wrong-key"
    settings = {"api_keys": right, "trusted_proxies": "127.0.0.1", "limits": {"failed_logins": 3}}

    async with serve(**settings) as service:

        async def ask(address, key, count=1):
            transport = httpx.AsyncHTTPTransport(local_address=address)
            async with httpx.AsyncClient(base_url=service.nginx.url, transport=transport) as client:
                made_up = [{"x-forwarded-for": f"10.0.0.{number}"} for number in range(count)]
                bearer = {"authorization": f"Bearer {key}"}
                asked = [client.get(path, headers=bearer | header, timeout=60) for header in made_up]
                return [answer.status_code for answer in await asyncio.gather(*asked)]

        guessed = await ask("127.0.0.2", wrong, 40)
        assert set(guessed) == {401, 429}
        assert await ask("127.0.0.2", right) == [429]
        assert await ask("127.0.0.3", right) == [404]
        assert await ask("127.0.0.3", wrong) == [401]


class Upstream:
    """A server that takes requests and, where told so, breaks off without an answer."""

    def __init__(self, *, breaks):
        self.breaks, self.requests = breaks, []

    async def serve(self, reader, writer):
        """Take one request of a connection."""
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head.split(b" ", 1)[0].decode())
        if not self.breaks:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
            await writer.drain()
        writer.close()


@pytest.fixture
def behind(nginx, tmp_path):
    """Give what puts nginx before upstreams of a test; None stands for one that refuses connections."""

    @asynccontextmanager
    async def running(*upstreams):
        ports = free_ports(len(upstreams))
        addresses = [f"127.0.0.1:{port}" for port in ports]
        servers = [
            await asyncio.start_server(upstream.serve, "127.0.0.1", port)
            for upstream, port in zip(upstreams, ports, strict=True)
            if upstream is not None
        ]
        try:
            async with (
                proxy.running(tmp_path / "nginx", addresses) as front,
                httpx.AsyncClient(base_url=front.url, trust_env=False) as client,
            ):
                yield front, client
        finally:
            for server in servers:
                server.close()

    return running


async def test_the_configuration_is_without_fault(behind):
    """`nginx -t` has nothing to say against it."""
    async with behind(None, None) as (front, _):
        code, words = front.tested()
    assert code == 0
    assert "warn" not in words


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_what_may_have_arrived_is_never_sent_again(behind, method):
    """A change that broke off is the client's to repeat, with its key: one server saw it, once."""
    broken, whole = Upstream(breaks=True), Upstream(breaks=False)
    async with behind(broken, whole) as (front, client):
        answers = [
            await client.request(method, f"/sessions/{session:032x}/append", content=b"{}")
            for session in range(8)
        ]
        assert all(len(asked) == 1 for *_, asked in front.served())
    statuses = [answer.status_code for answer in answers]
    assert (statuses.count(502), statuses.count(200)) == (len(broken.requests), len(whole.requests))
    assert len(broken.requests + whole.requests) == 8
    assert broken.requests


async def test_what_only_reads_is_tried_elsewhere(behind):
    """Nobody minds reading twice."""
    broken, whole = Upstream(breaks=True), Upstream(breaks=False)
    async with behind(broken, whole) as (_, client):
        answers = [await client.get(f"/sessions/{session:032x}") for session in range(8)]
    assert {answer.status_code for answer in answers} == {200}
    assert broken.requests


async def test_a_server_that_refuses_connections_is_passed_over(behind):
    """Nothing was sent to it, so even a change goes to the other one, and the client notices nothing."""
    whole = Upstream(breaks=False)
    async with behind(None, whole) as (front, client):
        for session in range(16):
            answer = await client.post(f"/sessions/{session:032x}/append", content=b"{}")
            assert answer.status_code == 200
        assert len(whole.requests) == 16
        assert any(len(asked) == 2 for *_, asked in front.served())
