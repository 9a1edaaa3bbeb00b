"""Failures get their honest names."""

import asyncio
import os
import random
import socket
import struct

import pytest
from redis import Redis

from rlstm_server.errors import InternalError, StoreUnavailable
from rlstm_server.store.redis_client import RedisLink


@pytest.fixture
async def link(embedded_url):
    """A link to the shared server."""
    made = RedisLink(embedded_url)
    yield made
    await made.aclose()


SET = ("SET", "test:key", "secret value")


async def test_the_library_below_never_sends_again(link):
    """Its own retries are off, and so are its time-outs, which would cut short what ours allow."""
    await link.call_all("PING")

    connection = await (await link.servers.server("")).pool.get_connection()
    assert connection.retry._retries == 0
    assert connection.socket_timeout is None


@pytest.mark.parametrize(
    ("user", "settings", "command", "error", "word"),
    [
        ("", {}, ("NO-SUCH-COMMAND", "secret text"), InternalError, "refused a command"),
        ("", {}, ("FCALL", "rlstm_v0_nothing", 1, "rlstm:{a}:b"), StoreUnavailable, "function library"),
        ("?username=nobody&password=secret", {}, SET, StoreUnavailable, "user or password"),
        ("", {"min-replicas-to-write": (1, 0)}, SET, StoreUnavailable, "NOREPLICAS"),
        ("", {"replicaof": ("127.0.0.1 1", "no one")}, SET, StoreUnavailable, "READONLY"),
    ],
)
async def test_what_a_server_refuses_was_not_applied(embedded_url, user, settings, command, error, word):
    """Each refusal has its name; the server's text may quote what was sent, the error does not."""
    link = RedisLink(embedded_url + user)
    with Redis.from_url(embedded_url, protocol=2) as admin:
        for name, (value, _) in settings.items():
            admin.replicaof(*value.split()) if name == "replicaof" else admin.config_set(name, value)
        try:
            with pytest.raises(error, match=word) as refused:
                await link.call(*command, changes=True)
        finally:
            for name, (_, value) in settings.items():
                admin.replicaof(*value.split()) if name == "replicaof" else admin.config_set(name, value)

    assert "secret" not in str(refused.value)
    await link.aclose()


async def test_a_server_that_never_answers_the_handshake_is_unavailable(tmp_path):
    """Something that accepts connections but says nothing holds nobody up for ever."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen()
        link = RedisLink(f"unix://{tmp_path}/silent.sock?password=secret", timeout_s=0.02)

        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(link.call("SET", "test:key", 1, changes=True), 5)

        await link.aclose()


async def blocked(url):
    """Until a client of the server waits for what is not there."""
    with Redis.from_url(url, protocol=2) as admin:
        while not admin.info("clients")["blocked_clients"]:  # noqa: ASYNC110 - another process tells
            await asyncio.sleep(0.01)


async def test_a_wait_for_a_connection_has_an_end(embedded_url):
    """While all connections are taken, others wait for so long and no longer; nothing of theirs is sent."""
    link = RedisLink(embedded_url, connections=1, queue_s=0.05)
    holding = asyncio.create_task(link.call("BLPOP", "test:never", 0.5, changes=False))
    await blocked(embedded_url)

    with pytest.raises(StoreUnavailable, match="more to do"):
        await link.call("SET", "test:queued", 1, changes=True)

    assert (await holding).content is None
    assert (await link.call("EXISTS", "test:queued", changes=False)).content == 0
    await link.aclose()


async def test_a_large_command_lengthens_the_wait(embedded_url):
    """Who brings much waits longer: the one before may bring as much."""
    link = RedisLink(embedded_url, connections=1, queue_s=0.05)
    holding = asyncio.create_task(link.call("BLPOP", "test:never", 0.5, changes=False))
    await blocked(embedded_url)

    reply = await link.call("SET", "test:large", bytes(8 << 20), changes=True)

    assert reply.content == b"OK"
    await holding
    await link.aclose()


async def test_a_connection_that_the_server_closed_is_not_used(link, embedded_url):
    """A server that was started again is found at the first try, and the outcome is definite."""
    await link.call("SET", "test:key", 1, changes=True)
    with Redis.from_url(embedded_url, protocol=2) as admin:
        admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await asyncio.sleep(0.05)

    assert (await link.call("SET", "test:key", 2, changes=True, again=False)).content == b"OK"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_connection_that_was_reset_while_idle_is_not_used(loop):
    """On either loop, where uvloop is installed: the command takes another connection and does its work."""
    loop_factory = pytest.importorskip(loop).new_event_loop
    taken = []

    async def answer(reader, writer):
        taken.append(writer)
        while data := await reader.read(1_000):
            writer.write(b"+OK\r\n" * data.count(b"*"))
        writer.close()

    async def calls():
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            link = RedisLink(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            await link.call("SET", "test:key", 1, changes=True)
            linger = struct.pack("ii", 1, 0)
            taken[0].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            taken[0].transport.abort()
            await asyncio.sleep(0.05)
            reply = await link.call("SET", "test:key", 2, changes=True)
            await link.aclose()
            await taken[1].wait_closed()
            return reply.content

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(calls()) == b"OK"
    assert len(taken) == 2


CANCELS = int(os.environ.get("RLSTM_CANCELS", "2000"))


@pytest.mark.timeout(900)
async def test_cancelled_at_any_moment(embedded_url, build):
    """Calls that are cut short at random moments leave no reply to others and no connection behind.

    RLSTM_CANCELS=100000 is the long form.
    """
    link = RedisLink(embedded_url, timeout_s=20, queue_s=20, connections=8)
    rolls = random.Random(1)
    cancelled = wrong = 0

    async def caller(number: int) -> None:
        nonlocal cancelled, wrong
        while cancelled < CANCELS:
            word = f"{number}-{rolls.random()}".encode()
            key = f"rlstm:{{{build.tenant}}}:{number}"
            within_s = rolls.choice((0.0, rolls.random() * 0.001, rolls.random() * 0.01))
            try:
                set_ = await asyncio.wait_for(
                    link.call("SET", key, word, "GET", "PX", 60_000, changes=True), within_s
                )
                got = await asyncio.wait_for(link.call("GET", key, changes=False), within_s)
            except TimeoutError:
                cancelled += 1
                continue
            before = set_.content
            wrong += got.content != word or not (before is None or before.startswith(f"{number}-".encode()))

    await asyncio.gather(*(caller(number) for number in range(32)))
    server = await link.servers.server("")
    leaked = len(server.pool._in_use_connections) + 8 - server._permits._value
    with Redis.from_url(embedded_url, protocol=2) as admin:
        held = sum(f"{build.tenant}" in str(client) for client in admin.client_list())
    leaked += max(0, len(server.pool._available_connections) - 8) + held

    print(f"{cancelled:,} cancels: {wrong} wrong replies, {leaked} leaked connections")
    assert (wrong, leaked) == (0, 0)
    assert cancelled >= CANCELS
    await link.aclose()
