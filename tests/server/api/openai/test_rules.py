"""The rules of the completions contract, each by its number."""

import math
import re
from dataclasses import replace

import pytest

from rlstm_model import checkpoint as checkpoints
from rlstm_model.checkpoint import load
from rlstm_model.parameters import Parameters
from rlstm_model.vocab import ByteVocab
from rlstm_server.api.openai.completions import fingerprint
from rlstm_server.schemas.text import EngineIdentity
from rlstm_server.store.memory_store import MemoryStore

pytestmark = pytest.mark.asyncio(loop_scope="module")


IDS = [5, 9, 7]
TEXT = "The café, 🙂  twice."
COLUMNS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


async def test_r01_echo_has_an_entry_for_each_token_of_prompt_and_completion(face, brute_force):
    """Four of three and one: the harness drops the last, and none that it needs."""
    choice = await face.one(prompt=IDS, echo=True, max_tokens=1, logprobs=1, temperature=0, seed=1234)
    logprobs = choice["logprobs"]
    assert [len(logprobs[name]) for name in COLUMNS] == [4, 4, 4, 4]
    assert logprobs["token_logprobs"][1:3] == pytest.approx(brute_force(IDS), abs=1e-5)


async def test_r02_the_first_entry_is_null_unless_bos_was_read(face, brute_force):
    """And the answer says which."""
    unscored = await face.one(prompt="ab", echo=True, max_tokens=0, logprobs=1)
    after_bos = await face.one(prompt="ab", echo=True, max_tokens=0, logprobs=1, add_special_tokens=True)
    assert unscored["first_token"] == "unscored"
    assert unscored["logprobs"]["token_logprobs"][0] is unscored["logprobs"]["top_logprobs"][0] is None
    assert after_bos["first_token"] == "bos"
    assert after_bos["logprobs"]["token_logprobs"] == pytest.approx(brute_force(b"ab", bos=True), abs=1e-5)


@pytest.mark.parametrize("top", [1, 3])
@pytest.mark.parametrize("model", ["tiny", "tiny:adapt"])
async def test_r03_alternatives_hold_the_chosen_and_the_best_token(face, model, top):
    """A dictionary at every place but the first, of one entry too many where the chosen is not among them."""
    body = {"model": model, "prompt": TEXT, "echo": True, "max_tokens": 3, "logprobs": top, "seed": 1}
    logprobs = (await face.one(**body))["logprobs"]
    wide = (await face.one(**{**body, "logprobs": 100}))["logprobs"]
    for token, best, best_of_all in zip(
        logprobs["tokens"][1:], logprobs["top_logprobs"][1:], wide["top_logprobs"][1:], strict=True
    ):
        assert token in best
        assert len(best) in {top, top + 1}
        assert max(best.values()) == pytest.approx(max(best_of_all.values()), abs=1e-6)


@pytest.mark.parametrize("model", ["tiny", "tiny:adapt"])
async def test_r04_the_chosen_tokens_number_is_the_same_float_in_both_places(face, model):
    """Bit by bit, so that a test of equality finds out whether it was the best."""
    body = {"model": model, "prompt": TEXT, "max_tokens": 8, "logprobs": 2, "echo": True}
    for temperature in (0, 1):
        logprobs = (await face.one(**body, temperature=temperature, seed=2))["logprobs"]
        rows = [logprobs[name][1:] for name in ("tokens", "token_logprobs", "top_logprobs")]
        for token, logprob, best in zip(*rows, strict=True):
            assert best[token].hex() == logprob.hex()
    greedy = (await face.one(**body, temperature=0))["logprobs"]
    assert [max(best.values()) for best in greedy["top_logprobs"][-8:]] == greedy["token_logprobs"][-8:]


async def test_r05_logprobs_of_0_are_those_of_the_chosen_token_and_null_is_none(face):
    """0 is a number, not "off"."""
    chosen = (await face.one(prompt="abc", max_tokens=2, logprobs=0))["logprobs"]
    assert [list(best) for best in chosen["top_logprobs"]] == [[token] for token in chosen["tokens"]]
    assert (await face.one(prompt="abc", max_tokens=2, logprobs=None))["logprobs"] is None
    assert (await face.one(prompt="abc", max_tokens=2))["logprobs"] is None


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("abc", ["abc"]),
        (["abc", "d"], ["abc", "d"]),
        ([97, 98, 99], ["abc"]),
        ([[97, 98, 99], [100], [101, 102]], ["abc", "d", "ef"]),
    ],
)
async def test_r06_prompts_come_in_four_forms_and_choices_by_prompt_and_number(face, prompt, texts):
    """`index` is prompt x n + k, and each is what its prompt alone would give."""
    body = {"max_tokens": 3, "echo": True, "seed": 5, "logprobs": 1}
    choices = (await face.complete(prompt=prompt, n=2, **body))["choices"]
    assert [choice["index"] for choice in choices] == list(range(2 * len(texts)))
    for place, text in enumerate(texts):
        alone = (await face.complete(prompt=text, n=2, **body))["choices"]
        pair = choices[2 * place : 2 * place + 2]
        assert [choice["text"] for choice in pair] == [choice["text"] for choice in alone]
        assert all(choice["text"].startswith(text) for choice in pair)


