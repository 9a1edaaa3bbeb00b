"""Text that is continued over HTTP, whole and as a stream, which may be gone on with where it is kept."""

import json

import pytest

BODY = {"max_tokens": 40, "seed": 3, "commit": True, "stream": True}
KEYED = {"idempotency-key": "k"}


@pytest.fixture
async def path(client):
    """The route that continues a new session."""
    made = await client.post("/sessions", json={"text": "once upon"})
    return f"/sessions/{made.json()['id']}/generate"


def parsed(text):
    """Frames as (event, id or None, data)."""
    found = []
    for frame in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in frame.split("\n") if line and not line.startswith(":"))
        if fields:
            found.append((fields["event"], fields.get("id"), json.loads(fields["data"])))
    return found


async def post(client, path, *, headers=None, **body):
    answer = await client.post(path, json=BODY | body, headers=KEYED | (headers or {}))
    assert answer.status_code == 200, answer.text
    return parsed(answer.text)


async def test_a_stream_says_what_the_document_says(client):
    """Same ids, text, log-probabilities and usage, as the seed is; one end a choice; a drawn seed is told."""
    body = {"prompt": "the é", "max_tokens": 24, "n": 2, "seed": 3}
    whole = await client.ask(200, "POST", "/generate", body)
    answer = await client.post("/generate", json=body | {"stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    found = [(name, data) for name, _, data in parsed(answer.text)]
    for choice in whole["choices"]:
        tokens = [data for name, data in found if name == "token" and data["index"] == choice["index"]]
        assert [data["id"] for data in tokens] == choice["ids"]
        assert "".join(data["text"] for data in tokens) == choice["text"]
        assert [data["logprob"] for data in tokens] == choice["logprobs"]
    drawn = await client.ask(200, "POST", "/generate", {"prompt": "the ", "max_tokens": 20})
    again = await client.ask(
        200, "POST", "/generate", {"prompt": "the ", "max_tokens": 20, "seed": drawn["seed"]}
    )
    assert drawn["ids"] == again["ids"]
    ends = [data for name, data in found if name == "end"]
    assert [end["finish_reason"] for end in ends] == ["length", "length"]
    assert sum(end["usage"]["completion_tokens"] for end in ends) == whole["usage"]["completion_tokens"]


async def test_each_token_of_a_kept_text_has_an_id(client, path):
    """Its first part is the token's index; the end has none, nor has a text that nobody keeps."""
    found = await post(client, path)
    assert [mark.split(".")[0] for _, mark, _ in found[:-1]] == [str(index) for index in range(40)]
    assert (found[-1][0], found[-1][1]) == ("end", None)
    assert all(mark is None for _, mark, _ in await post(client, path, commit=False))


@pytest.mark.parametrize("had", [0, 15, 38, 39])
async def test_a_request_with_an_id_gets_what_comes_after_it(client, path, had):
    """The same events as the first time, and nothing is written again."""
    found = await post(client, path)
    before = (await client.get(path.removesuffix("/generate"))).json()["version"]
    rest = await post(client, path, headers={"last-event-id": found[had][1]})
    assert [event[:2] for event in rest] == [event[:2] for event in found[had + 1 :]]
    assert rest[:-1] == found[had + 1 : -1]
    assert rest[-1][2] == found[-1][2] | {"replayed": True}
    assert (await client.get(path.removesuffix("/generate"))).json()["version"] == before


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, {}),
        (KEYED, {"commit": False}),
        (KEYED, {"stream": False}),
        ({"idempotency-key": "another"}, {}),
    ],
)
async def test_an_id_without_its_text_is_refused(client, path, headers, body):
    """Without the key, without keeping, without a stream, or with another key: 422, and nothing happens."""
    mark = (await post(client, path))[3][1]
    answer = await client.post(path, json=BODY | body, headers=headers | {"last-event-id": mark})
    assert answer.status_code == 422
    assert answer.json()["field"] == "last-event-id"
    assert answer.json()["applied"] == "no"
    assert mark not in answer.text
