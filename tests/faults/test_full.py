"""A store without room, in memory or on disk: what does not fit is refused whole, what is there stays."""

import asyncio

import httpx
import pytest
from tests.server.store.proxy import FaultyProxy
from tests.server.store.servers import Server, program
from tests.servers import free_ports

from .checker import judge
from .load import Clients

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

TEXT = "the quick brown fox jumps over the lazy dog\n"
ROOM = 512 << 20
DISK = 6_000_000


def set_room(store, room_bytes):
    """Give the store so much memory."""
    with store.admin() as admin:
        admin.config_set("maxmemory", room_bytes)


def sessions_stored(store):
    """All that is stored of sessions for good, by key: what expires by itself belongs to nobody yet."""
    with store.admin() as admin:
        keys = [key for key in admin.scan_iter("rlstm:{*/*}:*", count=1000) if admin.pttl(key) == -1]
        return {key: admin.dump(key) for key in keys}


class Filling:
    """Watches requests to the store: just before the n-th there is no room any more."""

    def __init__(self, store, number):
        self._store = store
        self._left = number
        self.full = False

    async def __call__(self):
        """Count a request."""
        if self._left == 0:
            self.full = True
            await asyncio.to_thread(set_room, self._store, 1)
        self._left -= 1


CHANGES = {
    "create": ("POST", "/sessions", {"metadata": {"a": 1}}),
    "create with text": ("POST", "/sessions", {"text": TEXT}),
    "append": ("POST", "/sessions/{id}/append", {"text": TEXT}),
    "generate": ("POST", "/sessions/{id}/generate", {"commit": True, "max_tokens": 8}),
    "reset": ("POST", "/sessions/{id}/reset", {}),
    "update": ("PATCH", "/sessions/{id}", {"metadata": {"b": 2}}),
    "snapshot": ("POST", "/sessions/{id}/snapshots", {"name": "new"}),
    "restore": ("POST", "/sessions/{id}/restore", {"snapshot": "old"}),
    "fork": ("POST", "/sessions/{id}/fork", {}),
}
ALWAYS = {
    "info": ("GET", "/sessions/{id}"),
    "list": ("GET", "/sessions"),
    "snapshots": ("GET", "/sessions/{id}/snapshots"),
    "drop": ("DELETE", "/sessions/{id}/snapshots/old"),
    "delete": ("DELETE", "/sessions/{id}"),
}


async def session_of(client):
    """A session with some text and a snapshot."""
    session = (await client.post("/sessions", json={"text": TEXT})).json()["id"]
    assert (await client.post(f"/sessions/{session}/snapshots", json={"name": "old"})).status_code == 201
    return session


async def full_at(client, service, proxy, change, number):
    """Make a change while the store fills up at its n-th request; False when it was done before that."""
    method, route, body = CHANGES[change]
    session, headers = await session_of(client), {"idempotency-key": f"{change} {number}".replace(" ", "-")}
    before, filling = sessions_stored(service.store), Filling(service.store, number)
    proxy.watch = filling
    answer = await client.request(method, route.format(id=session), json=body, headers=headers)
    proxy.watch = None
    set_room(service.store, ROOM)
    if answer.status_code >= 300:
        problem = answer.json()
        assert (problem["status"], problem["type"]) == (503, "urn:rlstm:problem:store_full"), (
            change,
            problem,
        )
        if problem["applied"] == "no":
            assert sessions_stored(service.store) == before, f"{change} left something behind at {number}"
    after = sessions_stored(service.store)
    again = await client.request(method, route.format(id=session), json=body, headers=headers)
    assert again.status_code < 300, (change, number, again.text)
    if answer.status_code < 300:
        assert again.json()["replayed"] is True
        assert sessions_stored(service.store) == after, f"{change} was done twice"
    return filling.full


async def test_no_call_is_half_done_when_the_store_fills_up(serve):
    """Full before the first, the second, ... request of every change: done whole, or 503 `store_full`."""
    met, (port,) = 0, free_ports(1)
    async with (
        FaultyProxy(f"redis://127.0.0.1:{port}") as proxy,
        serve(port=port, address=proxy.url, seats=1) as service,
        httpx.AsyncClient(base_url=service.replicas.seats[0].url, timeout=30) as client,
    ):
        for change in CHANGES:
            number = 0
            while await full_at(client, service, proxy, change, number):
                number += 1
            met += number
        session = await session_of(client)
        set_room(service.store, 1)
        for name, (method, route) in ALWAYS.items():
            answer = await client.request(method, route.format(id=session))
            assert answer.status_code < 300, (name, answer.text)
        refused = await client.post("/sessions", json={})
        assert (refused.status_code, refused.json()["applied"]) == (503, "no")
    print(f"{met} times a full store in the middle of {len(CHANGES)} kinds of change: 0 half done")


async def test_a_full_disk_loses_nothing(serve, tiny_checkpoint):
    """The store dies of a disk without room, under load; with more room it has all that was acknowledged."""
    async with serve(limit_bytes=DISK) as service:
        with_room = Server(program("valkey"), service.store.folder, port=service.store.port, maxmemory=ROOM)
        async with Clients(service.replicas, service.history, seed=19) as clients:
            while service.store.alive:
                clients.workers.check()
                await asyncio.sleep(0.02)
            before = service.history.acknowledged
            await asyncio.sleep(0.5)
            await asyncio.to_thread(with_room.start)
            try:
                await service.nemesis.some_work(clients)
                await service.nemesis.some_work(clients)
            except BaseException:
                with_room.close()
                raise
        try:
            verdict = await judge(service.history, with_room.url, tiny_checkpoint)
        finally:
            with_room.close()
        print(f"a disk full after {DISK // 1000} kB and {before} acknowledged: {verdict.counts}")

    assert verdict.faults == []
    assert before > 0
