"""Tokens as strings."""

import pytest

from rlstm_model.vocab import ByteVocab, SubwordVocab, WordVocab
from rlstm_server.api.openai.completions import Names
from rlstm_server.api.openai.models import _info, encode

CORPUS = "the cat sat on the mat, the café 🙂 bytes:\\x80 bytes:\\x80 sat\n" * 4
VOCABS = [
    ByteVocab(),
    WordVocab.of_characters_in(CORPUS + "\ufffd"),
    WordVocab.build(CORPUS),
    SubwordVocab.build(CORPUS, 280),
    # "bytes:" itself, and what is no text
    SubwordVocab(((98, 121), (256, 116), (257, 101), (258, 115), (259, 58), (0xE2, 0x80))),
]


@pytest.mark.parametrize("vocab", VOCABS, ids=lambda vocab: f"{vocab.kind}-{vocab.size}")
def test_no_two_ids_have_one_string(vocab):
    """In any vocabulary, whatever its words are; and none is empty."""
    names = [Names(vocab).of(token) for token in range(vocab.size)]
    assert len(set(names)) == vocab.size
    assert all(names)


@pytest.mark.parametrize("vocab", VOCABS, ids=lambda vocab: f"{vocab.kind}-{vocab.size}")
async def test_the_strings_of_bos_and_eos_are_their_ids(vocab):
    """A client learns the id by looking for the string."""
    info = _info("m", vocab)
    for name in ("bos", "eos"):
        assert await encode(vocab, info[f"{name}_token"], "prompt") == [info[f"{name}_token_id"]]
