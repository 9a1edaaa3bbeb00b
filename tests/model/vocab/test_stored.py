"""Descriptions of vocabularies, read back or refused."""

import json
import sys

import pytest
from tests.model import drawn
from tests.model.vocab.elsewhere import LISTS, PIECES, pieces_of

from rlstm_model import checkpoint as checkpoints
from rlstm_model import local
from rlstm_model.vocab import ByteVocab, SubwordVocab, VocabError, WordVocab, from_json

ALL = [
    ByteVocab(),
    WordVocab.of_characters_in("hello wörld 🙂"),
    WordVocab.build("the cat sat\non the mat\n <unk> the end"),
    SubwordVocab(((104, 101), (32, 116), (257, 256))),
]


@pytest.mark.parametrize("vocab", [*ALL, *LISTS.values(), *PIECES], ids=str)
def test_json_round_trip(vocab):
    """Through real JSON text, a vocabulary comes back equal."""
    vocab = pieces_of(vocab) if vocab in PIECES else vocab
    assert from_json(json.loads(json.dumps(vocab.to_json()))) == vocab


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "JSON object"),
        ({"kind": "bytes"}, "format_version"),
        ({"format_version": 2, "kind": "bytes"}, "format_version"),
        ({"format_version": 1, "kind": "syllables"}, "kind"),
        ({"format_version": 1, "kind": ["bytes"]}, "kind"),
        ({"format_version": 1, "kind": "bytes", "size": 256}, "size"),
        ({"format_version": 1, "kind": "characters"}, "characters"),
        (
            {"format_version": 1, "kind": "characters", "characters": ["a", "\n"]},
            "characters must be a string",
        ),
        ({"format_version": 1, "kind": "characters", "characters": "aa\n"}, "distinct"),
        ({"format_version": 1, "kind": "characters", "characters": "ab"}, r"must hold '\\n'"),
        ({"format_version": 1, "kind": "characters", "characters": "a\n\ud800"}, "surrogate"),
        ({"format_version": 1, "kind": "words", "words": "abc"}, "words must be a list"),
        ({"format_version": 1, "kind": "words", "words": ["<unk>", "<eos>", 3]}, r"words\[2\]"),
        ({"format_version": 1, "kind": "words", "words": ["<unk>", "<eos>", "a b"]}, r"words\[2\]"),
        ({"format_version": 1, "kind": "words", "words": ["<unk>", "<eos>", "\n"]}, r"words\[2\]"),
        ({"format_version": 1, "kind": "words", "words": ["<unk>", "<eos>", ""]}, r"words\[2\]"),
        ({"format_version": 1, "kind": "words", "words": ["<unk>", "<eos>", "\udc80"]}, r"words\[2\]"),
        ({"format_version": 1, "kind": "words", "words": ["<unk>", "<eos>", "a", "a"]}, "distinct"),
        ({"format_version": 1, "kind": "words", "words": ["<unk>", "a"]}, "<eos>"),
        ({"format_version": 1, "kind": "words", "words": ["<eos>", "a"]}, "<unk>"),
        ({"format_version": 1, "kind": "subwords"}, "merges"),
        ({"format_version": 1, "kind": "subwords", "merges": {}}, "merges must be a list"),
        ({"format_version": 1, "kind": "subwords", "merges": [[1, 2], 3]}, r"merges\[1\] must be a pair"),
        ({"format_version": 1, "kind": "subwords", "merges": [[1, 2, 3]]}, r"merges\[0\] must be a pair"),
        ({"format_version": 1, "kind": "subwords", "merges": [[1, True]]}, r"merges\[0\] must be a pair"),
        ({"format_version": 1, "kind": "subwords", "merges": [[1, 256]]}, r"merges\[0\] must join tokens"),
        ({"format_version": 1, "kind": "subwords", "merges": [[1, -1]]}, r"merges\[0\] must join tokens"),
        ({"format_version": 1, "kind": "subwords", "merges": [[10, 65]]}, r"merges\[0\] .* newline"),
        ({"format_version": 1, "kind": "subwords", "merges": [[65, 66], [65, 66]]}, "distinct"),
        (
            {
                "format_version": 1,
                "kind": "subwords",
                "merges": [[65, 65], *([n, n] for n in range(256, 999))],
            },
            r"merges\[8\] .* more than 260 bytes",
        ),
    ],
)
def test_what_is_no_vocabulary_is_refused(data, message):
    """The error names the field."""
    with pytest.raises(VocabError, match=message):
        from_json(data)


def test_a_checkpoint_of_subwords(tmp_path, monkeypatch):
    """It comes back with its vocabulary; without the library the error names the file and what to install."""
    vocab = SubwordVocab(((104, 101), (32, 116), (257, 256)))
    checkpoints.save(tmp_path / "subwords", drawn.parameters_of(vocab_size=vocab.size), vocab)
    loaded = checkpoints.load(tmp_path / "subwords")
    assert loaded.vocab == vocab
    assert local.LocalModel(loaded).score("the the").encoded.ids == [116, 256, 258]
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(checkpoints.CheckpointError, match=r"vocab.json: .* mogrifier-rlstm\[training\]"):
        checkpoints.load(tmp_path / "subwords")
