from dataclasses import replace

import numpy as np
import pytest

from rlstm_model.config import ModelConfig
from rlstm_model.vocab import ByteVocab, CharVocab, SubwordVocab, WordVocab
from rlstm_training.config import Source
from rlstm_training.corpora import CorpusError, corpora_folder
from rlstm_training.corpora.reading import load_corpus
from rlstm_training.corpora.texts import build_vocab, excerpt, in_form, on_corpus, passage, prepare
from rlstm_training.recipes import RECIPES


def test_byte_texts_are_the_files(corpora, toy_recipe):
    """Every source's ids are its bytes in its form, with its rows; validation texts are named by both."""
    sources = (Source(corpus="three", rows=2), Source(corpus="three", rows=1, form="unwrapped"))
    texts, vocab = prepare(toy_recipe(sources=sources))
    raw = load_corpus("three", "train")
    assert vocab == ByteVocab()
    assert [rows for _, rows in texts.train] == [2, 1]
    assert bytes(texts.train[0][0]) == raw
    assert bytes(texts.train[1][0]) == in_form(raw, "unwrapped")
    assert {name: bytes(ids) for name, ids in texts.valid.items()} == {
        "three/as_is": load_corpus("three", "valid"),
        "three/unwrapped": in_form(load_corpus("three", "valid"), "unwrapped"),
    }


@pytest.mark.parametrize("kind", ["characters", "words"])
def test_texts_decode_to_what_was_read(own_folder, toy_recipe, kind):
    """Characters and words: the vocabulary comes from the training text and its ids give the text back."""
    recipe = on_corpus(toy_recipe(vocab=kind), str(own_folder))
    texts, vocab = prepare(recipe)
    raw = (own_folder / "train.txt").read_text()
    ids, rows = texts.train[0]
    assert rows == recipe.rows
    assert vocab == (CharVocab if kind == "characters" else WordVocab).build(raw)
    assert vocab.size == recipe.model.vocab_size
    assert vocab.decode(ids.tolist()).split() == raw.split()


def test_a_recipe_moves_to_another_corpus(own_folder, toy_recipe):
    """Everything stays but the sources and the size of the vocabulary."""
    recipe = toy_recipe()
    moved = on_corpus(recipe, str(own_folder))
    assert moved.sources == (Source(corpus=str(own_folder), rows=4),)
    assert moved.model == recipe.model
    assert moved.name == recipe.name
    assert on_corpus(toy_recipe(vocab="words"), str(own_folder)).model.vocab_size < 40


def test_a_vocabulary_of_another_size_is_refused(own_folder, toy_recipe):
    """The model must have a row for each token of the text."""
    recipe = toy_recipe(vocab="characters", sources=(Source(corpus=str(own_folder), rows=1),))
    with pytest.raises(CorpusError, match=r"holds \d+ tokens; the recipe's model.vocab_size is 256"):
        prepare(recipe)


def test_text_outside_the_vocabulary_is_refused(own_folder, toy_recipe):
    """A validation character that the training text lacks is named by its place."""
    (own_folder / "valid.txt").write_text("the \N{SNOWMAN}")
    with pytest.raises(CorpusError, match="valid: character 4 is not in the vocabulary"):
        prepare(on_corpus(toy_recipe(vocab="characters"), str(own_folder)))


def test_text_that_is_no_utf8_is_refused(own_folder, toy_recipe):
    """Characters and words need UTF-8; the place is named. Bytes need nothing."""
    (own_folder / "train.txt").write_bytes(b"the caf\xe9 " * 20)
    with pytest.raises(CorpusError, match="is not UTF-8 at byte 7"):
        on_corpus(toy_recipe(vocab="words"), str(own_folder))
    prepare(on_corpus(toy_recipe(), str(own_folder)))


def test_a_text_shorter_than_a_window_is_refused(own_folder, toy_recipe):
    """A recipe that cannot fit its batch names the text."""
    (own_folder / "train.txt").write_bytes(b"12345678")
    with pytest.raises(CorpusError, match="train: 8 tokens cannot fill a window of 8"):
        prepare(on_corpus(toy_recipe(), str(own_folder)))


