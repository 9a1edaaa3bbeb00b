import hashlib
import json

import httpx
import pytest

from rlstm_server.api import auth
from rlstm_server.api.auth import Access, load_keys
from rlstm_server.api.layer import RequestLayer
from rlstm_server.api.tracing import TRACE, Endpoints
from rlstm_server.errors import StartupError
from rlstm_server.metrics import Metrics
from rlstm_server.settings import Settings

SECRET = "AbCdEfGh-123"


async def passed(scope, receive, send):
    """Stand for the application: answers with the tenant that came through."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope[TRACE].principal.tenant.encode()})


def layer(settings, failed_logins=20):
    """The layer that these settings make."""
    access = Access(load_keys(settings), host=settings.host, failed_logins=failed_logins)
    return RequestLayer(
        passed, access=access, endpoints=Endpoints(()), limits=settings.limits, metrics=Metrics()
    )


async def ask(settings, method="GET", path="/info", host="localhost", headers=()):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(layer(settings)), timeout=5) as client:
        return await client.request(method, f"http://{host}{path}", headers=list(headers))


@pytest.fixture
def keyed():
    return Settings(api_keys=SECRET)


@pytest.fixture
def one_key(key_file):
    """Settings with a keys file of one key with the given fields."""
    return lambda **fields: Settings(api_keys_file=key_file({SECRET: {"tenant": "acme", **fields}}))


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", SECRET)],
        [("authorization", f"bearer {SECRET}")],
        [("authorization", f"Basic {SECRET}")],
        [("authorization", f"Bearer {SECRET.lower()}")],
        [("authorization", f"Bearer {SECRET}x")],
        [("authorization", f"Bearer  {SECRET}")],
        [("authorization", f"Bearer {SECRET[:-1]}")],
        [("authorization", f"Bearer {SECRET}"), ("authorization", f"Bearer {SECRET}")],
        [("authorization", b"Bearer \xff\xfe")],
        [("x-api-key", SECRET)],
    ],
)
async def test_anything_else_is_401_with_a_challenge(keyed, headers):
    """Wrong case, wrong scheme, part of a key, two headers: one and the same answer shape."""
    answer = await ask(keyed, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert SECRET not in answer.text


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("/score", "score"),
        ("/generate", "generate"),
        ("/sessions", "sessions"),
        ("/sessions/0/append", "sessions"),
        ("/metrics", "admin"),
        ("/unheard-of", "admin"),
        ("//score/", "score"),
    ],
)
async def test_a_key_needs_the_scope_of_the_path(one_key, path, scope):
    """Each path asks for one scope; a path that nobody knows asks for admin."""
    bearer = [("authorization", f"Bearer {SECRET}")]
    every = ["score", "generate", "sessions", "admin"]
    others = [name for name in every if name != scope]
    assert (await ask(one_key(scopes=[scope]), path=path, headers=bearer)).status_code == 200
    assert (await ask(one_key(scopes=others), path=path, headers=bearer)).status_code == 403


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", "the file"),
        ("[]", "no key"),
        ('[{"tenant":"a"}]', "0.sha256"),
        ('[{"sha256":"canary","tenant":"a"}]', "0.sha256"),
        ('[{"sha256":"%s","tenant":"A/B"}]' % ("0" * 64), "0.tenant"),
        ('[{"sha256":"%s","tenant":"a","scopes":["root"]}]' % ("0" * 64), "0.scopes.0"),
        ('[{"sha256":"%s","tenant":"a","quotas":{"words":1}}]' % ("0" * 64), "0.quotas.words"),
    ],
)
def test_a_bad_keys_file_is_refused_by_place(tmp_path, content, named):
    """The sentence names file and field and repeats nothing of the content."""
    path = tmp_path / "keys.json"
    path.write_text(content)
    with pytest.raises(StartupError) as caught:
        load_keys(Settings(api_keys_file=path))
    assert str(path) in caught.value.detail
    assert named in caught.value.detail
    assert "canary" not in caught.value.detail


@pytest.mark.parametrize("tenants", [("a",), ("a", "b")])
def test_a_key_is_somebodys(tmp_path, tenants):
    """One that is there twice would be the first one's or the last one's, and nobody would know."""
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    path = tmp_path / "keys.json"
    path.write_text(json.dumps([{"sha256": digest, "tenant": tenant} for tenant in tenants]))
    plain = (SECRET,) if len(tenants) == 1 else ()
    with pytest.raises(StartupError, match="twice") as refused:
        load_keys(Settings(api_keys_file=path, api_keys=plain))
    assert SECRET not in refused.value.detail


EVIL, OWN = "https://evil.example", "http://localhost:8000"
WITHOUT_KEYS = [
    *((host, [], 200) for host in ("localhost", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST")),
    *((host, [], 403) for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example")),
    *(
        ("localhost", headers, 200)
        for headers in (
            [("origin", OWN), ("sec-fetch-site", "same-origin")],
            [("origin", "http://[::1]:8000")],
            [("origin", "http://127.0.0.1")],
            [("sec-fetch-site", "none")],
        )
    ),
    *(
        ("localhost", headers, 403)
        for headers in (
            [("origin", EVIL)],
            [("origin", "null")],
            [("origin", "http://localhost.evil.example")],
            [("origin", "http://127.0.0.1.evil.example:8000"), ("sec-fetch-site", "same-origin")],
            [("sec-fetch-site", "cross-site")],
            [("sec-fetch-site", "same-site")],
            [("origin", OWN), ("sec-fetch-site", "same-site")],
            [("sec-fetch-site", "")],
            [("origin", EVIL), ("origin", OWN)],
            [("origin", OWN), ("origin", EVIL)],
        )
    ),
]


@pytest.mark.parametrize(("host", "headers", "status"), WITHOUT_KEYS)
async def test_without_keys_this_machine_and_our_own_page_are_served(keyed, host, headers, status):
    """By whatever method: another page could change something unread. With a key none of it is looked at."""
    for method in ("POST", "DELETE", "GET"):
        assert (await ask(Settings(), method, "/sessions", host, headers)).status_code == status
    right = [*headers, ("authorization", f"Bearer {SECRET}")]
    assert (await ask(keyed, "POST", "/sessions", host, right)).status_code == 200


@pytest.mark.parametrize(
    ("offered", "status"),
    [
        (["rlstm.v1", f"bearer.{SECRET}"], 200),
        ([f"bearer.{SECRET}", "bearer.wrong"], 401),
        (["bearer.wrong"], 401),
        (["bearer."], 401),
        ([SECRET], 401),
        ([], 401),
    ],
)
async def test_a_websocket_brings_its_key_as_a_subprotocol(keyed, offered, status):
    """One key, to the letter; no path is open to a WebSocket."""
    sent = []

    async def send(message):
        sent.append(message)

    for path in ("/sessions/a/stream", "/health/live"):
        scope = {"type": "websocket", "path": path, "headers": [], "subprotocols": offered}
        await layer(keyed)(scope, None, send)
    statuses = [message["status"] for message in sent if message["type"].endswith("start")]
    assert statuses == [status, status]


@pytest.fixture
def login(one_key):
    """Show a key from an address to a layer that allows two wrong ones at once; gives the status."""
    app = layer(one_key(), failed_logins=2)

    async def show(key, address):
        transport = httpx.ASGITransport(app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
            return (await client.get("/info", headers={"authorization": f"Bearer {key}"})).status_code

    return show


LOGINS = {
    "wrong keys are few, of one address": [
        *(("wrong", "10.0.0.1", status) for status in (401, 401, 429)),
        ("wrong", "10.0.0.2", 401),
    ],
    "a guess that fits does not stand out": [
        *(("wrong", "10.0.0.1", 401),) * 2,
        (SECRET, "10.0.0.1", 429),
    ],
    "whoever shares an address with a guesser is served": [
        (SECRET, "10.0.0.1", 200),
        *(("wrong", "10.0.0.1", status) for status in (401, 401, 429)),
        (SECRET, "10.0.0.1", 200),
    ],
    "addresses of one network of IPv6 are one, and a mapped one of IPv4 is one of many": [
        *(("wrong", f"2001:db8::{n}", status) for n, status in enumerate((401, 401, 429))),
        ("wrong", "2001:db8:0:1::1", 401),
        *(("wrong", f"::ffff:10.0.0.{n}", 401) for n in range(3)),
    ],
    "what is no address is one caller": [
        ("wrong", "", 401),
        ("wrong", "x" * 65_536, 401),
        ("wrong", "10.0.0.1, 10.0.0.2", 429),
        ("wrong", "10.0.0.1", 401),
    ],
}


@pytest.mark.parametrize("shown", LOGINS.values(), ids=LOGINS)
async def test_wrong_keys_are_counted_by_their_address(login, shown):
    """Two at once; then an address waits, but for keys that it has used before."""
    assert [await login(key, address) for key, address, _ in shown] == [status for *_, status in shown]


async def test_the_table_of_addresses_has_an_end(monkeypatch, login):
    """The oldest are forgotten, however many there are."""
    monkeypatch.setattr(auth, "ADDRESSES", 8)
    for n in range(100):
        await login("wrong", f"10.0.0.{n}")
    assert [await login("wrong", "10.0.0.99") for _ in range(2)] == [401, 429]
    assert [await login("wrong", "10.0.0.1") for _ in range(2)] == [401, 401]


def test_quotas_become_what_the_engine_charges(one_key):
    """Each of the file's quotas is counted; a key without any may do as it likes."""
    quotas = {
        "requests_per_second": 1,
        "tokens_per_second": 2,
        "learned_tokens_per_second": 3,
        "generated_tokens_per_second": 4,
        "sessions": 5,
        "stored_bytes": 6,
    }
    (limited,) = load_keys(one_key(quotas=quotas)).values()
    quota = limited.quota
    assert None not in (quota.requests, quota.tokens, quota.learned, quota.generated)
    assert (quota.sessions, quota.stored_bytes) == (5, 6)
    (free,) = load_keys(one_key()).values()
    assert set(vars(free.quota).values()) == {None}
