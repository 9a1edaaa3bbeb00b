"""Every status of the table by an input that earns it; after each, the next good request works."""

import gzip
import itertools
import json
import random
import re

import pytest

CANARY = "canary-7f3a"
JSON = {"content-type": "application/json"}
SESSION = "{session}"
ONE = [{"text": "a"}]
UNKNOWN = "0" * 32
PATHS = re.compile(r"/(?:root|home|tmp|usr|work|var|opt)/|\.py\b|\.safetensors")
"""What a place on the server's disk looks like."""

RAW = [
    ("not JSON", "/score", b"{", 400, "invalid_json"),
    ("not JSON at all", "/score", f"{CANARY}".encode(), 400, "invalid_json"),
    ("NaN", "/generate", b'{"temperature":NaN}', 400, "invalid_json"),
    ("infinity", "/generate", b'{"temperature":-Infinity}', 400, "invalid_json"),
    ("1e400", "/generate", b'{"temperature":1e400}', 400, "invalid_json"),
    ("5,000 digits", "/generate", b'{"seed":' + b"9" * 5000 + b"}", 400, "invalid_json"),
    ("a key twice", "/score", b'{"text":"a","text":"b"}', 400, "invalid_json"),
    ("deep", "/score", b'{"text":' + b"[" * 99_999 + b"]" * 99_999 + b"}", 400, "invalid_json"),
    ("surrogate value", "/score", b'{"text":"' + CANARY.encode() + rb'\ud83d"}', 400, "invalid_text"),
    ("surrogate key", "/score", rb'{"\ud83d":1}', 400, "invalid_text"),
    ("surrogate in append", f"/sessions/{SESSION}/append", rb'{"text":"\udc00"}', 400, "invalid_text"),
    ("UTF-16", "/score", '{"text":"a"}'.encode("utf-16"), 400, "invalid_json"),
    ("not UTF-8", "/score", b'{"text":"\xff"}', 400, "invalid_json"),
    ("no body", "/score", b"", 422, "invalid_field"),
    ("an array", "/score", b"[]", 422, "invalid_field"),
    ("a number", "/score", b"1", 422, "invalid_field"),
    ("null", "/score", b"null", 422, "invalid_field"),
    ("too many bytes", "/score", b'{"text":"' + b"x" * (8 * 2**20) + b'"}', 413, "too_large"),
]  # fmt: skip

LEARNING = [
    ([], "adaptation"),
    ("subspace", "adaptation"),
    (True, "adaptation"),
    ({"rank": 4}, "adaptation.rank"),
    ({"kind": CANARY}, "adaptation.kind"),
    ({"kind": 1}, "adaptation.kind"),
    ({"kind": ["full"]}, "adaptation.kind"),
    ({"kind": "sparse"}, "adaptation.kind: there is no rule for sparse"),
    ({"kind": "subspace", "num_fast_weights": 256}, "output_bias of 256"),
    ({"num_fast_weights": 0}, "adaptation.num_fast_weights"),
    ({"num_fast_weights": -1}, "adaptation.num_fast_weights"),
    ({"num_fast_weights": 256.0}, "adaptation.num_fast_weights"),
    ({"num_fast_weights": "256"}, "adaptation.num_fast_weights"),
    ({"num_fast_weights": True}, "adaptation.num_fast_weights"),
    ({"num_fast_weights": 2**70}, "adaptation.num_fast_weights"),
    ({"num_fast_weights": 7}, "adaptation.num_fast_weights: there is no rule"),
    ({"kind": "output_bias", "num_fast_weights": 257}, "adaptation.num_fast_weights: there is no rule"),
    ({"experts": 0}, "adaptation.experts"),
    ({"experts": 3}, "adaptation.experts"),
    ({"experts": -4}, "adaptation.experts"),
    ({"experts": "2"}, "adaptation.experts"),
    ({"experts": 2.0}, "adaptation.experts"),
    ({"experts": True}, "adaptation.experts"),
    ({"experts": 2, "static": False}, "experts"),
    ({"experts": 4, "static": False}, "experts"),
    ({"rate_scale": 11}, "adaptation.rate_scale"),
    ({"rate_scale": 1e300}, "adaptation.rate_scale"),
    ({"rate_scale": -0.1}, "adaptation.rate_scale"),
    ({"rate_scale": "1"}, "adaptation.rate_scale"),
    ({"rate_scale": True}, "adaptation.rate_scale"),
    ({"rate_scale": None}, "adaptation.rate_scale"),
    ({"static": 0}, "adaptation.static"),
    ({"static": "yes"}, "adaptation.static"),
    ({"static": None}, "adaptation.static"),
]

