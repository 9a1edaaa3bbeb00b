"""Every status of the table by an input that earns it; after each, the next good request works."""

import gzip
import logging
import re

import pytest

from rlstm_server.logs import JsonFormatter

CANARY = "canary-7f3a"
JSON = {"content-type": "application/json"}
SESSION = "{session}"
ONE = [{"text": "a"}]
UNKNOWN = "0" * 32
PATHS = re.compile(r"/(?:root|home|tmp|usr|work|var|opt)/|\.py\b|\.safetensors")
"""What a place on the server's disk looks like."""

RAW = [
    ("not JSON at all", "/score", f"{CANARY}".encode(), 400, "invalid_json"),
    ("NaN", "/generate", b'{"temperature":NaN}', 400, "invalid_json"),
    ("1e400", "/generate", b'{"temperature":1e400}', 422, "invalid_field"),
    ("5,000 digits", "/generate", b'{"seed":' + b"9" * 5000 + b"}", 400, "invalid_json"),
    ("a key twice", "/score", b'{"text":"a","text":"b"}', 400, "invalid_json"),
    ("deep", "/score", b'{"text":' + b"[" * 99_999 + b"]" * 99_999 + b"}", 400, "invalid_json"),
    ("surrogate value", "/score", b'{"text":"' + CANARY.encode() + rb'\ud83d"}', 400, "invalid_text"),
    ("surrogate in append", f"/sessions/{SESSION}/append", rb'{"text":"\udc00"}', 400, "invalid_text"),
    ("not UTF-8", "/score", b'{"text":"\xff"}', 400, "invalid_json"),
    ("no body", "/score", b"", 422, "invalid_field"),
    ("an array", "/score", b"[]", 422, "invalid_field"),
    ("too many bytes", "/score", b'{"text":"' + b"x" * (4 * 2**20) + b'"}', 413, "too_large"),
]  # fmt: skip

LEARNING = [
    ([], "adaptation"),
    ({"rank": 4}, "adaptation.rank"),
    ({"kind": CANARY}, "adaptation.kind"),
    ({"kind": "subspace", "num_fast_weights": 256}, "output_bias of 256"),
    ({"num_fast_weights": 0}, "adaptation.num_fast_weights"),
    ({"num_fast_weights": 256.0}, "adaptation.num_fast_weights"),
    ({"num_fast_weights": 7}, "adaptation.num_fast_weights: there is no rule"),
    ({"experts": 3}, "adaptation.experts"),
    ({"experts": 2.0}, "adaptation.experts"),
    ({"experts": True}, "adaptation.experts"),
    ({"experts": 2, "static": False}, "experts"),
    ({"rate_scale": 11}, "adaptation.rate_scale"),
    ({"rate_scale": True}, "adaptation.rate_scale"),
    ({"static": 0}, "adaptation.static"),
]

