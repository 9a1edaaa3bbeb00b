"""Readers that stop reading: they are cut, cost little memory, and nobody else waits for them.

The time until all are cut includes that in which what lies between a server and a reader fills up.
"""

import asyncio
import json
import select
import socket
import time
from contextlib import ExitStack

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.faults import replicas

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

READERS, OTHERS = 200, 4
MEMORY_MB, SLOWER = 64.0, 1.5
WATCHED_SECONDS, PATIENCE_SECONDS = 15.0, 600.0
BODY = {"max_tokens": 8_192, "stream": True, "temperature": 1.0}


def connected(address, path, body):
    """A connection that asked for a stream; its own buffer is as small as can be."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    one.connect(address)
    content = json.dumps(BODY | body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    one.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    one.setblocking(False)
    return one


async def read(connections):
    """Read whatever comes, until cancelled."""
    poll = select.epoll()
    by_number = {one.fileno(): one for one in connections}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    while True:
        for number, _ in poll.poll(0):
            by_number[number].recv(65_536)
        await asyncio.sleep(0.02)


def was_reset(connection):
    """Whether it ends with a reset after what is still to be read.

    A reader whose buffer is full hears of the reset only when he reads.
    """
    connection.settimeout(5)
    try:
        while connection.recv(65_536):
            pass
    except ConnectionResetError:
        return True
    return False


class Metrics:
    """Sums of a server's metrics, by name."""

    def __init__(self, text):
        self.values = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                reason = sample.labels.get("reason", sample.labels.get("phase", ""))
                place = (sample.name, reason)
                self.values[place] = self.values.get(place, 0.0) + sample.value

    def __getitem__(self, place):
        return self.values.get(place, 0.0)


class Others:
    """Those who append meanwhile; `answers` has when each answer came and how long it took."""

    def __init__(self, client, sessions):
        self.client, self.sessions, self.answers = client, sessions, []

    async def _append(self, session):
        while True:
            began = time.perf_counter()
            answer = await self.client.post(f"/sessions/{session}/append", json={"text": "the quick fox"})
            assert answer.status_code == 200, answer.text
            self.answers.append((time.monotonic(), time.perf_counter() - began))
            await asyncio.sleep(0.02)

    async def __aenter__(self):
        self.tasks = [asyncio.ensure_future(self._append(session)) for session in self.sessions]
        return self

    async def __aexit__(self, *_):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def p99(self, since, until):
        """What 99 of 100 answers took at most that came between these times."""
        seconds = sorted(took for came, took in self.answers if since <= came <= until)
        return seconds[int(0.99 * len(seconds))]


class Watch:
    """Looks at a server: the most memory it had, and how long it took to cut all readers."""

    def __init__(self, replica):
        self.replica, self.most_bytes = replica, 0

    async def until(self, over):
        """Look until something is over; the seconds that took."""
        began = time.monotonic()
        while not over() and time.monotonic() - began < PATIENCE_SECONDS:
            self.most_bytes = max(self.most_bytes, self.replica.resident_bytes)
            await asyncio.sleep(0.1)
        return time.monotonic() - began


async def ask(client):
    return Metrics((await client.get("/metrics")).text)


@pytest.fixture(scope="session")
def context():
    """Give the fork server's context."""
    return replicas.fork_server()


async def test_readers_that_stop_reading_harm_nobody(context, tiny_checkpoint, tmp_path):
    """Half of them of texts that are kept, whose sessions are whole afterwards."""
    settings = {"model": str(tiny_checkpoint), "port": 0, "durability": "memory", "threads": 1}
    async with replicas.running(context, tmp_path / "server", settings, 1) as fleet:
        (replica,) = fleet.seats
        url = httpx.URL(replica.url)
        async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
            made = [
                (await client.post("/sessions", json={"adaptation": {"kind": "output_bias"}})).json()["id"]
                for _ in range(READERS // 2 + OTHERS)
            ]
            paths = [(f"/sessions/{session}/generate", {"commit": True}) for session in made[OTHERS:]]
            paths += [("/generate", {"prompt": "the "})] * (READERS // 2)
            async with Others(client, made[:OTHERS]) as others:
                with ExitStack() as stack:
                    address = (url.host, url.port)
                    readers = [stack.enter_context(connected(address, *each)) for each in paths]
                    reading, began = asyncio.ensure_future(read(readers)), time.monotonic()
                    await asyncio.sleep(2 * WATCHED_SECONDS)
                    usual = others.p99(began + WATCHED_SECONDS, time.monotonic())
                    watch, before, began = Watch(replica), replica.resident_bytes, time.monotonic()
                    opened = replica.descriptors
                    reading.cancel()
                    cut = await watch.until(lambda: replica.descriptors <= opened - READERS)
                    ended = sum(map(was_reset, readers))
                    harmed = others.p99(began, began + cut)
                metrics = await ask(client)
            infos = [(await client.get(f"/sessions/{session}")).json() for session in made[OTHERS:]]
            more = [
                await client.post(f"/sessions/{info['id']}/append", json={"text": "x"}) for info in infos[:8]
            ]

    memory = (watch.most_bytes - before) / 2**20
    told = f"{READERS} stalled readers: memory +{memory:.0f} MB, others' p99 {harmed / usual:.2f} x"
    print(f"{told}, closed after {cut:.1f} s")
    print(f"p99 while all read {1e3 * usual:.1f} ms, from when they stop {1e3 * harmed:.1f} ms")

    assert ended == READERS
    assert metrics["rlstm_connections_cut_total", "slow_reader"] == READERS
    assert all(info["position"] > 0 for info in infos)
    assert [each.json()["version"] for each in more] == [info["version"] + 1 for info in infos[:8]]
    assert memory <= MEMORY_MB
    assert harmed <= SLOWER * usual
