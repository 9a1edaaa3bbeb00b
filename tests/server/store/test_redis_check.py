"""A server that would not keep what the store promises is refused at the start."""

import pytest
from redis import Redis

from rlstm_server.errors import StartupError
from rlstm_server.store.embedded import EmbeddedValkey
from rlstm_server.store.redis_check import library_code, read_servers, weaknesses
from rlstm_server.store.redis_client import LIBRARY
from rlstm_server.store.redis_store import RedisStore

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


async def test_no_library_or_another_is_refused_or_replaced(own_server, admin):
    """One that is not there, or differs in a letter, is named; who may install puts it there."""
    with pytest.raises(StartupError, match=r"no function library rlstm_v.*rlstm store install"):
        await RedisStore(own_server.url, install=False).check()
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


class OldServer:
    """Answers like a server of another version."""

    is_cluster = False

    def __init__(self, info: str) -> None:
        self._info = info.encode()

    async def call_all(self, *command: object) -> dict[str, bytes]:
        """Answer INFO."""
        return {"old:6379": self._info}


@pytest.mark.parametrize(
    ("version", "is_old"),
    [
        ("6.2.14", True),
        ("5.0.7", True),
        ("6.999.0", True),
        ("7.0.0", False),
        ("8.6.3", False),
        ("10.0.0", False),
    ],
)
async def test_an_old_server_is_refused_by_its_version(version, is_old):
    """One without functions is named with its version; versions are compared as numbers, not as text."""
    asked = read_servers(OldServer(f"redis_version:{version}\r\nrole:master\r\n"))
    if is_old:
        with pytest.raises(StartupError, match=f"the store is Redis {version}: Redis 7.0 or Valkey"):
            await asked
    else:
        [server] = await asked
        assert server.product == f"Redis {version}"


async def test_rights_that_nobody_needs_are_warned_of(own_server, caplog):
    """A user who could end all sessions may serve, with a warning that names the rights; ours alone may."""
    store = RedisStore(own_server.url)
    await store.check()
    assert "FLUSHALL, CONFIG SET, EVAL, FUNCTION LOAD, RESTORE, keys of others" in caplog.text
    caplog.clear()
    alone = RedisStore(own_server.url, shared=False)
    await alone.check()

    assert not caplog.records
    await store.close()
    await alone.close()


async def test_trying_rights_changes_nothing(own_server, admin):
    """What is tried to learn the rights is refused for its arguments: data, settings and functions stay."""
    admin.set("other", "kept")
    before = admin.config_get("*"), admin.acl_list()
    store = RedisStore(own_server.url)
    await store.check()

    assert (admin.config_get("*"), admin.acl_list()) == before
    assert admin.get("other") == b"kept"
    assert [library[1] for library in admin.function_list()] == [LIBRARY.encode()]
    await store.close()