FIELDS = [
    ("/score", {"text": ""}, 422, "text"),
    ("/score", {"text": "a", "tokens": [1]}, 422, "text"),
    ("/score", {"items": []}, 422, "items"),
    ("/score", {"items": [{"text": "a"}], "text": "a"}, 422, "items"),
    ("/score", {"items": [{"text": "a"}, {"text": ""}]}, 422, "items[1].text"),
    ("/score", {"items": [{}]}, 422, "items[0]"),
    ("/score", {"tokens": [True]}, 422, "tokens[0]"),
    ("/score", {"tokens": [1, "2"]}, 422, "tokens[1]"),
    ("/score", {"tokens": [1.0]}, 422, "tokens[0]"),
    ("/score", {"text": "a", "tpo": 1}, 422, "tpo"),
    ("/score", {"text": "a", "top": True}, 422, "top"),
    ("/score", {"text": "a", "top": 10**9}, 422, "top"),
    ("/score", {"text": "a", "unit": CANARY}, 422, "unit"),
    *(
        (path, {"text": "a", "adaptation": adaptation}, 422, named)
        for path in ("/score", "/sessions")
        for adaptation, named in LEARNING
    ),
    *(
        ("/sessions", {"adapt": adapt, "adaptation": more}, 422, "adapt")
        for adapt, more in (("all", {}), (False, {}), (1, {}), ("memory", {"experts": 2}))
    ),
    ("/sessions", {"adapt": "both", "adaptation": {"static": False}}, 422, "adapt"),
    ("/sessions", {"adapt": "both", "adaptation": {"experts": 1}}, 422, "adapt"),
    ("/score", {"tokens": [256]}, 400, "token"),
    ("/score", {"text": "a", "model": CANARY}, 404, "these are: tiny"),
    ("/score", {"tokens": [2**70]}, 400, "token"),
    ("/score", {"text": "a", "context_tokens": [999]}, 400, "token"),
    ("/score", {"items": [{"text": "a"}] * 257}, 413, "257"),
    ("/score", {"text": "x" * 100_000, "top": 100}, 413, "10,100,000"),
    ("/score", {"text": "x" * (2**21 + 1)}, 413, "2,097,153"),
    ("/generate", {"max_tokens": 0}, 422, "max_tokens"),
    ("/generate", {"max_tokens": 10**9}, 422, "max_tokens"),
    ("/generate", {"n": 16, "max_tokens": 65_536}, 413, "1,048,576"),
    ("/generate", {"temperature": -0.1}, 422, "temperature"),
    ("/generate", {"top_p": 1.1}, 422, "top_p"),
    ("/generate", {"seed": 2**63}, 422, "seed"),
    ("/generate", {"stop": ["x"] * 100_000}, 422, "stop"),
    ("/generate", {"stop": "x" * 10_000}, 422, "stop"),
    ("/generate", {"tempreature": 1}, 422, "tempreature"),
    ("/generate", {"tokens": [999]}, 400, "token"),
    ("/generate", {"tokens": [999], "stream": True}, 400, "token"),
    ("/sessions", {"name": "../../etc/passwd"}, 422, "name"),
    ("/sessions", {"name": "a\0"}, 422, "name"),
    ("/sessions", {"ttl_seconds": 0}, 422, "ttl_seconds"),
    ("/sessions", {"metadata": {"a": {}}}, 422, "metadata"),
    ("/sessions", {"metadata": {"a": 2**63}}, 422, "64 bits"),
    ("/sessions", {"metadata": {"a": 10**400}}, 422, "64 bits"),
    ("/sessions", {"metadata": {str(n): n for n in range(33)}}, 422, "metadata"),
    (f"/sessions/{SESSION}/append", {}, 422, "text"),
    (f"/sessions/{SESSION}/append", {"text": "a", "learn": 1}, 422, "learn"),
    (f"/sessions/{SESSION}/append", {"tokens": [256]}, 400, "token"),
    (f"/sessions/{SESSION}/append", {"text": "x" * 65_537}, 413, "65,537"),
    (f"/sessions/{SESSION}/score", {"candidates": [{"text": ""}]}, 422, "candidates[0].text"),
    (f"/sessions/{SESSION}/score", {"candidates": [{"text": "a"}] * 257}, 413, "257"),
    (f"/sessions/{SESSION}/score", {"weights": {"lm": True}, "candidates": ONE}, 422, "weights.lm"),
    (f"/sessions/{SESSION}/generate", {"learn_from_output": True}, 422, "commit"),
    (f"/sessions/{SESSION}/generate", {"min_version": 99}, 412, "99"),
    (f"/sessions/{SESSION}/reset", {"what": CANARY}, 422, "what"),
    ("/detokenize", {"tokens": [0xC3]}, 422, "not UTF-8"),
    ("/detokenize", {"tokens": [256]}, 400, "token"),
    ("/detokenize", {"tokens": [True]}, 422, "tokens[0]"),
    ("/detokenize", {}, 422, "tokens"),
    ("/tokenize", {"prompt": ["a"]}, 422, "prompt"),
    ("/tokenize", {"prompt": "a", "model": CANARY}, 404, "tiny"),
    (f"/sessions/{UNKNOWN}/append", {"text": "a"}, 404, "session"),
    (f"/sessions/{UNKNOWN}/generate", {"stream": True}, 404, "session"),
    (f"/sessions/{CANARY}/append", {"text": "a"}, 404, "session"),
    ("/sessions/%2e%2e%2fetc/append", {"text": "a"}, 404, "route"),
    ("/sessions/a%00b/append", {"text": "a"}, 404, "route"),
    (f"/sessions/{'x' * 300}/append", {"text": "a"}, 404, "session"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def listening(caplog):
    """No line of any log repeats what was sent, and nothing of this is a fault of ours."""
    with caplog.at_level(logging.DEBUG):
        yield
    records, written = caplog.get_records("call"), JsonFormatter().format
    assert [record for record in records if record.exc_info or CANARY in written(record)] == []
    assert len(records) > 2


@pytest.fixture
async def session(client):
    """A session that must be untouched by everything that is refused."""
    made = await client.post("/sessions", json={"text": "before"})
    return made.json()["id"]


@pytest.fixture
def refused(client, session):
    """Check a refusal from all sides, and that nothing has changed by it."""

    async def check(answer, status, slug=None, *, row=None):
        assert answer.status_code == status, (row, answer.text)
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


async def test_bytes_that_are_no_strict_json_object(client, session, refused):
    """Refused before any schema sees them, in our words alone."""
    for name, path, body, status, slug in RAW:
        answer = await client.post(path.replace(SESSION, session), content=body, headers=JSON)
        problem = await refused(answer, status, row=name)
        assert problem["type"].endswith(f":{slug}"), name


async def test_fields_that_are_wrong(client, session, refused):
    """The status of the table; the sentence names the field, or both numbers of the limit."""
    for path, body, status, named in FIELDS:
        answer = await client.post(path.replace(SESSION, session), json=body)
        problem = await refused(answer, status, row=(path, str(body)[:80]))
        assert named in problem["detail"], (path, str(body)[:80])


PLACES = [
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
]


async def test_places_and_methods_that_are_wrong(client, refused):
    """The router's own refusals take the same form."""
    for method, path, status, slug in PLACES:
        answer = await client.request(method, f"http://localhost{path}")
        await refused(answer, status, slug, row=(method, path))
        assert status != 405 or answer.headers["allow"]


async def test_a_body_that_is_not_declared_as_json(client, refused):
    """415; a web page cannot send one without asking first. Nothing is ever unpacked."""
    plain = b'{"text":"a"}'
    latin = "application/json; charset=latin-1"
    for declared in ("", "text/plain", "application/x-www-form-urlencoded", latin, "json", CANARY):
        answer = await client.post("/score", content=plain, headers={"content-type": declared})
        await refused(answer, 415, "unsupported_media_type", row=declared)
    for encoding in ("gzip", "deflate", "identity, gzip", CANARY):
        answer = await client.post("/score", content=plain, headers=JSON | {"content-encoding": encoding})
        await refused(answer, 415, "unsupported_media_type", row=encoding)
    packed = gzip.compress(b" " * 2**20, mtime=0)
    await refused(await client.post("/score", content=packed, headers=JSON), 400, "invalid_json")
    for declared in ("application/json; charset=utf-8", "Application/JSON", "application/json; a*1=x; a*=y"):
        answer = await client.post("/score", content=plain, headers={"content-type": declared})
        assert answer.status_code == 200


HEADERS = [
    ("If-Match", "W/1", 422),
    ("If-Match", '"1", "2"', 422),
    ("If-Match", f'"{CANARY}"', 422),
    ("If-Match", '"7"', 412),
    ("Idempotency-Key", "", 422),
    ("Idempotency-Key", "two words", 422),
    ("Idempotency-Key", "x" * 201, 422),
]


async def test_headers_that_are_wrong(client, session, refused):
    """Named like fields."""
    for name, value, status in HEADERS:
        answer = await client.post(f"/sessions/{session}/append", json={"text": "a"}, headers={name: value})
        problem = await refused(answer, status, row=(name, value))
        assert status != 422 or name.lower() in problem["detail"]


async def test_a_name_of_a_field_is_repeated_only_if_it_is_one(client, refused):
    """A misspelt field is named; anything else that stands in its place is not."""
    answer = await client.post("/score", json={"text": "a", f"<{CANARY}>": 1, "tpo": 2})
    problem = await refused(answer, 422)
    assert sorted(fault["field"] for fault in problem["errors"]) == ["(unnamed)", "tpo"]


async def test_no_name_within_metadata_is_repeated(client, refused):
    """They are the caller's own."""
    problem = await refused(await client.post("/sessions", json={"metadata": {CANARY: {}}}), 422)
    assert {fault["field"] for fault in problem["errors"]} == {"metadata"}


GOOD = {"model": "tiny", "prompt": "a"}
NAME = "must have the form [A-Za-z0-9_-]{1,64}"
SENTENCES = [
    ("/v1/completions", {}, "model: is missing"),
    ("/v1/completions", GOOD | {"model": None}, "model: must be a text; null was given"),
    ("/v1/completions", GOOD | {"n": 17}, "n: must be at most 16; 17 was given"),
    ("/v1/completions", GOOD | {"n": "2"}, "n: must be a whole number; a text was given"),
    ("/v1/completions", GOOD | {"n": 1.5}, "n: must be a whole number; 1.5 was given"),
    ("/v1/completions", GOOD | {"echo": 1}, "echo: must be true or false; 1 was given"),
    ("/v1/completions", GOOD | {"top_p": True}, "top_p: must be a number; true was given"),
    ("/v1/completions", GOOD | {"n": 10**30}, "n: must be at most 16; a whole number was given"),
    ("/v1/completions", GOOD | {"stop": 7}, "stop: must be a list; 7 was given"),
    ("/v1/completions", GOOD | {"stop": ["a", ""]}, "stop[1]: must not be empty"),
    ("/v1/completions", GOOD | {"stop": ["a"] * 17}, "stop: must have at most 16 entries; 17 were given"),
    ("/generate", {"stop": "a" * 257}, "stop[0]: must have at most 256 characters; 257 were given"),
    ("/score", {"text": "a", "adaptation": []}, "adaptation: must be an object; a list was given"),
    ("/score", {"txt": "a"}, "txt: there is no such field; text may be meant"),
    ("/score", {"items": [{"tokns": 1}]}, "items[0].tokns: there is no such field; tokens may be meant"),
    ("/score", {"unit": CANARY}, "unit: must be 'nats', 'bits' or 'log10'; another text was given"),
    ("/sessions", {"adapt": CANARY}, "adapt: must be true, false, or one of weights, memory, both"),
    ("/sessions", {"name": "a b"}, f"name: {NAME}; another text was given"),
    ("/sessions", {"metadata": {"a": []}}, "metadata: a value is a text, a number, true, false or null"),
]


async def test_a_sentence_says_what_is_allowed_and_what_was_given(client):
    """In plain words, in either face: of a number it is repeated, of anything else its kind is told."""
    for path, body, said in SENTENCES:
        answer = (await client.post(path, json=body)).json()
        assert answer.get("detail", answer.get("error", {}).get("message")) == said


async def test_many_faults_are_told_briefly(client, refused):
    """A body with thousands of wrong fields does not earn thousands of sentences."""
    answer = await client.post("/score", json={f"x{number}": 1 for number in range(1_000)})
    problem = await refused(answer, 422)
    assert len(problem["errors"]) == 16
