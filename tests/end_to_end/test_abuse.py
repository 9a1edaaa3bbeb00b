"""Large and broken requests: refused cleanly, and forgotten."""

import asyncio
import contextlib
import resource
from pathlib import Path

import pytest

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

GROWTH_BYTES = 32 << 20
MEGABYTE = b"x" * (1 << 20)
HEAD = b"POST /score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
AHEAD = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n" * 20_000
KINDS = {
    "a header of 100 MB": ([HEAD + b"x-a: ", *[MEGABYTE] * 100], b"400"),
    "a body declared as 10 GB": ([HEAD + b"content-length: 10000000000\r\n\r\n", *[MEGABYTE] * 50], b"413"),
    "chunks without end": ([CHUNKED, *[b"100000\r\n" + MEGABYTE + b"\r\n"] * 60], b"413"),
    "two lengths": ([HEAD + b"content-length: 1\r\ncontent-length: 2\r\n\r\nx"], b"400"),
    "broken chunks": ([CHUNKED + b"-1\r\nZZ"], b"400"),
    "requests ahead without end": ([AHEAD, b"\x00\r\n\r\n"], b"200"),
}


def resident_bytes(server):
    """What the server has in memory."""
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()


async def abuse(server, pieces):
    """Send all of it, whatever comes back; gives the status of that."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))

    async def everything():
        received = bytearray()
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(65_536):
                received += chunk
        return bytes(received)

    receiving = asyncio.ensure_future(everything())
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
    received = await receiving
    writer.transport.abort()
    return received.split(b" ", 2)[1]


async def test_large_and_broken_requests_are_refused_cleanly(start):
    """Each by its status; the memory that they took is free again, and others are answered."""
    with start("--durability", "memory") as server, server.client() as client:
        assert client.post("/score", json={"text": "a"}).status_code == 200
        memory = resident_bytes(server)
        told = {kind: await abuse(server, pieces) for kind, (pieces, _) in KINDS.items()}
        growth = resident_bytes(server) - memory
        assert client.post("/score", json={"text": "a"}).status_code == 200
    print(f"\n{len(told)} kinds of abuse: resident memory +{growth / 2**20:.1f} MB; {told}")
    assert told == {kind: status for kind, (_, status) in KINDS.items()}
    assert growth <= GROWTH_BYTES
