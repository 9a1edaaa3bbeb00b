import json


async def generate(client, path="/generate", **body):
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def events(client, path="/generate", **body):
    """Read a stream as (event, data)."""
    answer = await client.post(path, json={**body, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    frames = [frame for frame in answer.text.split("\n\n") if frame and not frame.startswith(":")]
    pairs = [frame.split("\n") for frame in frames]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in pairs]


async def test_a_stream_says_what_the_document_says(client):
    """Same ids, text, log-probabilities and usage, as the seed is; one end a choice; a drawn seed is told."""
    body = {"prompt": "the é", "max_tokens": 24, "n": 2, "seed": 3}
    whole = await generate(client, **body)
    found = await events(client, **body)
    for choice in whole["choices"]:
        tokens = [data for name, data in found if name == "token" and data["index"] == choice["index"]]
        assert [data["id"] for data in tokens] == choice["ids"]
        assert "".join(data["text"] for data in tokens) == choice["text"]
        assert [data["logprob"] for data in tokens] == choice["logprobs"]
    drawn = await generate(client, prompt="the ", max_tokens=20)
    again = await generate(client, prompt="the ", max_tokens=20, seed=drawn["seed"])
    assert drawn["ids"] == again["ids"]
    ends = [data for name, data in found if name == "end"]
    assert [end["finish_reason"] for end in ends] == ["length", "length"]
    assert sum(end["usage"]["completion_tokens"] for end in ends) == whole["usage"]["completion_tokens"]
