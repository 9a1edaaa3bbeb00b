"""Every refusal under /v1 has one form, OpenAI's, and the status that its clients know what to do with."""

import httpx
import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")


CANARY = "canary-7f3a"
GOOD = {"model": "tiny", "prompt": "a", "max_tokens": 1}
JSON = {"content-type": "application/json"}


@pytest.fixture
def refused():
    """Check a refusal from all sides; gives what its envelope holds."""

    def check(answer, status, *, code=None, again=False):
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-request-id"]
        assert answer.headers["x-should-retry"] == ("true" if again else "false")
        assert ("retry-after" in answer.headers) == again
        assert CANARY not in answer.text
        assert set(answer.json()) == {"error"}
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert code is None or error["code"] == code
        return error

    return check


FIELDS = [
    ({"model": None}, "model"),
    ({"model": ""}, "model"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"n": 10**9}, "n"),
    ({"temperature": -0.1}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": 10**9}, "logprobs"),
    ({"echo": 1}, "echo"),
    ({"stream_options": {"include_usage": 1}}, "stream_options"),
    ({"seed": 2**63}, "seed"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["x"] * 100_000}, "stop"),
    ({"stop": "x" * 10_000}, "stop"),
    ({"best_of": 2, "n": 1}, "best_of: choosing among more texts than n is not built"),
    ({"best_of": 1, "n": 2}, "best_of: has to be n, 2, or more: the best n of them are answered"),
    ({"suffix": CANARY}, "suffix"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"frequency_penalty": -1}, "frequency_penalty"),
    ({"logit_bias": {"50": -100}}, "logit_bias"),
]


async def test_a_wrong_field_is_400_and_named(client, refused):
    """Of whatever kind, streamed or not: nothing is sent before it is known to be right."""
    for change, said in FIELDS:
        for stream in (False, True):
            body = {**GOOD, "stream": stream, **change}
            error = refused(await client.post("/v1/completions", json=body), 400)
            assert error["type"] == "invalid_request_error"
            assert error["param"] == said.split(":")[0], change
            assert error["message"].startswith(said), change
    assert (await client.post("/v1/completions", json=GOOD)).status_code == 200


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_json"),
        (b'{"model":"tiny","prompt":"a","temperature":NaN}', "invalid_json"),
        (b'{"model":"tiny","prompt":"a","prompt":"b"}', "invalid_json"),
        (rb'{"model":"tiny","prompt":"\ud83d"}', "invalid_text"),
        (b"[]", "invalid_field"),
        (b"", "invalid_field"),
    ],
)
async def test_what_is_no_json_object_is_400(client, refused, body, code):
    """The framework's own refusals have the same form."""
    answer = await client.post("/v1/completions", content=body, headers=JSON)
    assert refused(answer, 400)["code"] == code


