"""Clients who hold a server up on purpose: others hardly notice, and it forgets them in time."""

import asyncio
import contextlib
import json
import resource
import statistics
import time
from pathlib import Path

import httpx
import pytest

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

SLOW = 500
DEADLINE_SECONDS = 15.0
OTHERS = 4
GROWTH_BYTES = 32 << 20
SLOWER = 1.5
HEAD = b"POST /score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


def resident_bytes(server):
    """What the server has in memory."""
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()


def address(server):
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


async def ask(reader, writer, request):
    """One request on an open connection; its status, and the seconds it took."""
    began = time.perf_counter()
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
    await reader.readexactly(int(fields[b"content-length"]))
    return int(head.split()[1]), time.perf_counter() - began


async def others(server, ended, found):
    """Somebody who asks for small scores, one after the other."""
    reader, writer = await asyncio.open_connection(*address(server))
    body = json.dumps({"text": "the quick brown fox", "scores": "totals"}).encode()
    request = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    while not ended.is_set():
        found.append(await ask(reader, writer, request))
        await asyncio.sleep(0.02)
    writer.close()


async def measured(server, work):
    """What others are answered, and after what time, while `work` goes on."""
    ended, found = asyncio.Event(), []
    asking = [asyncio.ensure_future(others(server, ended, found)) for _ in range(OTHERS)]
    result = await work
    ended.set()
    await asyncio.gather(*asking)
    return result, found


def p99(found):
    return statistics.quantiles([seconds for _, seconds in found], n=100)[98]


async def slow(server, turn):
    """One who sends a byte a second, not at the others' moments; gives when he was cut off, and told what."""
    first, trickle = KINDS[turn % len(KINDS)]
    await asyncio.sleep(2 * turn / SLOW)
    began = time.monotonic()
    reader, writer = await asyncio.open_connection(*address(server))
    writer.write(first)

    async def send():
        for byte in trickle * 100:
            await asyncio.sleep(1)
            writer.write(bytes([byte]))

    sending = asyncio.ensure_future(send())
    received = await everything(reader)
    seconds = time.monotonic() - began
    sending.cancel()
    with contextlib.suppress(ConnectionError):
        await asyncio.gather(sending, return_exceptions=True)
    writer.transport.abort()
    return seconds, received.partition(b"\r\n")[0]


async def everything(reader):
    """All that comes, however it ends."""
    received = bytearray()
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(65_536):
            received += chunk
    return bytes(received)


