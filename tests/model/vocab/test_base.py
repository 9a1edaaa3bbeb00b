"""What every vocabulary promises."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.vocab import ByteVocab, InvalidText, InvalidToken, SubwordVocab, WordVocab
from rlstm_model.vocab.base import space_ids

BYTES = ByteVocab()
CHARS = WordVocab.of_characters_in("hello wörld 🙂")
WORDS = WordVocab.build("the cat sat\non the mat\n <unk> the end")
SUBWORDS = SubwordVocab(((104, 101), (32, 116), (257, 256)))
ALL = [BYTES, CHARS, WORDS, SUBWORDS]
SPACES = b"\t\n\v\f\r\x1c\x1d\x1e\x1f"
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize("vocab", [BYTES, CHARS], ids=lambda vocab: vocab.kind)
def test_bytes_and_characters_hold_nothing_back(vocab):
    """They may be cut anywhere."""
    assert vocab.split_pending("the ca", final=False) == ("the ca", "")


@pytest.mark.parametrize("vocab", ALL, ids=lambda vocab: vocab.kind)
def test_token_bytes_of_all_tokens(vocab):
    """Each is the UTF-8 that the token stands for; joined for bytes and characters, it is the text."""
    ids = vocab.encode("hello the cat\n").ids
    joined = b"".join(map(vocab.token_bytes, ids))
    assert joined.replace(b" ", b"") == vocab.decode(ids).encode().replace(b" ", b"")
    assert all(vocab.token_bytes(token) for token in range(vocab.size))


@pytest.mark.parametrize(("vocab", "begin"), [(BYTES, SPACES + b" "), (SUBWORDS, SPACES + b"   ")])
def test_tokens_that_begin_with_white_space(vocab, begin):
    """By the first byte, also where more follow."""
    assert bytes(vocab.token_bytes(token)[0] for token in space_ids(vocab).tolist()) == begin


@pytest.mark.parametrize("vocab", ALL, ids=lambda vocab: vocab.kind)
def test_a_lone_surrogate_is_no_text(vocab):
    """The error says where it stands and does not repeat the text."""
    with pytest.raises(InvalidText, match="character 3") as caught:
        vocab.encode("cat\udc80s")
    assert caught.value.index == 3
    assert "cat" not in str(caught.value)
    with pytest.raises(InvalidText, match="character 3"):
        vocab.encode_ids("cat\udc80s")


@pytest.mark.parametrize(
    "build", [WordVocab.of_characters_in, WordVocab.build, lambda text: SubwordVocab.build(text, 256)]
)
def test_no_vocabulary_is_built_from_a_lone_surrogate(build):
    """The error says where it stands."""
    with pytest.raises(InvalidText, match="character 0"):
        build("\ud800")


@pytest.mark.parametrize("vocab", ALL, ids=lambda vocab: vocab.kind)
@given(text=TEXT)
def test_ids_without_spans_are_the_same_ids(vocab, text):
    """The quick form for long texts against the full one."""
    ids = vocab.encode_ids(text)
    assert ids.dtype in (np.uint8, np.int64)
    assert ids.tolist() == vocab.encode(text).ids


@pytest.mark.parametrize("vocab", ALL, ids=lambda vocab: vocab.kind)
@pytest.mark.parametrize("bad", [-1, 10**30, True, 1.0, None])
def test_what_is_no_id_is_refused_by_position(vocab, bad):
    """Negative, too large, a bool, a float, nothing: in validate, decode and the decoder alike."""
    with pytest.raises(InvalidToken, match="token 1") as caught:
        vocab.validate([0, bad])
    assert caught.value.index == 1
    assert caught.value.id is bad
    with pytest.raises(InvalidToken):
        vocab.decode([0, bad])
    with pytest.raises(InvalidToken):
        vocab.decoder().feed(bad)
    vocab.validate([0, vocab.size - 1])
    with pytest.raises(InvalidToken):
        vocab.validate([vocab.size])