async def test_r07_ids_are_read_as_they_are_and_a_switch_puts_bos_before_texts(face):
    """Three requests, three documented results, and the usage shows bos; a text is its ids by default."""

    async def ask(**body):
        answer = await face.complete(echo=True, max_tokens=0, logprobs=0, **body)
        return answer["choices"][0]["logprobs"]["token_logprobs"], answer["usage"]["prompt_tokens"]

    ids, with_bos = await ask(prompt=[97, 98]), await ask(prompt=[10, 97, 98])
    assert await ask(prompt="ab") == ids
    assert (len(ids[0]), ids[1]) == (2, 2)
    switched = await ask(prompt="ab", add_special_tokens=True)
    assert (switched[0], switched[1]) == (pytest.approx(with_bos[0][1:], abs=1e-6), 3)
    assert with_bos[0][2] != pytest.approx(ids[0][1], abs=1e-6)
    refused = await face.ask(prompt=[97], add_special_tokens=True)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "add_special_tokens")


async def test_r08_what_is_no_prompt_never_reaches_the_model(face):
    """400, with `param`, streamed or not; and the next request works."""
    lists = [[256], [-1], [2**31], [2**70], [True], [1.5], [None], [1, "a"], []]
    nested = [[[]], [[1], []], [[1, 256]], [[True]], [[1], "a"], [["a"]], [[[1]]]]
    for prompt in (*lists, *nested, 7, None, {}, True):
        for stream in (False, True):
            answer = await face.ask(prompt=prompt, stream=stream)
            assert answer.status_code == 400, prompt
            assert answer.json()["error"]["param"] == "prompt"
    assert (await face.ask()).json()["error"]["param"] == "prompt"
    assert (await face.complete(prompt=[0], max_tokens=1))["usage"]["completion_tokens"] == 1


async def test_r09_each_token_of_random_bytes_begins_where_its_own_text_does(face):
    """After bytes that are no character, of the prompt too, an ASCII byte is at its own character."""
    body = {"prompt": [97, 0xE2, 0x82], "max_tokens": 60, "temperature": 100, "echo": True, "logprobs": 0}
    for seed in range(4):
        choice = await face.one(**body, seed=seed, return_token_ids=True)
        columns = choice["logprobs"]
        begun = [at for at, byte in enumerate(choice["token_ids"]) if byte < 0x80]
        assert len(begun) > 10
        for at in begun:
            assert choice["text"][columns["text_offset"][at]] == chr(choice["token_ids"][at])


