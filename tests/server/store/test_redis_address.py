"""Addresses are read once, in full, or refused without being repeated."""

import pytest
from redis.asyncio.connection import SSLConnection

from rlstm_server.errors import StartupError
from rlstm_server.store.redis_address import Endpoint, read_address


@pytest.mark.parametrize(
    ("url", "kind", "endpoints"),
    [
        ("redis://h", "server", [Endpoint("h", 6379)]),
        ("redis://u:p@h:1/2", "server", [Endpoint("h", 1)]),
        ("redis://[::1]:7", "server", [Endpoint("::1", 7)]),
        ("rediss://u:p@h:1", "server", [Endpoint("h", 1)]),
        ("unix:///tmp/s.sock?db=2", "server", [Endpoint("/tmp/s.sock", 0)]),
        ("unix://u:p@/tmp/s.sock", "server", [Endpoint("/tmp/s.sock", 0)]),
        ("sentinel://a,b:2/name", "sentinel", [Endpoint("a", 26379), Endpoint("b", 2)]),
        ("sentinels://u:p@a/name", "sentinel", [Endpoint("a", 26379)]),
        (
            "cluster://u:p@a:1,b:2,[::1]:3",
            "cluster",
            [Endpoint("a", 1), Endpoint("b", 2), Endpoint("::1", 3)],
        ),
        ("clusters://a", "cluster", [Endpoint("a", 6379)]),
    ],
)
def test_every_kind_of_address(url, kind, endpoints):
    """One server, Sentinels or a cluster, with one place or several, with TLS or without."""
    address = read_address(url)

    assert (address.kind, list(address.endpoints)) == (kind, endpoints)
    assert (address.tls is not None) == url.startswith(("rediss", "sentinels", "clusters"))
    assert [*address.user.values()] == (["u", "p"] if "u:p@" in url else [None, None])


def test_the_parts_beside_the_place():
    """Database, name and passwords come from where they stand, unquoted once."""
    assert read_address("redis://h/3").database == read_address("unix:///s?db=3").database == 3
    assert read_address("redis://:p%40s%2Fs%2525@h").user["password"] == "p@s/s%25"
    address = read_address("sentinel://u:p@a/main?db=1&sentinel_username=su&sentinel_password=sp")
    assert (address.name, address.database) == ("main", 1)
    assert address.sentinel_user == {"username": "su", "password": "sp"}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "canary:6379",
        "http://canary",
        "valkey+unix:///canary",
        "redis://",
        "redis://canary:port",
        "redis://canary:70000",
        "redis://canary,other",
        "redis://canary/x",
        "redis://canary/-1",
        "unix://",
        "unix://u:p@",
        "sentinel://canary",
        "sentinel://canary/a/b",
        "sentinel://,/name",
        "cluster://canary/1",
        "redis://canary?canary",
        "redis://canary?retry_on_timeout=true",
        "redis://canary?decode_responses=true",
        "redis://canary?ssl_ca_certs=/canary",
        "rediss://canary?ssl_cert_reqs=none",
        "rediss://canary?ssl_ca_certs=/no/canary",
    ],
)
def test_an_address_that_is_none_is_refused(url):
    """The error says what is wrong and repeats nothing of the address, which may hold a password.

    So is one with options that would turn on what must stay off: retries, other replies, no verification.
    """
    with pytest.raises(StartupError, match="address") as refused:
        read_address(url)

    assert "canary" not in refused.value.detail


def test_an_address_does_not_show_its_password():
    """Not in a message, not in a log, not in a debugger's list of values."""
    assert "canary" not in repr(read_address("redis://user:canary@h"))


def test_certificates_are_checked_unless_their_names_are_waived():
    """TLS always verifies the authority; only the name may be waived."""
    strict, waived = (read_address(f"rediss://h{query}") for query in ("", "?ssl_check_hostname=no"))
    for address, names in ((strict, True), (waived, False)):
        kind, options = address.connection(address.endpoints[0])
        connection = kind(**options)
        assert isinstance(connection, SSLConnection)
        assert connection.ssl_context.get().verify_mode.name == "CERT_REQUIRED"
        assert connection.ssl_context.get().check_hostname is names
