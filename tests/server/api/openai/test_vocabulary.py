"""Models by name, their tokens, and one number for one text."""

import math

import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_models_are_listed_and_described(client):
    """Two names for one model: one learns from what it reads."""
    listed = (await client.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["tiny", "tiny:adapt"]
    for model in listed["data"]:
        assert (await client.get(f"/v1/models/{model['id']}")).json() == model
        assert model["created"] > 1_600_000_000


@pytest.mark.parametrize("text", ["", "a", "double  spaces", "é🙂\n\t", "x" * 5_000])
async def test_a_text_comes_back_from_its_ids(client, text):
    """And nothing in it is taken for anything special."""
    ids = (await client.post("/tokenize", json={"prompt": text})).json()
    assert ids == {"count": len(text.encode()), "tokens": list(text.encode())}
    again = await client.post("/detokenize", json={"tokens": ids["tokens"]})
    assert again.json() == {"prompt": text}
    special = {"prompt": text, "add_special_tokens": True, "model": "tiny"}
    assert (await client.post("/tokenize", json=special)).json()["tokens"] == [10, *text.encode()]


async def test_the_vocabulary_is_described(client):
    """With the names that clients of tokenizers use."""
    info = (await client.get("/tokenizer_info", params={"model": "tiny:adapt"})).json()
    assert info["model"] == "tiny:adapt"
    assert (info["kind"], info["vocab_size"]) == ("bytes", 256)
    assert (info["bos_token"], info["eos_token"], info["eos_token_id"]) == ("\n", "\n", 10)
    assert (await client.get("/tokenizer_info", params={"model": "x"})).status_code == 404


@pytest.mark.parametrize("model", ["tiny", "tiny:adapt"])
async def test_one_number_for_a_text_after_another(client, face, model):
    """The sum of an echoed completion's; after an empty context comes bos."""
    for context, ids in (("the cat", [*b"the cat"]), ("", [10])):
        body = {"context": context, "continuation": " sat"}
        found = (await client.post(f"/v1/engines/{model}/logprob", json=body)).json()
        prompt = [*ids, *b" sat"]
        echoed = await face.one(model=model, prompt=prompt, echo=True, max_tokens=0, logprobs=0)
        assert found["logprob"] == pytest.approx(math.fsum(echoed["logprobs"]["token_logprobs"][-4:]))
        assert (found["num_tokens"], found["input_tokens"]) == (4, len(prompt))
        assert found["token_ids"] == prompt[-4:]
        assert found["is_greedy"] is False


async def test_greedy_text_is_found_greedy(client, face):
    """What was written by always taking the best is so when it is scored."""
    text = (await face.one(prompt="the ", max_tokens=3, temperature=0, return_token_ids=True))["text"]
    body = {"context": "the ", "continuation": text}
    assert (await client.post("/v1/engines/tiny/logprob", json=body)).json()["is_greedy"] is True
    refused = await client.post("/v1/engines/tiny/logprob", json={"context": "a", "continuation": ""})
    assert refused.json()["error"]["param"] == "continuation"