FIELDS = [
    ("/score", {"text": ""}, 422, "text"),
    ("/score", {"tokens": []}, 422, "tokens"),
    ("/score", {"text": None}, 422, "text"),
    ("/score", {"text": "a", "tokens": [1]}, 422, "text"),
    ("/score", {"text": 1}, 422, "text"),
    ("/score", {"text": ["a"]}, 422, "text"),
    ("/score", {"items": []}, 422, "items"),
    ("/score", {"items": [{"text": "a"}], "text": "a"}, 422, "items"),
    ("/score", {"items": [{"text": "a"}, {"text": ""}]}, 422, "items[1].text"),
    ("/score", {"items": [{}]}, 422, "items[0]"),
    ("/score", {"items": ["a"]}, 422, "items[0]"),
    ("/score", {"tokens": [True]}, 422, "tokens[0]"),
    ("/score", {"tokens": [1, "2"]}, 422, "tokens[1]"),
    ("/score", {"tokens": [1.5]}, 422, "tokens[0]"),
    ("/score", {"tokens": [1.0]}, 422, "tokens[0]"),
    ("/score", {"tokens": [[1]]}, 422, "tokens[0]"),
    ("/score", {"text": "a", "tpo": 1}, 422, "tpo"),
    ("/score", {"text": "a", "top": True}, 422, "top"),
    ("/score", {"text": "a", "top": -1}, 422, "top"),
    ("/score", {"text": "a", "top": 10**9}, 422, "top"),
    ("/score", {"text": "a", "unit": CANARY}, 422, "unit"),
    ("/score", {"text": "a", "adapt": 1}, 422, "adapt"),
    *(
        (path, {"text": "a", "adaptation": adaptation}, 422, named)
        for path in ("/score", "/sessions")
        for adaptation, named in LEARNING
    ),
    ("/score", {"tokens": [256]}, 400, "token"),
    ("/score", {"tokens": [-1]}, 400, "token"),
    ("/score", {"tokens": [2**31]}, 400, "token"),
    ("/score", {"tokens": [2**70]}, 400, "token"),
    ("/score", {"text": "a", "context_tokens": [999]}, 400, "token"),
    ("/score", {"items": [{"text": "a"}] * 257}, 413, "257"),
    ("/score", {"text": "x" * 100_000, "top": 100}, 413, "10,100,000"),
    ("/score", {"text": "x" * (2**21 + 1)}, 413, "2,097,153"),
    ("/generate", {"prompt": 5}, 422, "prompt"),
    ("/generate", {"max_tokens": 0}, 422, "max_tokens"),
    ("/generate", {"max_tokens": "5"}, 422, "max_tokens"),
    ("/generate", {"max_tokens": 10**9}, 422, "max_tokens"),
    ("/generate", {"n": 10**9}, 422, "n"),
    ("/generate", {"n": 16, "max_tokens": 65_536}, 413, "1,048,576"),
    ("/generate", {"temperature": -0.1}, 422, "temperature"),
    ("/generate", {"temperature": True}, 422, "temperature"),
    ("/generate", {"top_p": 1.1}, 422, "top_p"),
    ("/generate", {"seed": -1}, 422, "seed"),
    ("/generate", {"seed": 2**63}, 422, "seed"),
    ("/generate", {"stop": [""]}, 422, "stop"),
    ("/generate", {"stop": ["x"] * 100_000}, 422, "stop"),
    ("/generate", {"stop": "x" * 10_000}, 422, "stop"),
    ("/generate", {"tempreature": 1}, 422, "tempreature"),
    ("/generate", {"tokens": [999]}, 400, "token"),
    ("/generate", {"tokens": [999], "stream": True}, 400, "token"),
    ("/sessions", {"name": "../../etc/passwd"}, 422, "name"),
    ("/sessions", {"name": "x" * 65}, 422, "name"),
    ("/sessions", {"name": "a\0"}, 422, "name"),
    ("/sessions", {"ttl_seconds": 0}, 422, "ttl_seconds"),
    ("/sessions", {"metadata": {"a": {}}}, 422, "metadata"),
    ("/sessions", {"metadata": {"a": 2**63}}, 422, "64 bits"),
    ("/sessions", {"metadata": {"a": -(2**63) - 1}}, 422, "64 bits"),
    ("/sessions", {"metadata": {"a": 10**400}}, 422, "64 bits"),
    ("/sessions", {"metadata": {str(n): n for n in range(33)}}, 422, "metadata"),
    ("/sessions", {"text": ""}, 422, "text"),
    (f"/sessions/{SESSION}/append", {"text": ""}, 422, "text"),
    (f"/sessions/{SESSION}/append", {}, 422, "text"),
    (f"/sessions/{SESSION}/append", {"text": "a", "learn": 1}, 422, "learn"),
    (f"/sessions/{SESSION}/append", {"tokens": [256]}, 400, "token"),
    (f"/sessions/{SESSION}/append", {"text": "x" * 65_537}, 413, "65,537"),
    (f"/sessions/{SESSION}/score", {"candidates": []}, 422, "candidates"),
    (f"/sessions/{SESSION}/score", {"candidates": [{"text": ""}]}, 422, "candidates[0].text"),
    (f"/sessions/{SESSION}/score", {"candidates": [{"text": "a"}] * 257}, 413, "257"),
    (f"/sessions/{SESSION}/score", {"weights": {"lm": True}, "candidates": ONE}, 422, "weights.lm"),
    (f"/sessions/{SESSION}/generate", {"learn_from_output": True}, 422, "commit"),
    (f"/sessions/{SESSION}/generate", {"n": 2}, 422, "n"),
    (f"/sessions/{SESSION}/generate", {"min_version": 99}, 412, "99"),
    (f"/sessions/{SESSION}/reset", {"what": CANARY}, 422, "what"),
    (f"/sessions/{UNKNOWN}/append", {"text": "a"}, 404, "session"),
    (f"/sessions/{UNKNOWN}/generate", {"stream": True}, 404, "session"),
    (f"/sessions/{CANARY}/append", {"text": "a"}, 404, "session"),
    ("/sessions/%2e%2e%2fetc/append", {"text": "a"}, 404, "route"),
    ("/sessions/a%00b/append", {"text": "a"}, 404, "route"),
    (f"/sessions/{'x' * 300}/append", {"text": "a"}, 404, "session"),
]  # fmt: skip


