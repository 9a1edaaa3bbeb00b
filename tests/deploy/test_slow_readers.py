"""Readers that stop reading: they are cut in time, cost little memory, and nobody else waits for them."""

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
CUT_SECONDS = 10.0
MEMORY_MB, SLOWER = 64.0, 1.5
QUIET_SECONDS = 8.0
PATIENCE_SECONDS = 600.0
BODY = {"max_tokens": 8_192, "stream": True, "temperature": 1.0}


def stalled(address, path, body):
    """A connection that asks for a stream and will never read it; its own buffer is as small as can be."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    one.connect(address)
    content = json.dumps(BODY | body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    one.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    return one


def closed(connections):
    """How many of the connections the server has reset."""
    poll = select.poll()
    for one in connections:
        poll.register(one, 0)
    return len(poll.poll(0))


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

    def p99(self, since):
        """What 99 of 100 answers since then took at most."""
        seconds = sorted(took for came, took in self.answers if came >= since)
        return seconds[int(0.99 * len(seconds))]


class Watch:
    """Looks at the server until it has cut all readers: its memory, and when the last token was made."""

    def __init__(self, replica, client, readers):
        self.replica, self.client, self.readers = replica, client, readers
        self.most_bytes, self.made, self.last_made = 0, 0.0, time.monotonic()

    async def until_cut(self):
        """Give the seconds from the last token to the last cut."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while closed(self.readers) < READERS and time.monotonic() < deadline:
            self.most_bytes = max(self.most_bytes, self.replica.resident_bytes)
            made = (await ask(self.client))["rlstm_batch_tokens_sum", "generate"]
            if made != self.made:
                self.made, self.last_made = made, time.monotonic()
            await asyncio.sleep(0.2)
        return time.monotonic() - self.last_made


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
                await asyncio.sleep(1 + QUIET_SECONDS)
                usual, before = others.p99(time.monotonic() - QUIET_SECONDS), replica.resident_bytes
                with ExitStack() as stack:
                    address, began = (url.host, url.port), time.monotonic()
                    readers = [stack.enter_context(stalled(address, *each)) for each in paths]
                    watch = Watch(replica, client, readers)
                    cut, ended = await watch.until_cut(), closed(readers)
                    harmed = others.p99(time.monotonic() - QUIET_SECONDS)
                metrics = await ask(client)
            infos = [(await client.get(f"/sessions/{session}")).json() for session in made[OTHERS:]]
            more = [
                await client.post(f"/sessions/{info['id']}/append", json={"text": "x"}) for info in infos[:8]
            ]

    memory = (watch.most_bytes - before) / 2**20
    told = f"{READERS} stalled readers: memory +{memory:.0f} MB, others' p99 {harmed / usual:.2f} x"
    print(f"{told}, closed after {cut:.1f} s")
    stalled_after = watch.last_made - began
    print(f"p99 {1e3 * usual:.1f} ms and {1e3 * harmed:.1f} ms; all stalled after {stalled_after:.0f} s")

    assert ended == READERS
    assert metrics["rlstm_connections_cut_total", "slow_reader"] == READERS
    assert all(info["position"] > 0 for info in infos)
    assert [each.json()["version"] for each in more] == [info["version"] + 1 for info in infos[:8]]
    assert memory <= MEMORY_MB
    assert harmed <= SLOWER * usual
    assert cut <= 2 * CUT_SECONDS