KINDS = [
    (b"", b"GET / HTTP/1.1\r\nx-a: b"),
    (b"", b""),
    (HEAD, b"x-a: b\r\n"),
    (HEAD + b"content-length: 1000000\r\n\r\n", b"x"),
    (HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
]


async def test_slow_senders_are_cut_off_and_others_are_served(start):
    """Headers and bodies at a byte a second, on hundreds of connections."""
    with start("--durability", "memory") as server:
        await measured(server, asyncio.sleep(2))
        _, before = await measured(server, asyncio.sleep(10))
        memory = resident_bytes(server)
        attack = asyncio.gather(*(slow(server, turn) for turn in range(SLOW)))
        cut, during = await measured(server, attack)
        growth = resident_bytes(server) - memory
        _, after = await measured(server, asyncio.sleep(10))
    alone = before + after
    longest = max(seconds for seconds, _ in cut)
    told = {line for _, line in cut}
    ratio = p99(during) / p99(alone)
    print(
        f"\n{SLOW} slow connections: all closed after at most {longest:.1f} s, others' p99"
        f" {p99(during) * 1000:.1f} ms, {ratio:.2f} x alone, resident memory +{growth / 2**20:.1f} MB"
    )
    assert {status for status, _ in alone + during} == {200}
    assert told == {b"HTTP/1.1 408 Request Timeout"}
    assert longest <= DEADLINE_SECONDS
    assert ratio <= SLOWER
    assert growth <= GROWTH_BYTES


async def abuse(server, pieces):
    """Send all of it, whatever comes back; gives the first line of that."""
    reader, writer = await asyncio.open_connection(*address(server))
    receiving = asyncio.ensure_future(everything(reader))
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
    received = await receiving
    writer.transport.abort()
    return received.partition(b"\r\n")[0]


MEGABYTE = b"x" * (1 << 20)


async def test_large_and_broken_requests_are_refused_cleanly(start):
    """A header of 100 MB, bodies of 10 GB, two lengths, broken chunks, requests ahead without end."""
    with start("--durability", "memory") as server:
        await measured(server, asyncio.sleep(1))
        memory = resident_bytes(server)
        ahead = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n" * 20_000
        told = {
            "header of 100 MB": await abuse(server, [HEAD + b"x-a: ", *[MEGABYTE] * 100]),
            "declared": await abuse(
                server, [HEAD + b"content-length: 10000000000\r\n\r\n", *[MEGABYTE] * 50]
            ),
            "chunked": await abuse(
                server,
                [
                    HEAD + b"transfer-encoding: chunked\r\n\r\n",
                    *[b"100000\r\n" + MEGABYTE + b"\r\n"] * 60,
                ],
            ),
            "two lengths": await abuse(server, [HEAD + b"content-length: 1\r\ncontent-length: 2\r\n\r\nx"]),
            "bad chunks": await abuse(server, [HEAD + b"transfer-encoding: chunked\r\n\r\n-1\r\nZZ"]),
            "ahead": await abuse(server, [ahead, b"\x00\r\n\r\n"]),
        }
        growth = resident_bytes(server) - memory
        with server.client() as client:
            assert client.post("/score", json={"text": "a"}).status_code == 200
    print(f"\n{len(told)} kinds of abuse: resident memory +{growth / 2**20:.1f} MB; {told}")
    assert not [line for line in told.values() if line.startswith(b"HTTP/1.1 5")]
    assert told["declared"].split()[1] == b"413"
    assert told["chunked"].split()[1] == b"413"
    for kind in ("two lengths", "bad chunks", "header of 100 MB"):
        assert told[kind].split()[1] == b"400"
    assert growth <= GROWTH_BYTES


LARGE = 20 << 20
TEXT = b"It was the best of times. " * (LARGE // 26)
LARGE_BODIES = {
    "text": b'{"scores":"totals","text":"%b"}' % TEXT,
    "text of other letters": b'{"scores":"totals","text":"%b"}'
    % ("Es wäre die schönste Zeit. ".encode() * (LARGE // 30)),
    "escapes": b'{"scores":"totals","text":"%b"}' % (rb"\ud83d\ude00 \"[:\\" * (LARGE // 19)),
    "ids": b'{"scores":"totals","tokens":[%b]}'
    % b",".join(b"%d" % (index % 256) for index in range(5_000_000)),
    "strings in place of ids": b'{"tokens":[%b""]}' % (b'"",' * (LARGE // 3)),
    "ids without an end": b'{"tokens":[%b' % (b"17," * (LARGE // 3)),
    "text without an end": b'{"text":"%b' % TEXT,
    "text that ends in no UTF-8": b'{"text":"%b\xff"}' % TEXT,
    "text that ends in half a pair": rb'{"text":"%b\ud800"}' % TEXT,
}
"""What is scored is left after a while; what is refused is sent again and again."""


@pytest.mark.parametrize("kind", LARGE_BODIES)
async def test_a_large_body_leaves_the_server_alive(start, kind):
    """C4: 20 MB are received, parsed and refused or scored, while live answers at once."""
    settings = {
        "RLSTM_LIMITS__BODY_BYTES": str(32 << 20),
        "RLSTM_LIMITS__REQUESTS_BYTES": str(8 << 30),
        "RLSTM_LIMITS__SCORE_TOKENS": str(1 << 25),
        "RLSTM_LIMITS__SCORE_NUMBERS": str(1 << 25),
    }
    with start("--durability", "memory", **settings) as server:
        live = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
        waits, ended, told = [], asyncio.Event(), set()

        async def poll():
            reader, writer = await asyncio.open_connection(*address(server))
            while not ended.is_set():
                status, seconds = await ask(reader, writer, live)
                assert status == 200
                waits.append(seconds)
                await asyncio.sleep(0.05)
            writer.close()

        def send():
            """Send it for some seconds; a scored one is waited for until then."""
            until = time.monotonic() + 15
            with server.client() as client, contextlib.suppress(httpx.ReadTimeout):
                while (left := until - time.monotonic()) > 0:
                    headers = {"content-type": "application/json"}
                    answer = client.post("/score", content=LARGE_BODIES[kind], headers=headers, timeout=left)
                    told.add(answer.status_code)

        polling = asyncio.ensure_future(poll())
        await asyncio.sleep(10)
        alone = waits[:]
        waits.clear()
        await asyncio.to_thread(send)
        ended.set()
        await polling
    usual, worst = (statistics.quantiles(found, n=100)[98] for found in (alone, waits))
    print(
        f"\nlive beside 20 MB of {kind}: p99 {worst * 1000:.0f} ms, {max(waits) * 1000:.0f} ms at most;"
        f" p99 alone {usual * 1000:.0f} ms; told {sorted(told) or 'nothing yet'}"
    )
    assert len(waits) > 50
    assert told <= {400, 422}
    assert worst < 0.1 + usual
