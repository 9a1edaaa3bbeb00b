"""A server that would not keep what the store promises is refused at the start."""

import pytest
from redis import Redis

from rlstm_server.errors import StartupError
from rlstm_server.store.embedded import EmbeddedValkey
from rlstm_server.store.in_redis import RedisStore
from rlstm_server.store.redis_check import library_code, weaknesses

GOOD = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory-policy": "noeviction",
    "maxmemory": "1000000",
}


@pytest.fixture
async def own_server(tmp_path):
    """A server whose settings a test may spoil."""
    server = EmbeddedValkey(tmp_path, maxmemory_bytes=64 << 20)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def admin(own_server):
    with Redis.from_url(own_server.url, protocol=2) as client:
        yield client


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("appendonly", "no"),
        ("appendfsync", "everysec"),
        ("no-appendfsync-on-rewrite", "yes"),
        ("maxmemory-policy", "allkeys-lru"),
        ("maxmemory", "0"),
    ],
)
def test_every_weakness_is_named(name, value):
    """Each setting that loses acknowledged operations or live sessions is found, by its name, and alone."""
    assert weaknesses(GOOD) == []
    [sentence] = weaknesses(GOOD | {name: value})
    assert sentence.startswith(name)
    assert len(weaknesses({})) == len(GOOD)


async def test_a_weak_server_is_refused_unless_told_otherwise(own_server, admin):
    """All faults stand in one error; accepted all the same, the store no longer claims to be safe."""
    admin.config_set("appendfsync", "everysec")
    admin.config_set("maxmemory-policy", "allkeys-lru")

    with pytest.raises(StartupError, match=r"appendfsync.*maxmemory-policy"):
        await RedisStore(own_server.url).check()

    weaker = RedisStore(own_server.url, allow_weaker=True)
    await weaker.check()
    assert weaker.durability == "memory"
    await weaker.close()


async def test_a_good_server_gets_the_library(own_server, admin):
    """The check installs the functions and then claims what the settings give."""
    store = RedisStore(own_server.url)
    await store.check()

    assert store.durability == "fsync"
    assert admin.function_list(library="rlstm_v1")
    await store.close()


async def test_a_missing_library_is_refused_where_it_may_not_be_installed(own_server):
    """Without the right to install it, the error says what is missing."""
    with pytest.raises(StartupError, match="no function library rlstm_v1"):
        await RedisStore(own_server.url, install=False).check()


async def test_another_version_of_the_library_is_refused_or_replaced(own_server, admin):
    """A library that differs in a letter is named with both digests; who may install replaces it."""
    admin.function_load(library_code() + "\n-- changed\n", replace=True)

    with pytest.raises(StartupError, match=r"differs.*expected"):
        await RedisStore(own_server.url, install=False).check()

    store = RedisStore(own_server.url)
    await store.check()
    await store.close()
    strict = RedisStore(own_server.url, install=False)
    await strict.check()
    await strict.close()


async def test_a_user_without_rights_gets_a_clear_error(own_server, admin):
    """A user who may not read the settings, or not install functions, is told which right is missing."""
    admin.execute_command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@all", "-config", "-function|load")
    with pytest.raises(StartupError, match="CONFIG GET"):
        await RedisStore(f"{own_server.url}?username=reader&password=pw").check()
    admin.execute_command("ACL", "SETUSER", "reader", "+config|get")

    with pytest.raises(StartupError, match="FUNCTION LOAD"):
        await RedisStore(f"{own_server.url}?username=reader&password=pw").check()


async def test_no_server_at_the_start_is_a_startup_error(tmp_path):
    """Nothing listens: the process refuses to start and says why."""
    with pytest.raises(StartupError, match="cannot be reached"):
        await RedisStore(f"unix://{tmp_path}/nothing.sock").check()