def test_subwords_are_as_many_as_the_recipe_says(own_folder, toy_recipe):
    """They are trained on the training text and give it back; another corpus does not change their number."""
    shape = ModelConfig(vocab_size=280, hidden_size=4)
    recipe = on_corpus(toy_recipe(vocab="subwords", model=shape), str(own_folder))
    texts, vocab = prepare(recipe)
    raw = (own_folder / "train.txt").read_bytes()
    assert recipe.model.vocab_size == vocab.size == 280
    assert vocab == SubwordVocab.build(raw.decode(), 280)
    assert vocab.decode(texts.train[0][0].tolist()) == raw.decode()
    assert len(texts.train[0][0]) < len(raw)


def test_too_many_subwords_are_refused(own_folder, toy_recipe):
    """The error names the text that is too short for them."""
    shape = ModelConfig(vocab_size=9000, hidden_size=4)
    with pytest.raises(CorpusError, match=r"own/as_is: .* not 9000; it is too short"):
        prepare(on_corpus(toy_recipe(vocab="subwords", model=shape), str(own_folder)))


def test_contiguous_rows_need_a_window_each(own_folder, toy_recipe):
    """A recipe that cannot fit its batch says how many rows there are."""
    (own_folder / "train.txt").write_bytes(b"the sea was calm and cold\n")
    recipe = on_corpus(toy_recipe(), str(own_folder))
    prepare(recipe)
    with pytest.raises(CorpusError, match="26 tokens cannot fill a window of 8 for each of 4 rows"):
        prepare(replace(recipe, batching="contiguous"))


def test_jitter_needs_lines(own_folder, toy_recipe):
    """The line end of the vocabulary goes with the texts; a text without one is an error that names it."""
    recipe = on_corpus(toy_recipe(jitter_lines=3), str(own_folder))
    assert prepare(recipe)[0].eos_id == ByteVocab().eos_id
    (own_folder / "train.txt").write_bytes(b"the sea was calm and cold")
    with pytest.raises(CorpusError, match="own/as_is train: has no line ends"):
        prepare(recipe)


def test_passages_count_bytes_tokens_and_unknowns():
    """What is needed for every measure of a text."""
    vocab = build_vocab("words", {"a": b"the sea was calm\n"}, size=0)
    read = passage(vocab, "the café was\n".encode(), "menu")
    assert (read.name, len(read.ids), read.bytes, read.unknown) == ("menu", 4, 14, 1)
    assert passage(ByteVocab(), b"\xff\n", "raw").ids == [255, 10]
    with pytest.raises(CorpusError, match="blank holds no text"):
        passage(vocab, b"  ", "blank")


def test_excerpts_may_be_cut_inside_a_character():
    """The half characters at the ends go; with bytes nothing goes."""
    cut = "é sea é".encode()[1:-1]
    vocab = CharVocab.build(" sea")
    assert vocab.decode(excerpt(vocab, cut, "x").ids) == " sea "
    assert bytes(excerpt(ByteVocab(), cut, "x").ids) == cut


@pytest.mark.slow
@pytest.mark.skipif(not (corpora_folder() / "wikitext-2").is_dir(), reason="no WikiText-2 in RLSTM_CORPORA")
def test_wikitext_has_its_published_counts():
    """33,278 types; 2,088,628, 217,646 and 245,569 tokens with one <eos> a line, none of them new."""
    recipe = RECIPES["words-small"]()
    texts, vocab = prepare(recipe)
    test = vocab.encode(load_corpus("wikitext-2", "test").decode())
    assert isinstance(vocab, WordVocab)
    assert vocab.size == recipe.model.vocab_size == 33_278
    lengths = len(texts.train[0][0]), len(texts.valid["wikitext-2/as_is"]), len(test.ids)
    assert lengths == (2_088_628, 217_646, 245_569)
    assert np.count_nonzero(texts.train[0][0] == vocab.unknown_id) == load_corpus(
        "wikitext-2", "train"
    ).split().count(b"<unk>")


def test_the_model_of_a_recipe_may_have_any_shape(own_folder, toy_recipe):
    """Moving to another corpus keeps all of the model's shape but the vocabulary."""
    shape = ModelConfig(vocab_size=9, hidden_size=7, num_layers=3, mogrifier_rounds=1, tie_embeddings=True)
    moved = on_corpus(toy_recipe(vocab="characters", model=shape), str(own_folder))
    assert (moved.model.hidden_size, moved.model.num_layers, moved.model.tie_embeddings) == (7, 3, True)
    assert moved.model.vocab_size != 9
