"""Streams of kept text over HTTP: each event has an id, and the request with the last one gets the rest."""

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
