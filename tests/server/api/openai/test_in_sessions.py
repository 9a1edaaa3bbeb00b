"""Completions in a session, told by `model@session`: read after its text, and learned from with `store`."""

import math

import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "the cat sat on the mat, and the cat saw the café. "
ECHO = {"prompt": TEXT, "max_tokens": 0, "echo": True, "logprobs": 0}


@pytest.fixture
async def session(client):
    """A session that has read a text."""
    return (await client.post("/sessions", json={"text": "The cat. "})).json()["id"]


async def test_a_prompt_is_read_where_the_session_stands(client, face, session):
    """As an append that does not learn, its first token too; nothing is kept, however it is asked for."""
    before = (await client.get(f"/sessions/{session}")).json()
    choice = await face.one(model=f"tiny@{session}", **ECHO)
    fork = (await client.post(f"/sessions/{session}/fork", json={})).json()["id"]
    answer = await client.post(f"/sessions/{fork}/append", json={"text": TEXT, "learn": False})
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(answer.json()["logprobs"])
    assert (choice["first_token"], choice["text"]) == ("session", TEXT)
    assert choice["logprobs"]["text_offset"][:2] == [0, 1]
    body = {"context": TEXT[:8], "continuation": TEXT[8:], "model": "x"}
    found = (await client.post(f"/v1/engines/tiny@{session}/logprob", json=body)).json()
    assert found["logprob"] == pytest.approx(math.fsum(choice["logprobs"]["token_logprobs"][8:]))
    assert found["input_tokens"] == len(TEXT.encode())
    assert (await client.get(f"/sessions/{session}")).json() == before


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_stored_is_learned_as_an_append_is(client, face, session, stream):
    """To the same numbers; the continuation is that of the session afterwards, and is not kept."""
    fork = (await client.post(f"/sessions/{session}/fork", json={})).json()["id"]
    answer = (await client.post(f"/sessions/{fork}/append", json={"text": TEXT})).json()
    body = {"model": f"tiny@{session}", "prompt": TEXT, "store": True, "seed": 3, "max_tokens": 5}
    body |= {"echo": True, "logprobs": 1}
    if stream:
        choices = [one for chunk in await face.chunks(**body) for one in chunk["choices"]]
        logprobs = [number for one in choices for number in (one["logprobs"] or {}).get("token_logprobs", ())]
        text = "".join(one["text"] for one in choices)
    else:
        choice = await face.one(**body)
        logprobs, text = choice["logprobs"]["token_logprobs"], choice["text"]
    assert logprobs[:-5] == pytest.approx(answer["logprobs"])
    body = {"max_tokens": 5, "seed": 3}
    shown = (await client.post(f"/sessions/{fork}/generate", json=body)).json()
    assert text == TEXT + shown["text"]
    infos = [(await client.get(f"/sessions/{one}")).json() for one in (session, fork)]
    assert [info["version"] for info in infos] == [2, 1]
    assert infos[0]["totals"] == infos[1]["totals"]


async def test_a_repeat_with_its_key_is_learned_once_and_one_without_is_refused(client, face, session):
    """The same numbers again, from the session as it was; what is sent again by OpenAI's clients says so."""
    body = {"model": f"tiny@{session}", "store": True, **ECHO, "prompt_logprobs": 2}
    again = {"x-stainless-retry-count": "1"}

    async def ask(**headers):
        return await client.post("/v1/completions", json=body, headers=headers)

    first = await ask(**{"idempotency-key": "k1"})
    assert first.headers["etag"] == '"2"'
    repeat = await ask(**{"idempotency-key": "k1"}, **again)
    second = await ask(**{"idempotency-key": "k2"})
    refused = await ask(**again)
    numbers = [one.json()["choices"][0]["logprobs"]["token_logprobs"] for one in (first, repeat, second)]
    assert numbers[0] == numbers[1]
    assert sum(numbers[2]) > sum(numbers[0])
    assert (refused.status_code, refused.headers["x-should-retry"]) == (400, "false")
    assert (await client.get(f"/sessions/{session}")).json()["version"] == 3


async def test_a_name_is_as_good_as_an_id_and_what_is_no_session_is_404(client, face):
    """Told, not made; nor is one of another tenant's, or what learns by itself, or a model's alone."""
    await client.post("/sessions", json={"name": "novel"})
    assert (await face.complete(model="tiny@novel", prompt="a", max_tokens=1))["model"] == "tiny@novel"
    assert (await client.get("/v1/models/tiny@novel")).json()["id"] == "tiny@novel"
    for model in ("tiny@none", "tiny@", f"tiny@{'0' * 32}", "tiny:adapt@novel", "other@novel"):
        assert (await face.ask(model=model, prompt="a")).status_code == 404
        assert (await client.get(f"/v1/models/{model}")).status_code == 404


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"model": "tiny"}, "store"),
        ({"prompt": ["a", "b"]}, "store"),
        ({"prompt": ""}, "store"),
        ({"prompt": [999]}, "prompt"),
        ({"add_special_tokens": True}, "add_special_tokens"),
        ({"stream": True, "prompt_logprobs": 1}, "stream"),
    ],
)
async def test_what_cannot_be_stored_changes_nothing(client, face, session, change, param):
    """And the field at fault is named."""
    body = {"model": f"tiny@{session}", "prompt": "a", "store": True} | change
    answer = await face.ask(**body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert (await client.get(f"/sessions/{session}")).json()["version"] == 1


async def test_prompts_have_log_probabilities_in_vllms_form(face):
    """By ids, the prompt's own first, with ranks; of the numbers of an echo, and null where nothing is."""
    body = {"prompt": TEXT, "max_tokens": 0, "echo": True, "logprobs": 1, "prompt_logprobs": 3}
    choice = await face.one(**body)
    first, *rows = choice["prompt_logprobs"]
    assert first is None
    for token, number, row in zip(
        TEXT.encode()[1:], choice["logprobs"]["token_logprobs"][1:], rows, strict=True
    ):
        own = row[str(token)]
        assert own["logprob"] == number
        assert next(iter(row)) == str(token)
        assert len(row) == (3 if own["rank"] <= 3 else 4)
        assert sorted(one["rank"] for one in row.values())[:3] == [1, 2, 3]
        assert [one["logprob"] for one in row.values() if one["rank"] < own["rank"]] == [
            one["logprob"] for one in row.values() if one["logprob"] > number
        ]
    assert all(len(best) <= 2 for best in choice["logprobs"]["top_logprobs"][1:])
    assert "prompt_logprobs" not in await face.one(prompt="a", max_tokens=1)


async def test_a_character_that_an_append_left_unfinished_is_completed(serve):
    """The echo has it whole, as what its first token completes."""
    async with serve() as client:
        session = (await client.post("/sessions", json={"tokens": [0x61, 0xC3]})).json()["id"]
        body = {"model": f"tiny@{session}", "prompt": [0xA9, 0x62], "echo": True, "logprobs": 0}
        for store in (False, True):
            answer = await client.post("/v1/completions", json=body | {"store": store, "max_tokens": 0})
            (choice,) = answer.json()["choices"]
            assert choice["text"] == "éb"
            assert choice["logprobs"]["text_offset"] == [0, 1]
