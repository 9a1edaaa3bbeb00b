"""Several models in one server: requests name one, answers say which it was, and `/info` lists them."""

import numpy as np
import pytest

from rlstm_model import checkpoint as checkpoints
from rlstm_model.config import ModelConfig
from rlstm_model.parameters import Parameters, shapes
from rlstm_model.vocab import WordVocab

VOCAB = WordVocab.build("the cat sat on the mat\n")


@pytest.fixture(scope="module")
def worded(tmp_path_factory):
    """A checkpoint over words, without a calibration."""
    config, generator = (
        ModelConfig(vocab_size=VOCAB.size, hidden_size=8, num_layers=2),
        np.random.default_rng(2),
    )
    arrays = {name: generator.normal(size=shape, scale=0.3) for name, shape in shapes(config).items()}
    path = tmp_path_factory.mktemp("checkpoints") / "worded"
    checkpoints.save(path, Parameters(config, arrays), VOCAB)
    return path


@pytest.fixture
async def both(serve, tiny_checkpoint, worded):
    """A client of a server of both; the second is served by another name."""
    async with serve(model=f"{tiny_checkpoint}, words={worded}") as client:
        yield client


async def test_info_lists_the_models_and_describes_the_first(both):
    """As it did when there was one."""
    info = (await both.get("/info")).json()

    assert [model["model"] for model in info["models"]] == ["tiny", "words"]
    assert [model["vocabulary"]["kind"] for model in info["models"]] == ["bytes", "words"]
    assert {name: info[name] for name in info["models"][0]} == info["models"][0]
    assert [model["adaptation"] is None for model in info["models"]] == [False, True]
    assert info["models"][1]["card"]


async def test_a_score_is_of_the_model_that_is_named(both):
    """The first where none is; ids, words and identity are that one's."""
    default = (await both.post("/score", json={"text": "the cat"})).json()
    named = (await both.post("/score", json={"text": "the cat", "model": "tiny"})).json()
    other = (await both.post("/score", json={"text": "the cat", "model": "words", "words": True})).json()

    assert named == default
    assert (default["model"], other["model"]) == ("tiny", "words")
    assert default["fingerprint"] != other["fingerprint"]
    assert other["items"][0]["ids"] == VOCAB.encode("the cat").ids
    assert len(other["items"][0]["words"]) == 2


async def test_a_session_says_whose_it_is(both):
    """When it is made, described and listed, and when it writes."""
    made = (await both.post("/sessions", json={"model": "tiny", "text": "the cat"})).json()
    path = f"/sessions/{made['id']}"
    described = (await both.get(path)).json()
    listed = (await both.get("/sessions")).json()["sessions"]
    written = (await both.post(f"{path}/generate", json={"max_tokens": 2, "seed": 1})).json()
    info = (await both.get("/info")).json()

    for told in (made, described, *listed, written):
        assert (told["model"], told["fingerprint"]) == ("tiny", info["fingerprint"])
        assert told["adaptation_fingerprint"] == info["adaptation_fingerprint"]
    assert made["numerics"] == written["numerics"] == info["numerics"]


async def test_the_compatible_face_knows_both(both):
    """Each by its name; with `:adapt` those that learn."""
    models = (await both.get("/v1/models")).json()["data"]
    assert [model["id"] for model in models] == ["tiny", "tiny:adapt", "words"]
    for name, kind in (("tiny", "bytes"), ("words", "words")):
        told = (await both.get("/tokenizer_info", params={"model": name})).json()
        assert (told["model"], told["kind"]) == (name, kind)


async def test_each_has_a_series_of_its_build(both):
    """So that a dashboard shows what runs."""
    text = (await both.get("/metrics")).text
    names = [line for line in text.splitlines() if line.startswith("rlstm_build_info{")]

    assert len(names) == 2
    assert 'model="tiny"' in names[0]
    assert 'model="words"' in names[1]
