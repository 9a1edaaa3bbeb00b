"""What only a real socket can show: streams, disconnects, slow bodies, and health beside heavy work."""

import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families


def count(client, outcome):
    """Requests with this outcome so far."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
        if sample.name == "rlstm_requests_total" and sample.labels["outcome"] == outcome
    )


def eventually(condition, seconds=5.0):
    """Wait for something that must become true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_stream_arrives_while_it_is_made(server):
    """In several reads before its end, complete, and equal to the whole answer."""
    body = {"prompt": "é", "max_tokens": 4_000, "seed": 5}
    with server.client() as client:
        whole = client.post("/generate", json=body).json()
        with client.stream("POST", "/generate", json=body | {"stream": True}) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            reads = list(answer.iter_raw())
    assert len(reads) >= 3
    frames = [frame.split("\n") for frame in b"".join(reads).decode().split("\n\n") if "event:" in frame]
    data = [json.loads(lines[1].removeprefix("data: ")) for lines in frames]
    assert "".join(token["text"] for token in data[:-1]) == whole["text"]
    assert frames[-1][0] == "event: end"
    assert data[-1]["usage"] == whole["usage"]


def test_a_reader_who_leaves_ends_the_work(server):
    """On a stream, and on the plain answer that nobody waits for any more."""
    body = {"max_tokens": 65_536}
    with server.client() as client:
        before = count(client, "cancelled")
        with client.stream("POST", "/generate", json=body | {"stream": True}) as answer:
            next(answer.iter_raw())
        eventually(lambda: count(client, "cancelled") == before + 1)
        try:
            client.post("/generate", json=body, timeout=0.3)
        except httpx.ReadTimeout:
            eventually(lambda: count(client, "cancelled") == before + 2)
        began = time.monotonic()
        assert client.post("/score", json={"text": "a"}).status_code == 200
        assert time.monotonic() - began < 2


def test_health_answers_beside_a_megabyte(server):
    """While a long text is received, parsed and scored, live answers at once; leaving ends the work."""
    text = "It was the best of times, it was the worst of times. " * 20_000

    def score():
        with server.client() as client, suppress(httpx.ReadTimeout):
            client.post("/score", json={"text": text, "scores": "totals"}, timeout=6)

    worker = threading.Thread(target=score)
    worker.start()
    waits = []
    with server.client() as client:
        while worker.is_alive():
            began = time.monotonic()
            assert client.get("/health/live").status_code == 200
            waits.append(time.monotonic() - began)
            time.sleep(0.02)
        worker.join()
        assert client.post("/score", json={"text": "next"}, timeout=5).status_code == 200
    waits.sort()
    assert len(waits) >= 20
    assert waits[int(len(waits) * 0.95)] < 0.1, waits[-10:]
    assert waits[-1] < 1.0


def raw(server, request, pause=0.0, pieces=()):
    """Send bytes over a socket of our own and give what comes back until the server closes."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(request)
        for piece in pieces:
            time.sleep(pause)
            try:
                connection.sendall(piece)
            except OSError:
                break
        received = b""
        try:
            while chunk := connection.recv(65_536):
                received += chunk
        except OSError:
            pass
        return received


HEAD = b"POST /score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


MEGABYTE = b"x" * (1 << 20)
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
AHEAD = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n" * 5_000
REFUSED = {
    "no HTTP": ([b"\x00\xff\r\n\r\n"], b"400"),
    "a header without end": ([HEAD + b"x-a: ", *[MEGABYTE] * 100], b"400"),
    "a body declared as 10 GB": ([HEAD + b"content-length: 10000000000\r\n\r\n", *[MEGABYTE] * 50], b"413"),
    "chunks without end": ([CHUNKED, *[b"100000\r\n" + MEGABYTE + b"\r\n"] * 60], b"413"),
    "two lengths": ([HEAD + b"content-length: 1\r\ncontent-length: 2\r\n\r\nx"], b"400"),
    "broken chunks": ([CHUNKED + b"-1\r\nZZ"], b"400"),
    "requests ahead, then none": ([AHEAD, b"\x00\r\n\r\n"], b"200"),
}


def resident_bytes(server):
    """What the server has in memory."""
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_large_and_broken_requests_are_refused_and_forgotten(server):
    """Each by its status, in bounded memory; the next good request works."""
    memory = resident_bytes(server)
    told = {kind: raw(server, b"", 0, pieces).split(b" ", 2)[1] for kind, (pieces, _) in REFUSED.items()}
    assert told == {kind: status for kind, (_, status) in REFUSED.items()}
    assert resident_bytes(server) - memory < 32 << 20
    with server.client() as client:
        assert client.post("/score", json={"text": "a"}).status_code == 200