@pytest.mark.parametrize("prompt", ["hé", TEXT, "", [*b"h", 0xF0, 0x9F], [0x80, 97, 0xC3]])
@pytest.mark.parametrize("max_tokens", [0, 12])
async def test_r09_the_text_begins_with_the_prompt_and_offsets_count_its_code_points(
    face, prompt, max_tokens
):
    """Streamed as well; a token within a character begins where that does."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "echo": True, "logprobs": 1, "seed": 4}
    whole = await face.one(**body)
    chunks = [chunk["choices"][0] for chunk in await face.chunks(**body)]
    offsets = whole["logprobs"]["text_offset"]
    given = prompt if isinstance(prompt, str) else bytes(prompt).decode(errors="replace").rstrip("\ufffd")
    assert whole["text"].startswith(given)
    assert offsets == sorted(offsets)
    assert all(offset <= len(whole["text"]) for offset in offsets)
    if prompt == "hé":
        assert offsets[:3] == [0, 1, 1]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    for name in COLUMNS:
        parts = [chunk["logprobs"][name] for chunk in chunks if chunk["logprobs"]]
        assert [value for part in parts for value in part] == whole["logprobs"][name]


async def test_r09_without_echo_offsets_go_on_after_the_prompt(face):
    """They are places in prompt and completion together, as they were with echo."""
    body = {"prompt": "abc", "max_tokens": 3, "logprobs": 1, "seed": 4}
    offsets = (await face.one(**body))["logprobs"]["text_offset"]
    assert offsets[0] == 3
    assert offsets == (await face.one(**body, echo=True))["logprobs"]["text_offset"][3:]


async def test_r10_no_two_tokens_have_one_string_and_bytes_can_be_had(face):
    """All 256 bytes differ, none is empty, and ids and bytes come beside them where asked for."""
    ids = list(range(256))
    choice = await face.one(prompt=ids, echo=True, max_tokens=0, logprobs=1, return_token_ids=True)
    tokens = choice["logprobs"]["tokens"]
    assert len(set(tokens)) == 256
    assert all(tokens)
    assert tokens[0x80] == "bytes:\\x80"
    assert choice["token_ids"] == ids
    assert choice["token_bytes"] == [[byte] for byte in ids]
    plain = await face.one(prompt="é🙂", echo=True, max_tokens=0, logprobs=0, return_token_ids=True)
    assert bytes(byte for part in plain["token_bytes"] for byte in part).decode() == "é🙂"


async def test_r11_stop_strings_end_the_text_and_are_no_part_of_it(face):
    """A string, a list of several, null, and none at all; streamed too; what the prompt says is no stop."""
    body = {"prompt": "the ", "max_tokens": 40, "seed": 5}
    text = (await face.one(**body))["text"]
    for none in (None, []):
        assert (await face.one(**body, stop=none))["text"] == text
    stop = text[10:13]
    cut = text[: text.index(stop)]
    for asked in (stop, [stop], ["\0\0", stop, "never", "not either", "nor this"]):
        choice = await face.one(**body, stop=asked)
        assert (choice["text"], choice["finish_reason"]) == (cut, "stop")
    streamed = [chunk["choices"][0] for chunk in await face.chunks(**body, stop=[stop])]
    assert "".join(chunk["text"] for chunk in streamed) == cut
    assert streamed[-1]["finish_reason"] == "stop"
    echoed = await face.one(**{**body, "max_tokens": 0}, stop="the", echo=True)
    assert echoed["text"] == "the "


async def test_r12_max_tokens_is_16_by_default_and_may_be_0_with_echo(face):
    """Scoring alone, of a batch too; without echo it would leave nothing to answer with."""
    for given in ({}, {"max_tokens": None}):
        assert (await face.complete(prompt="ab", **given))["usage"]["completion_tokens"] == 16
    scored = await face.complete(prompt=["ab", "cde"], max_tokens=0, echo=True, logprobs=1)
    assert [choice["text"] for choice in scored["choices"]] == ["ab", "cde"]
    assert [len(choice["logprobs"]["tokens"]) for choice in scored["choices"]] == [2, 3]
    assert {choice["finish_reason"] for choice in scored["choices"]} == {"length"}
    assert scored["usage"] == {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}
    refused = await face.ask(prompt="ab", max_tokens=0)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")


async def test_r13_over_a_limit_both_numbers_are_named_and_nothing_is_cut(serve):
    """One token below the limit is read whole."""
    async with serve(limits={"score_tokens": 50, "generate_tokens": 20, "score_items": 2}) as client:

        async def ask(**body):
            return await client.post("/v1/completions", json={"model": "tiny", **body})

        fits = await ask(prompt="x" * 50, max_tokens=20)
        assert fits.json()["usage"] == {"prompt_tokens": 50, "completion_tokens": 20, "total_tokens": 70}
        for body, given, limit in (
            ({"prompt": "x" * 51}, 51, 50),
            ({"prompt": ["x" * 26] * 2, "max_tokens": 1}, 52, 50),
            ({"prompt": "x", "max_tokens": 21}, 21, 20),
            ({"prompt": ["x", "y"], "n": 3, "max_tokens": 4}, 24, 20),
            ({"prompt": ["x"] * 3, "max_tokens": 1}, 3, 2),
        ):
            refused = await ask(**body)
            assert refused.status_code == 400
            assert f"{given} given, at most {limit} allowed" in refused.json()["error"]["message"]


async def test_r14_log_probabilities_are_of_the_raw_distribution(face, brute_force):
    """Natural, whatever the sampling; the answer names the mode, and a text scores what writing it told."""
    body = {"prompt": TEXT, "echo": True, "logprobs": 1, "max_tokens": 6, "seed": 3}
    count = len(TEXT.encode())
    expected = brute_force(list(TEXT.encode()))
    for sampling in ({}, {"temperature": 0.2}, {"temperature": 2}, {"top_p": 0.1}, {"top_k": 1}):
        answer = await face.complete(**body, **sampling, return_token_ids=True)
        assert answer["logprobs_mode"] == "raw"
        (choice,) = answer["choices"]
        found = choice["logprobs"]["token_logprobs"]
        assert found[1:count] == pytest.approx(expected, abs=1e-5)
        again = await face.one(prompt=choice["token_ids"], echo=True, logprobs=1, max_tokens=0)
        assert again["logprobs"]["token_logprobs"][1:] == pytest.approx(found[1:], abs=1e-4)


async def test_r14_all_next_bytes_together_have_probability_one(face):
    """The logits before a token score it: 256 continuations of one context, in one batch."""
    prompts = [[116, 104, byte] for byte in range(256)]
    answer = await face.complete(prompt=prompts, echo=True, logprobs=0, max_tokens=0)
    last = [choice["logprobs"]["token_logprobs"][-1] for choice in answer["choices"]]
    assert math.fsum(map(math.exp, last)) == pytest.approx(1, abs=1e-5)


async def test_r15_an_impossible_token_is_at_the_floor(tiny_checkpoint, tmp_path, serve):
    """A bias of minus a billion: -9999, and neither NaN nor Infinity anywhere."""
    checkpoint = load(tiny_checkpoint)
    config, arrays = checkpoint.parameters
    bias = arrays["embedding.bias"].copy()
    bias[ord("q")] = -1e9
    path = tmp_path / "tiny"
    checkpoints.save(path, Parameters(config, {**arrays, "embedding.bias": bias}), ByteVocab())
    async with serve(model=str(path)) as client:
        body = {"model": "tiny", "prompt": "aqa", "echo": True, "logprobs": 100, "top_k": 1, "max_tokens": 2}
        answer = await client.post("/v1/completions", json=body)
    assert not re.search(r"NaN|Infinity", answer.text)
    logprobs = answer.json()["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"][1] == -9999
    told = [number for best in logprobs["top_logprobs"] if best for number in best.values()]
    assert all(-9999 <= number <= 0 for number in [*logprobs["token_logprobs"][1:], *told])


async def test_r16_the_fingerprint_is_another_one_where_numbers_may_be():
    """Weights, calibration, numerics and the way of reading each have a part in it."""
    one = EngineIdentity(model="m", fingerprint="f", adaptation_fingerprint="a", numerics="n")
    others = [replace(one, **{name: "x"}) for name in ("fingerprint", "adaptation_fingerprint", "numerics")]
    made = [
        fingerprint(one, "m"),
        fingerprint(one, "m:adapt"),
        *(fingerprint(other, "m") for other in others),
    ]
    assert len(set(made)) == len(made)
    assert fingerprint(replace(one), "m") == made[0]


async def test_r17_nothing_is_kept_of_a_completion(serve):
    """Static by default, no session anywhere, the same answer again; also of the model that learns."""
    store = MemoryStore()
    async with serve(store=store) as client:
        made = (await client.post("/sessions", json={"text": "before"})).json()
        answers = []
        for _ in range(2):
            for model in ("tiny", "tiny:adapt"):
                body = {"model": model, "prompt": TEXT * 3, "echo": True, "logprobs": 1, "seed": 1}
                answers.append((await client.post("/v1/completions", json=body)).json()["choices"])
        sessions = (await client.get("/sessions")).json()["sessions"]
    assert answers[:2] == answers[2:]
    assert answers[0] != answers[1]
    assert [(session["id"], session["version"]) for session in sessions] == [(made["id"], made["version"])]


async def test_adapted_scores_come_from_earlier_chunks_of_the_same_prompt(face, client, brute_force):
    """After bos they are what /score learns inside a text; the first token is static; prompts are apart."""
    text = "so it was, and so it was again. " * 4
    scored = await client.post("/score", json={"text": text, "adapt": True})
    (item,) = scored.json()["items"]
    body = {"model": "tiny:adapt", "echo": True, "logprobs": 1, "max_tokens": 0}
    ids = [10, *text.encode()]
    first, second = (await face.complete(prompt=[ids, ids], **body))["choices"]
    found = first["logprobs"]["token_logprobs"]
    static = brute_force(ids)
    assert found[1:] == pytest.approx(item["logprobs"], abs=1e-6)
    assert found[1] == pytest.approx(static[0], abs=1e-5)
    assert sum(found[1:]) > sum(static)
    assert second["logprobs"] == first["logprobs"]
