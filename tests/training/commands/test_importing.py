"""``rlstm import``: what the original module says, and what is refused without anything being written."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file, save_model
from tests.model.vocab.elsewhere import pieces_of, sentencepiece_model, tokenizer_of
from tests.training.imports.original import Original, distributions, numbers

from rlstm_model import local

TEXT = "w0 w3 nothing w1 w3\nw2 W2 w2"
# Names, widths of the embedding and of the layers, tied or not.
SHAPES = [
    ("word_language_model", (6, 6, 6), False),
    ("word_language_model", (6, 6, 6), True),
    ("word_language_model", (5, 9), False),
    ("awd", (5, 9, 8, 5), True),
    ("awd", (5, 9, 9, 7), False),
    ("espnet", (4, 7, 7, 7, 7), False),
    ("icefall", (8, 8, 8, 8), True),
]


@pytest.fixture
def words(tmp_path):
    """A list with a byte-order mark, which is no part of its first word."""
    path = tmp_path / "words.txt"
    path.write_text("\n".join(["<unk>", "<eos>", *numbers(10)]) + "\n", encoding="utf-8-sig")
    return path


@pytest.fixture
def imported(rlstm, tmp_path):
    """Import a file; the model that comes of it."""

    def call(file, *words):
        out = ("--out", tmp_path / "model", "--json")
        if (tmp_path / "model").exists():
            assert "is there already; --force replaces it\n" in rlstm("import", file, *words, *out).stderr
            out = (*out, "--force")
        done = rlstm("import", file, *words, *out)
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["model"] == str(tmp_path / "model")
        return local.load(tmp_path / "model")

    return call


@pytest.mark.parametrize("saved", ["safetensors", "torch"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_log_probability_is_the_originals(imported, words, tmp_path, shape, saved):
    """To 1e-5, of every token at every place, after <eos> and a zero state."""
    family, widths, tied = shape
    original, file = Original(12, widths, tied=tied), tmp_path / "file"
    state = original.named(family)
    if family == "awd":  # what weight drop drew last stands beside what it is of
        state |= {name.removesuffix("_raw"): 0 * w for name, w in state.items() if name.endswith("_raw")}
    if saved == "torch":
        torch.save({"model": state, "epoch": 3}, file)
    else:
        save_file({name: weight.clone() for name, weight in state.items()}, file)
    model = imported(file, "--words", words)
    ids = model.vocab.encode(TEXT).ids
    np.testing.assert_allclose(distributions(model, TEXT), original.log_probs([1, *ids[:-1]]), atol=1e-5)
    config = model.checkpoint.parameters.config
    assert config.tie_embeddings == tied
    assert config.num_parameters == sum(weight.numel() for weight in original.parameters()) - 4 * sum(
        widths[1:]
    )


@pytest.mark.parametrize("kind", ["characters", "bytes", "marks", "suffixes", "sentencepiece"])
def test_other_vocabularies(imported, tmp_path, kind):
    """Characters, a tokenizer.json, a sentencepiece model: a text follows what begins one."""
    tokens, file = tmp_path / "tokens", tmp_path / "model.safetensors"
    if kind == "characters":
        tokens.write_text("<unk>\n<eos>\n<space>\nt\nh\ne\nc\na\n")
        option, size, begins = "--characters", 8, 1
    else:
        vocab = pieces_of(kind)
        tokens.write_bytes(sentencepiece_model() if kind == "sentencepiece" else tokenizer_of(kind).encode())
        option, size, begins = "--tokenizer", vocab.size, vocab.bos_id
    original = Original(size, (6, 6))
    save_file(original.named("word_language_model"), file)
    model = imported(file, option, tokens)
    ids = model.vocab.encode("the cat, 12 chats\n").ids
    assert model.vocab.bos_id == begins
    found = distributions(model, "the cat, 12 chats\n")
    np.testing.assert_allclose(found, original.log_probs([begins, *ids[:-1]]), atol=1e-5)


def test_what_the_model_wants_is_named(imported, tmp_path):
    """Other special words, lower case, another order of gates, no biases, a tied matrix not stored."""
    original, file = Original(5, (6, 6), tied=True), tmp_path / "model.safetensors"
    with torch.no_grad():
        for name, weight in original.named_parameters():
            if "bias" in name:
                weight.zero_()
    state = original.named("word_language_model")
    kept = {name: w for name, w in state.items() if "bias" not in name and name != "decoder.weight"}
    for name in ("rnn.weight_ih_l0", "rnn.weight_hh_l0"):
        i, f, g, o = kept[name].chunk(4)
        kept[name] = torch.cat((i, g, f, o))
    save_file(kept, file)
    (tmp_path / "ids.txt").write_text("a 1\nb 0\nEND 2\nWHAT 3\nGO 4\n")
    named = ["--words", tmp_path / "ids.txt", "--eos", "END", "--unk", "WHAT", "--bos", "GO", "--lower"]
    model = imported(file, *named, "--gates", "igfo", "--tied", "--no-bias", "--half")
    ids = model.vocab.encode("A b c\n").ids
    assert ids == [1, 0, 3, 2]
    np.testing.assert_allclose(distributions(model, "A b c\n"), original.log_probs([4, *ids[:-1]]), atol=1e-3)
    save_model(original.float(), tmp_path / "shared.safetensors")  # names the tensor that it leaves out
    assert imported(
        tmp_path / "shared.safetensors", "--words", tmp_path / "ids.txt", "--bos", "GO"
    ).checkpoint.parameters.config.tie_embeddings


def without(name):
    return lambda state: state.pop(name)


def with_value(name, value):
    return lambda state: state.__setitem__(name, value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("rnn.weight_hh_l1"), "tensor weight_hh_l1 is missing"),
        (without("decoder.weight"), "tensor decoder.weight is missing; --tied"),
        (without("decoder.bias"), "tensor decoder.bias is missing; --no-bias"),
        (without("encoder.weight"), "tensor encoder.weight is missing"),
        (with_value("norm.weight", torch.zeros(2)), "tensor norm.weight belongs to no"),
        (with_value("rnn.weight_ih_l0_reverse", torch.zeros(2)), "tensor rnn.weight_ih_l0_reverse belongs"),
        (with_value("embedding.weight", torch.zeros(2, 2)), "tensor encoder.weight is the same part"),
        (with_value("rnn.weight_ih_l1", torch.zeros(24, 5)), r"weight_ih_l1 has shape [24, 5], not [24, 6]"),
        (with_value("rnn.weight_hh_l0", torch.zeros(18, 6)), "[18, 6]: 3 gates, not an LSTM's 4"),
        (with_value("rnn.bias_hh_l0", torch.zeros(6)), "tensor rnn.bias_hh_l0 has shape [6], not [24]"),
        (
            with_value("decoder.weight", torch.zeros(11, 6)),
            "tensor decoder.weight has shape [11, 6], not [12, 6]",
        ),
        (with_value("decoder.bias", torch.full((12,), torch.nan)), "tensor decoder.bias holds a value"),
        (with_value("decoder.bias", torch.zeros(12, dtype=torch.int64)), "tensor decoder.bias holds a value"),
    ],
)
def test_a_wrong_tensor_is_named(rlstm, words, tmp_path, change, says):
    state = Original(12, (6, 6, 6)).named("word_language_model")
    change(state)
    save_file(state, tmp_path / "model.safetensors")
    refused(rlstm, tmp_path, ["--words", words], says)


@pytest.mark.parametrize(
    ("listed", "options", "says"),
    [
        (["<unk>", "<eos>", *numbers(9)], [], "words.txt: has 11 tokens, the state dict's embedding 12"),
        (["<unk>", "<eos>", *numbers(9), "w3"], [], "'w3' is token 5 and token 11"),
        (["<unk>", "<eos>", *numbers(9), ""], [], "token 11 is '', which is no word"),
        (["<unk>", "<eos>", *numbers(9), "a b"], [], "token 11 is 'a b', which is no word"),
        (["a", "b", *numbers(10)], [], "none of its tokens is one of <eos>,"),
        (["<unk>", "<eos>", *numbers(10)], ["--bos", "<s>"], "has no token '<s>'"),
        ([f"{word} {2 * i}" for i, word in enumerate(numbers(12))], [], "its 12 ids are not 0 to 11"),
        (["<unk>", "<eos>", *numbers(10)], ["--gates", "ifgx"], "gates: must be ifgo in some order"),
    ],
)
def test_a_wrong_list_is_named(rlstm, words, tmp_path, listed, options, says):
    save_file(Original(12, (6, 6)).named("word_language_model"), tmp_path / "model.safetensors")
    words.write_text("\n".join(listed) + "\n")
    refused(rlstm, tmp_path, ["--words", words, *options], says)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is no safetensors file and no state dict"),
        (b"\x80\x04\x95\x02", "is a whole pickled module"),
        (b"PK\x03\x04 cut short", "is damaged"),
        (None, "model.safetensors: No such file or directory"),
    ],
)
def test_what_is_no_state_dict_is_refused(rlstm, words, tmp_path, data, says):
    if data is not None:
        (tmp_path / "model.safetensors").write_bytes(data)
    refused(rlstm, tmp_path, ["--words", words], says)


@pytest.mark.parametrize("given", [[], ["--words", "a", "--characters", "b"]])
def test_one_vocabulary_is_named(rlstm, tmp_path, given):
    refused(rlstm, tmp_path, given, "name one of --words, --characters, --tokenizer")


def refused(rlstm, folder, options, says):
    """One line, exit code 2, nothing written."""
    done = rlstm("import", folder / "model.safetensors", *options, "--out", folder / "model")
    assert done.exit_code == 2
    assert says in done.output, done.output
    assert not (folder / "model").exists()
