"""Failures get their honest names."""

import asyncio
import socket

import pytest
from redis import Redis

from rlstm_server.errors import InternalError, StartupError, StoreUnavailable
from rlstm_server.store.redis_link import RedisLink


@pytest.mark.parametrize(
    "url", ["", "localhost:6379", "http://localhost", "valkey+unix:///tmp/x", "redis://h:port"]
)
def test_an_address_that_is_none_is_refused(url):
    """The error says which addresses there are and repeats nothing of this one, which may hold a password."""
    with pytest.raises(StartupError, match="address"):
        RedisLink(url)


@pytest.mark.parametrize("url", ["redis://h:1/0", "rediss://u:p@h:1", "unix:///tmp/s.sock"])
def test_three_kinds_of_address(url):
    """TCP, TLS and Unix sockets."""
    RedisLink(url)


async def test_the_library_below_never_sends_again(embedded_url):
    """Its own retries are off, also when the address asks for them."""
    link = RedisLink(f"{embedded_url}?retry_on_timeout=true")
    await link.call("PING", changes=False)

    [connection] = link._pool._available_connections
    assert connection.retry.get_retries() == 0
    await link.close()


async def test_a_refused_command_says_nothing_of_its_arguments(embedded_url):
    """The server's text may quote what was sent; the error does not."""
    link = RedisLink(embedded_url)

    with pytest.raises(InternalError) as refused:
        await link.call("NO-SUCH-COMMAND", "secret text", changes=True)

    assert "secret" not in str(refused.value)
    await link.close()


async def test_a_lost_library_is_named(embedded_url):
    """A function that the server does not know makes the store unavailable, not the request wrong."""
    link = RedisLink(embedded_url)

    with pytest.raises(StoreUnavailable, match="function library"):
        await link.call("FCALL", "rlstm_v1_nothing", 0, changes=True)

    await link.close()


async def test_a_wrong_password_is_unavailable(embedded_url):
    """A server that refuses the user is unavailable, and the password is not repeated."""
    link = RedisLink(f"{embedded_url}?username=nobody&password=secret")

    with pytest.raises(StoreUnavailable) as refused:
        await link.call("PING", changes=False)

    assert "secret" not in str(refused.value)
    await link.close()


async def test_a_server_that_never_answers_the_handshake_is_unavailable(tmp_path):
    """Something that accepts connections but says nothing holds nobody up for ever."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen()
        link = RedisLink(f"unix://{tmp_path}/silent.sock?password=secret", timeout_s=0.02)

        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(link.call("PING", changes=True), 5)

        await link.close()


async def test_a_server_that_takes_no_writes_is_unavailable(embedded_url):
    """A replica refuses changes; the caller is told that nothing was applied."""
    link = RedisLink(embedded_url)
    with Redis.from_url(embedded_url, protocol=2) as admin:
        admin.config_set("min-replicas-to-write", 1)
        try:
            with pytest.raises(StoreUnavailable, match="NOREPLICAS"):
                await link.call("SET", "test:key", "value", changes=True)
        finally:
            admin.config_set("min-replicas-to-write", 0)

    await link.close()
