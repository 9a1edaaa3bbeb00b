"""Texts as ids: in the form that a recipe asks for, of the vocabulary that it builds, or refused by name."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.config import ModelConfig
from rlstm_model.vocab import ByteVocab, SubwordVocab, WordVocab
from rlstm_training.config import Source
from rlstm_training.corpora import CorpusError, corpora_folder
from rlstm_training.corpora.reading import load_corpus
from rlstm_training.corpora.texts import (
    build_vocab,
    excerpt,
    first_tokens,
    in_form,
    on_corpus,
    passage,
    prepare,
    unwrap,
    validation_passages,
)
from rlstm_training.recipes import RECIPES

TEXT = "the sea was calm\nand cœld the ship\n"
VOCABS = [ByteVocab(), WordVocab.of_characters_in(TEXT), WordVocab.build(TEXT)]
_lines = st.lists(st.text(alphabet="ab ,.", max_size=90).map(str.encode), max_size=12)


def test_unwrap_joins_paragraphs_and_keeps_verse():
    """Hard-wrapped prose becomes one line a paragraph; short lines, headings and verse stay."""
    prose = (
        b"CHAPTER I\n\nIt was the best of times, it was the worst of times, it was\n"
        b"the age of wisdom, it was the age of foolishness, it was the\nepoch of belief.\n\n"
        b"Tyger Tyger,\nburning bright,\n"
    )
    assert unwrap(prose) == (
        b"CHAPTER I\nIt was the best of times, it was the worst of times, it was the age of wisdom, "
        b"it was the age of foolishness, it was the epoch of belief.\nTyger Tyger,\nburning bright,\n"
    )


@given(_lines.map(b"\r\n".join))
def test_forms_change_white_space_only(raw):
    """``as_is`` is the text; ``lf`` has no CRLF; ``unwrapped`` starts from ``lf`` and loses no word."""
    assert in_form(raw, "as_is") == raw
    assert in_form(raw, "lf").replace(b"\n", b"\r\n") == raw
    assert in_form(raw, "unwrapped") == unwrap(in_form(raw, "lf"))
    assert unwrap(raw).split() == raw.split()


def test_byte_texts_are_the_files(corpora, toy_recipe):
    """Every source's ids are its bytes in its form, with its rows; validation texts are named by both."""
    sources = (Source(corpus="three", rows=2), Source(corpus="three", rows=1, form="unwrapped"))
    texts, vocab = prepare(toy_recipe(sources=sources))
    train, valid = (load_corpus("three", split) for split in ("train", "valid"))
    assert (vocab, [rows for _, rows in texts.train]) == (ByteVocab(), [2, 1])
    assert [bytes(ids) for ids, _ in texts.train] == [train, in_form(train, "unwrapped")]
    told = {name: bytes(ids) for name, ids in texts.valid.items()}
    assert told == {"three/as_is": valid, "three/unwrapped": in_form(valid, "unwrapped")}


@pytest.mark.parametrize("kind", ["characters", "words", "subwords"])
def test_texts_decode_to_what_was_read(own_folder, toy_recipe, kind):
    """The vocabulary comes from the training text; that of subwords is as large as the recipe says."""
    shape = ModelConfig(vocab_size=280, hidden_size=7, num_layers=3, mogrifier_rounds=1)
    recipe = on_corpus(toy_recipe(vocab=kind, model=shape), str(own_folder))
    assert replace(recipe.model, vocab_size=280) == shape
    assert recipe.sources == (Source(corpus=str(own_folder), rows=4),)
    texts, vocab = prepare(recipe)
    raw = (own_folder / "train.txt").read_text()
    built = {"characters": WordVocab.of_characters_in, "words": WordVocab.build}
    assert vocab == (SubwordVocab.build(raw, 280) if kind == "subwords" else built[kind](raw))
    assert vocab.size == recipe.model.vocab_size
    assert vocab.decode(texts.train[0][0].tolist()).split() == raw.split()


