import json

import pytest


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


async def test_the_same_seed_gives_the_same_text(client):
    """And a drawn seed is told, so that any text can be had again."""
    first = await generate(client, prompt="the ", max_tokens=20, seed=7)
    again = await generate(client, prompt="the ", max_tokens=20, seed=7)
    drawn = await generate(client, prompt="the ", max_tokens=20)
    repeated = await generate(client, prompt="the ", max_tokens=20, seed=drawn["seed"])
    assert first["ids"] == again["ids"]
    assert drawn["ids"] == repeated["ids"]


async def test_a_stream_says_what_the_document_says(client):
    """Same ids, same text, same log-probabilities, same usage; one end for each choice."""
    body = {"prompt": "the é", "max_tokens": 24, "n": 2, "seed": 3}
    whole = await generate(client, **body)
    found = await events(client, **body)
    for choice in whole["choices"]:
        tokens = [data for name, data in found if name == "token" and data["index"] == choice["index"]]
        assert [data["id"] for data in tokens] == choice["ids"]
        assert "".join(data["text"] for data in tokens) == choice["text"]
        assert [data["logprob"] for data in tokens] == choice["logprobs"]
    ends = [data for name, data in found if name == "end"]
    assert [end["finish_reason"] for end in ends] == ["length", "length"]
    assert sum(end["usage"]["completion_tokens"] for end in ends) == whole["usage"]["completion_tokens"]


async def test_a_stop_string_ends_the_text_and_is_no_part_of_it(client):
    """Streamed and whole alike; the reason is told."""
    whole = await generate(client, prompt="the ", max_tokens=40, seed=5)
    text = whole["text"]
    stop = text[10:13]
    cut = text[: text.index(stop)]
    stopped = await generate(client, prompt="the ", max_tokens=40, seed=5, stop=stop)
    streamed = await events(client, prompt="the ", max_tokens=40, seed=5, stop=[stop])
    assert (stopped["text"], stopped["finish_reason"]) == (cut, "stop")
    assert "".join(data["text"] for name, data in streamed if name == "token") == cut


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": 0},
        {"temperature": 1e-30},
        {"temperature": 100},
        {"top_p": 0},
        {"top_p": 1e-9},
        {"top_k": 1},
        {"top_k": 257},
        {"min_p": 1},
        {"repetition_penalty": 100},
        {"seed": 2**63 - 1},
        {"tokens": [116, 104, 101]},
    ],
)
async def test_extreme_settings_still_choose_a_token(client, body):
    """Every bound that is allowed works."""
    made = await generate(client, max_tokens=3, **body)
    assert len(made["ids"]) == 3


async def test_an_empty_prompt_is_the_beginning_of_a_text(client):
    """It reads one newline, and nothing else."""
    made = await generate(client, max_tokens=5, seed=1)
    assert len(made["ids"]) == 5
