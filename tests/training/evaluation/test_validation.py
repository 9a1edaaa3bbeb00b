"""Validation passages: the beginnings of validation texts, cut at tokens."""

import pytest

from rlstm_model.vocab import ByteVocab, CharVocab, WordVocab
from rlstm_training.corpora import CorpusError
from rlstm_training.corpora.reading import load_corpus
from rlstm_training.corpora.texts import first_tokens, validation_passages

TEXT = "the sea was calm\nand cœld the ship\n"
VOCABS = [ByteVocab(), CharVocab.build(TEXT), WordVocab.build(TEXT)]


@pytest.mark.parametrize("vocab", VOCABS, ids=lambda vocab: vocab.kind)
@pytest.mark.parametrize("tokens", [1, 3, 9])
def test_the_first_tokens_of_a_text(vocab, tokens):
    """The passage has so many tokens, those that the text begins with, and the bytes that they span."""
    cut = first_tokens(vocab, TEXT.encode(), "text", tokens)
    encoded = vocab.encode(TEXT)
    assert cut.ids == encoded.ids[:tokens]
    if vocab.kind != "bytes":
        assert cut.bytes == len(TEXT[: encoded.ends[tokens - 1]].encode())


@pytest.mark.parametrize("vocab", VOCABS, ids=lambda vocab: vocab.kind)
def test_a_short_text_is_whole(vocab):
    """There are no more tokens than there are; of nothing no passage is made."""
    assert first_tokens(vocab, TEXT.encode(), "text", 1000).bytes == len(TEXT.encode())
    with pytest.raises(CorpusError, match="holds no text"):
        first_tokens(vocab, b"", "text", 5)


def test_pitfall_23_choices_are_made_on_validation_text_alone(corpora):
    """The corpora's validation splits in equal shares, without what belongs to a stream."""
    passages = validation_passages(ByteVocab(), ["one", "three"], 200)
    assert [part.name for part in passages] == ["one valid", "three valid"]
    assert bytes(passages[0].ids) == load_corpus("one", "valid")[:100]
    assert bytes(passages[1].ids) == load_corpus("three", "valid")[150:250]