def _id(value):
    return str(value)[:40] if isinstance(value, str | int) else json.dumps(value)[:40]


@pytest.fixture
async def session(client):
    """A session that must be untouched by everything that is refused."""
    made = await client.post("/sessions", json={"text": "before"})
    return made.json()["id"]


@pytest.fixture
def refused(client, session):
    """Check a refusal from all sides, and that nothing has changed by it."""

    async def check(answer, status, slug=None):
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["status"] == status
        assert problem["applied"] == "no"
        assert problem["request_id"] == answer.headers["x-request-id"]
        assert slug is None or problem["type"].endswith(f":{slug}")
        assert CANARY not in answer.text
        assert not PATHS.search(answer.text)
        good = await client.post(f"/sessions/{session}/score", json={"candidates": [{"text": "still here"}]})
        assert good.status_code == 200
        assert good.json()["version"] == 1
        assert (await client.post("/score", json={"text": "fine"})).status_code == 200
        return problem

    return check


@pytest.mark.parametrize(("name", "path", "body", "status", "slug"), RAW, ids=[row[0] for row in RAW])
async def test_bytes_that_are_no_strict_json_object(client, session, refused, name, path, body, status, slug):
    """Refused before any schema sees them, in our words alone."""
    answer = await client.post(path.replace(SESSION, session), content=body, headers=JSON)
    await refused(answer, status, slug)


@pytest.mark.parametrize(("path", "body", "status", "named"), FIELDS, ids=_id)
async def test_fields_that_are_wrong(client, session, refused, path, body, status, named):
    """The status of the table; the sentence names the field, or both numbers of the limit."""
    answer = await client.post(path.replace(SESSION, session), json=body)
    problem = await refused(answer, status)
    assert named in problem["detail"]