async def test_places_methods_and_types_of_content(client, refused):
    """404 for any path under /v1, 405 with the right methods, 415, and 404 for a model that is not there."""
    for path in ("/v1", "/v1/", "/v1/nowhere", "/v1/completions/", "/v1/chat/completions"):
        refused(await client.post(f"http://localhost{path}", json=GOOD), 404, code="not_found")
    wrong = await client.get("/v1/completions")
    assert refused(wrong, 405, code="method_not_allowed")["type"] == "invalid_request_error"
    assert wrong.headers["allow"] == "POST"
    refused(await client.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"}), 415)
    for answer in (
        await client.post("/v1/completions", json={**GOOD, "model": CANARY}),
        await client.get(f"/v1/models/{CANARY}"),
        await client.post(f"/v1/engines/{CANARY}/logprob", json={"continuation": "a"}),
    ):
        error = refused(answer, 404, code="model_not_found")
        assert error["param"] == "model"
        assert "tiny, tiny:adapt" in error["message"]
    assert (await client.get("/version2")).headers["content-type"] == "application/problem+json"


async def test_a_body_that_is_too_large_is_413_and_a_prompt_400(serve, refused):
    """Bytes on the wire are one thing, tokens another."""
    async with serve(limits={"body_bytes": 2_000, "score_numbers": 100}) as client:
        refused(await client.post("/v1/completions", json={**GOOD, "prompt": "x" * 3_000}), 413)
        body = {**GOOD, "prompt": "x" * 100, "echo": True, "logprobs": 5}
        assert (
            "606 given, at most 100"
            in refused(await client.post("/v1/completions", json=body), 400)["message"]
        )


async def test_keys_and_scopes(serve, refused, key_records):
    """401, 403 by what is asked for, 429 with a time to wait; the same key may do what its scopes say."""
    scored = {**GOOD, "echo": True, "logprobs": 1, "max_tokens": 0}
    async with serve(api_keys_file=key_records) as client:

        async def ask(key, body=GOOD, path="/v1/completions"):
            return await client.post(path, json=body, headers={"authorization": f"Bearer {key}"})

        for key in ("", "wrong"):
            error = refused(await ask(key), 401, code="unauthorized")
            assert error["type"] == "authentication_error"
        assert (await ask("writer")).status_code == (await ask("scorer", scored)).status_code == 200
        for key, body in (("scorer", GOOD), ("writer", scored), ("writer", {**scored, "max_tokens": 1})):
            assert refused(await ask(key, body), 403, code="forbidden")["type"] == "permission_error"
        refused(await ask("keeper"), 403)
        refused(await ask("writer", {"continuation": "a"}, "/v1/engines/tiny/logprob"), 403)
        for key, status in (("writer", 200), ("scorer", 200), ("keeper", 403)):
            assert (await ask(key, {"prompt": "a"}, "/tokenize")).status_code == status
        assert (await ask("slow", scored)).status_code == 200
        error = refused(await ask("slow", scored), 429, again=True)
        assert error["type"] == "rate_limit_error"


async def test_without_keys_an_empty_one_is_none(client):
    """Clients without a key send `Bearer ` and nothing after it."""
    answer = await client.post("/v1/completions", json=GOOD, headers={"authorization": "Bearer "})
    assert answer.status_code == 200


async def test_a_server_that_drains_is_503_and_may_be_asked_again(serve, refused):
    """Whoever waits a second finds another one behind the same address."""
    async with serve() as client:
        await client.app.state.services.engine.close()
        for stream in (False, True):
            answer = await client.post("/v1/completions", json={**GOOD, "stream": stream})
            assert refused(answer, 503, code="draining", again=True)["type"] == "server_error"


async def test_an_unexpected_fault_is_500_and_says_nothing(client, refused, monkeypatch):
    """The handler of last resort speaks the same language, and asks for no second fault."""

    async def broken(request):
        raise RuntimeError(CANARY)
        yield

    monkeypatch.setattr(client.app.state.services.engine, "complete", broken)
    transport = httpx.ASGITransport(client.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as unbroken:
        for stream in (False, True):
            answer = await unbroken.post("/v1/completions", json={**GOOD, "stream": stream})
            assert refused(answer, 500, code="internal_error")["type"] == "server_error"


async def test_unknown_fields_are_ignored_and_told_of(client):
    """By name where it is one, inside options too, not more than a header may hold; streamed as well."""
    body = {**GOOD, "user": CANARY, "tempreature": 1, f"<{CANARY}>": 1}
    for stream in (False, True):
        options = {"stream": stream, "stream_options": {"include_obfuscation": False}}
        answer = await client.post("/v1/completions", json=body | options)
        assert answer.status_code == 200
        named = "user, tempreature, (unnamed), stream_options.include_obfuscation"
        assert answer.headers["warning"] == f'299 - "ignored fields: {named}"'
    many = GOOD | {f"field{number}": 1 for number in range(1_000)}
    assert len((await client.post("/v1/completions", json=many)).headers["warning"]) < 400
    assert "warning" not in (await client.post("/v1/completions", json=GOOD)).headers


async def test_fields_that_change_nothing_are_taken(client):
    """Defaults spelt out, as some clients send them."""
    body = GOOD | {"best_of": 1, "suffix": "", "presence_penalty": 0, "frequency_penalty": 0.0}
    body |= {"logit_bias": {}, "n": None, "temperature": None, "top_p": None, "stream": None, "seed": None}
    answer = await client.post("/v1/completions", json=body | {"stop": None, "echo": None, "logprobs": None})
    assert answer.status_code == 200
    assert "warning" not in answer.headers
