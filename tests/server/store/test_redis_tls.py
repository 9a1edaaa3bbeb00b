"""A store over TLS: both sides show a certificate, and neither believes a stranger's."""

import pytest

from rlstm_server.errors import StartupError
from rlstm_server.store.redis_store import RedisStore

from . import servers


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """An authority, and the certificates that it signed."""
    return servers.certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def encrypted(files, tmp_path_factory):
    """A server that speaks TLS only and asks for a certificate."""
    folder = tmp_path_factory.mktemp("encrypted")
    server = servers.Server(
        servers.program("redis"), folder, client=servers.tls_client(files), **servers.tls_options(files)
    )
    with servers.running(server) as [running]:
        yield running


async def test_sessions_over_tls(encrypted, files, build):
    """With the authority's file and our certificate the store works as any other."""
    store = RedisStore(f"rediss://localhost:{encrypted.port}{servers.tls_query(files)}")
    await store.check()
    key, at = await build.session(store)
    await store.commit(build.commit(key, at))

    assert (await store.load_head(key)).version == 1
    await store.close()


async def test_a_stranger_is_not_believed(encrypted, files, tmp_path):
    """A server whose authority is unknown, or whose name is another, is no store; the error says why."""
    other = servers.certificates(tmp_path / "other")
    mixed = servers.tls_query(files).replace(f"{files}/ca.crt", f"{other}/ca.crt")
    for host, query in (("localhost", mixed), ("127.0.0.2", servers.tls_query(files))):
        with pytest.raises(StartupError, match="certificate"):
            await RedisStore(f"rediss://{host}:{encrypted.port}{query}").check()


async def test_the_server_does_not_believe_a_stranger_either(encrypted, files):
    """Without our certificate there is no session store to start with."""
    with pytest.raises(StartupError, match="no session store"):
        await RedisStore(f"rediss://localhost:{encrypted.port}?ssl_ca_certs={files}/ca.crt").check()
    with pytest.raises(StartupError, match="no session store"):
        await RedisStore(f"redis://localhost:{encrypted.port}").check()