@pytest.mark.parametrize(
    ("changes", "files", "message"),
    [
        (
            {"vocab": "characters"},
            {"valid": b"the \xe2\x98\x83"},
            "valid: character 4 is not in the vocabulary",
        ),
        ({"vocab": "words"}, {"train": b"the caf\xe9 " * 20}, r"is not UTF-8 text \(byte 7\): convert it"),
        ({}, {"train": b"12345678"}, "train: 8 tokens cannot fill a window of 8"),
        ({"vocab": "subwords", "model": ModelConfig(vocab_size=9000, hidden_size=4)}, {}, "it is too short"),
        (
            {"batching": "contiguous"},
            {"train": b"x" * 26},
            "26 tokens cannot fill a window of 8 for each of 4 rows",
        ),
        ({"jitter_lines": 3}, {"train": b"the sea was calm and cold"}, "train: has no line ends"),
    ],
)
def test_what_a_recipe_cannot_read_is_refused(own_folder, toy_recipe, changes, files, message):
    """The error names the text; what bytes can hold is never refused."""
    for split, raw in files.items():
        (own_folder / f"{split}.txt").write_bytes(raw)
    with pytest.raises(CorpusError, match=message):
        prepare(on_corpus(toy_recipe(**changes), str(own_folder)))
    if "model" not in changes and "vocab" in changes:
        prepare(on_corpus(toy_recipe(), str(own_folder)))


def test_a_vocabulary_of_another_size_is_refused(own_folder, toy_recipe):
    """The model must have a row for each token of the text."""
    recipe = toy_recipe(vocab="characters", sources=(Source(corpus=str(own_folder), rows=1),))
    with pytest.raises(CorpusError, match=r"holds \d+ tokens; the recipe's model.vocab_size is 256"):
        prepare(recipe)


def test_passages_count_bytes_tokens_and_unknowns():
    """What is needed for every measure of a text; an excerpt loses half characters at its ends."""
    vocab = build_vocab("words", {"a": b"the sea was calm\n"}, size=0)
    read = passage(vocab, "the café was\n".encode(), "menu")
    assert (read.name, len(read.ids), read.bytes, read.unknown) == ("menu", 4, 14, 1)
    assert passage(ByteVocab(), b"\xff\n", "raw").ids == [255, 10]
    with pytest.raises(CorpusError, match="blank holds no text"):
        passage(vocab, b"  ", "blank")
    cut, letters = "é sea é".encode()[1:-1], WordVocab.of_characters_in(" sea")
    assert letters.decode(excerpt(letters, cut, "x").ids) == " sea "
    assert bytes(excerpt(ByteVocab(), cut, "x").ids) == cut


@pytest.mark.parametrize("vocab", VOCABS, ids=lambda vocab: vocab.kind)
@pytest.mark.parametrize("tokens", [1, 3, 9, 1000])
def test_the_first_tokens_of_a_text(vocab, tokens):
    """Those that the text begins with, as many as there are, and the bytes that they span."""
    cut, encoded = first_tokens(vocab, TEXT.encode(), "text", tokens), vocab.encode(TEXT)
    assert cut.ids == encoded.ids[:tokens]
    if vocab.kind != "bytes":
        assert cut.bytes == len(TEXT[: encoded.ends[:tokens][-1]].encode())
    with pytest.raises(CorpusError, match="holds no text"):
        first_tokens(vocab, b"", "text", 5)


def test_pitfall_23_choices_are_made_on_validation_text_alone(corpora):
    """The corpora's validation splits in equal shares, without what belongs to a stream."""
    passages = validation_passages(ByteVocab(), ["one", "three"], 200)
    assert [part.name for part in passages] == ["one valid", "three valid"]
    assert bytes(passages[0].ids) == load_corpus("one", "valid")[:100]
    assert bytes(passages[1].ids) == load_corpus("three", "valid")[150:250]


@pytest.mark.slow
@pytest.mark.skipif(not (corpora_folder() / "wikitext-2").is_dir(), reason="no WikiText-2 in RLSTM_CORPORA")
def test_wikitext_has_its_published_counts():
    """33,278 types; 2,088,628, 217,646 and 245,569 tokens with one <eos> a line, none of them new."""
    recipe = RECIPES["words-small"]()
    texts, vocab = prepare(recipe)
    test, (train, _) = vocab.encode(load_corpus("wikitext-2", "test").decode()), texts.train[0]
    assert vocab.size == recipe.model.vocab_size == 33_278
    lengths = len(train), len(texts.valid["wikitext-2/as_is"]), len(test.ids)
    assert lengths == (2_088_628, 217_646, 245_569)
    unknown = load_corpus("wikitext-2", "train").split().count(b"<unk>")
    assert np.count_nonzero(train == vocab.unknown_id) == unknown