@pytest.mark.parametrize(
    ("method", "path", "status", "slug"),
    [
        ("GET", "/score", 405, "method_not_allowed"),
        ("PUT", "/sessions", 405, "method_not_allowed"),
        ("POST", "/health/live", 405, "method_not_allowed"),
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/score/", 404, "not_found"),
        ("POST", "//score", 404, "not_found"),
        ("POST", "/SCORE", 404, "not_found"),
        ("GET", f"/sessions/{UNKNOWN}", 404, "not_found"),
        ("DELETE", f"/sessions/{UNKNOWN}", 404, "not_found"),
        ("GET", "/sessions?limit=0", 422, "invalid_field"),
        ("GET", "/sessions?limit=many", 422, "invalid_field"),
        ("GET", f"/sessions?cursor={CANARY}", 422, "invalid_field"),
        ("GET", "/docs", 404, "not_found"),
    ],
)
async def test_places_and_methods_that_are_wrong(client, refused, method, path, status, slug):
    """The router's own refusals take the same form."""
    answer = await client.request(method, f"http://localhost{path}")
    await refused(answer, status, slug)
    if status == 405:
        assert answer.headers["allow"]


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/json; charset=latin-1",
        "application/json; a*1=x; a*=y; charset=latin-1",
        "json",
        CANARY,
    ],
)
async def test_a_body_that_is_not_declared_as_json(client, refused, content_type):
    """415; a web page cannot send one without asking first."""
    answer = await client.post("/score", content=b'{"text":"a"}', headers={"content-type": content_type})
    await refused(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "body", [gzip.compress(b'{"text":"a"}', mtime=0), gzip.compress(b" " * 2**20, mtime=0), b'{"text":"a"}']
)
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity, gzip", CANARY])
async def test_a_body_that_is_compressed(client, refused, body, encoding):
    """Nothing is ever unpacked: 415 for what says so, and what does not say so is not JSON."""
    answer = await client.post("/score", content=body, headers=JSON | {"content-encoding": encoding})
    await refused(answer, 415, "unsupported_media_type")
    if not body.startswith(b"{"):
        await refused(await client.post("/score", content=body, headers=JSON), 400, "invalid_json")


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON",
        "application/json; a*1=x; a*=y",
    ],
)
async def test_a_body_that_is(client, content_type):
    """However it is spelt."""
    answer = await client.post("/score", content=b'{"text":"a"}', headers={"content-type": content_type})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("If-Match", "W/1", 422),
        ("If-Match", '"1", "2"', 422),
        ("If-Match", f'"{CANARY}"', 422),
        ("If-Match", '"7"', 412),
        ("Idempotency-Key", "", 422),
        ("Idempotency-Key", "two words", 422),
        ("Idempotency-Key", "x" * 201, 422),
    ],
)
async def test_headers_that_are_wrong(client, session, refused, name, value, status):
    """Named like fields."""
    answer = await client.post(f"/sessions/{session}/append", json={"text": "a"}, headers={name: value})
    problem = await refused(answer, status)
    if status == 422:
        assert name.lower() in problem["detail"]


async def test_a_name_of_a_field_is_repeated_only_if_it_is_one(client, refused):
    """A misspelt field is named; anything else that stands in its place is not."""
    answer = await client.post("/score", json={"text": "a", f"<{CANARY}>": 1, "tpo": 2})
    problem = await refused(answer, 422)
    assert sorted(fault["field"] for fault in problem["errors"]) == ["(unnamed)", "tpo"]


async def test_no_name_within_metadata_is_repeated(client, refused):
    """They are the caller's own."""
    problem = await refused(await client.post("/sessions", json={"metadata": {CANARY: {}}}), 422)
    assert {fault["field"] for fault in problem["errors"]} == {"metadata"}


async def test_many_faults_are_told_briefly(client, refused):
    """A body with thousands of wrong fields does not earn thousands of sentences."""
    answer = await client.post("/score", json={f"x{number}": 1 for number in range(1_000)})
    problem = await refused(answer, 422)
    assert len(problem["errors"]) == 16


async def test_scrambled_bodies_never_break_the_server(client):
    """Hundreds of bodies made of right and wrong pieces: no 5xx, no other form of refusal."""
    draw = random.Random(1)
    pieces = [
        True,
        None,
        1,
        -1,
        2**80,
        1.5,
        1e300,
        "",
        "a",
        "\0",
        "\u202e",
        [],
        {},
        [1],
        [[]],
        {"text": "a"},
        "e\u0301" * 50,
    ]
    names = [
        "text",
        "tokens",
        "items",
        "unit",
        "top",
        "adapt",
        "context",
        "n",
        "stop",
        "seed",
        "prompt",
        "candidates",
    ]
    for path in itertools.islice(itertools.cycle(["/score", "/generate", "/sessions"]), 300):
        body = {draw.choice(names): draw.choice(pieces) for _ in range(draw.randint(0, 3))}
        if path == "/generate":
            body["max_tokens"] = 2
        answer = await client.post(path, json=body)
        assert answer.status_code < 500, (path, body, answer.text)
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
