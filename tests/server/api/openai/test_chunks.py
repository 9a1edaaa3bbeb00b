"""Completions as streams."""

import json

import pytest

from rlstm_server.api.openai import completions as chunking
from rlstm_server.errors import Draining

pytestmark = pytest.mark.asyncio(loop_scope="module")


def texts(chunks, count):
    """Join the text of each choice."""
    joined = [""] * count
    for chunk in chunks:
        for choice in chunk["choices"]:
            joined[choice["index"]] += choice["text"]
    return joined


async def test_a_stream_says_what_the_whole_answer_says(face):
    """Several prompts, several choices, mixed: the same texts, reasons and sums."""
    body = {"prompt": ["the é", "a 🙂"], "n": 2, "max_tokens": 24, "seed": 3, "echo": True, "logprobs": 1}
    whole = await face.complete(**body)
    *chunks, last = await face.chunks(**body, stream_options={"include_usage": True})
    assert texts(chunks, 4) == [choice["text"] for choice in whole["choices"]]
    reasons = [choice for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted((choice["index"], choice["finish_reason"]) for choice in reasons) == [
        (index, "length") for index in range(4)
    ]
    order = [chunk["choices"][0]["index"] for chunk in chunks]
    assert order != sorted(order)
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert all(chunk["usage"] is None for chunk in chunks)
    assert {chunk["id"] for chunk in [*chunks, last]} == {last["id"]}
    assert last["object"] == "text_completion"


async def test_usage_comes_only_where_it_was_asked_for(face):
    """No chunk without a choice otherwise."""
    chunks = await face.chunks(prompt="ab", max_tokens=2)
    assert all(chunk["choices"] for chunk in chunks)
    assert not any("usage" in chunk for chunk in chunks)


async def test_no_chunk_has_nothing_to_say(face):
    """Within a character there is no text yet, and without log-probabilities nothing else."""
    chunks = await face.chunks(prompt="é", max_tokens=30, seed=1)
    assert all(chunk["choices"][0]["text"] or chunk["choices"][0]["finish_reason"] for chunk in chunks)


async def test_a_long_prompt_is_echoed_in_pieces(face, monkeypatch):
    """So that no chunk holds up the others; together they are the whole."""
    monkeypatch.setattr(chunking, "TOKENS", 7)
    body = {"prompt": "é" * 20, "echo": True, "max_tokens": 0, "logprobs": 1}
    whole = await face.one(**body)
    chunks = [chunk["choices"][0] for chunk in await face.chunks(**body)]
    assert len(chunks) == 7
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"] == "é" * 20
    offsets = [chunk["logprobs"]["text_offset"] for chunk in chunks[:-1]]
    assert [offset for part in offsets for offset in part] == whole["logprobs"]["text_offset"]


async def test_headers_keep_events_from_being_held_back(face):
    """By proxies and by caches."""
    answer = await face.ask(prompt="a", max_tokens=1, stream=True)
    assert answer.headers["x-accel-buffering"] == "no"
    assert "no-cache" in answer.headers["cache-control"]


@pytest.mark.parametrize("error", [Draining("going down"), RuntimeError("canary")])
async def test_what_fails_later_is_an_error_and_then_the_end(face, monkeypatch, error):
    """No `finish_reason` before it: nobody takes half a text for a whole one."""
    engine = face.client.app.state.services.engine
    complete = engine.complete

    async def breaking(request):
        async for events in complete(request):
            for event in events:
                if getattr(event, "index", 0) == 3:
                    raise error
                yield [event]

    monkeypatch.setattr(engine, "complete", breaking)
    *chunks, last = await face.chunks(prompt="ab", max_tokens=10)
    assert last["error"]["code"] == ("draining" if isinstance(error, Draining) else "internal_error")
    assert last["error"]["type"] == "server_error"
    assert "canary" not in json.dumps(last)
    assert not any(chunk["choices"][0]["finish_reason"] for chunk in chunks)
