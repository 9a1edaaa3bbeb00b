"""What every vocabulary promises; bytes, characters and words."""

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
LOST = "\N{REPLACEMENT CHARACTER}"


def fed(vocab, ids):
    """What a decoder gives for each of some ids, and at the end."""
    decoder = vocab.decoder()
    return [*(decoder.feed(token) for token in ids), decoder.flush()]


@given(TEXT)
def test_bytes_are_the_utf_8_of_a_text(text):
    """Any text comes back whole; all bytes of a character share its span; they may be cut anywhere."""
    encoded = BYTES.encode(text)
    places = [index for index, character in enumerate(text) for _ in character.encode()]
    assert bytes(encoded.ids) == text.encode()
    assert BYTES.decode(encoded.ids) == text
    assert list(encoded.starts) == places
    assert list(encoded.ends) == [start + 1 for start in places]
    assert encoded.unknown == 0
    assert BYTES.split_pending(text, final=False) == (text, "")


@given(st.lists(st.integers(0, 255)))
def test_decoding_bytes_piece_by_piece_is_decoding_them_at_once(ids):
    """Invalid UTF-8 included: the same replacement characters in the same places."""
    assert "".join(fed(BYTES, ids)) == BYTES.decode(ids) == bytes(ids).decode("utf-8", "replace")


def test_a_decoder_never_cuts_inside_a_character():
    """The bytes of one character come out together, with its last; a cut-off one as U+FFFD at the flush."""
    smile = "🙂".encode()
    assert fed(BYTES, smile) == ["", "", "", "🙂", ""]
    assert fed(BYTES, smile[:2]) == ["", "", LOST]
    assert fed(BYTES, [0xFF, 0x41]) == [LOST, "A", ""]


@given(TEXT)
def test_characters_outside_the_vocabulary_are_unknown(text):
    """One token a code point; what the vocabulary lacks is counted and decodes to U+FFFD."""
    encoded = CHARS.encode(text)
    known = "".join(c if c in CHARS.words else LOST for c in text)
    assert list(encoded.starts) == list(range(len(text)))
    assert list(encoded.ends) == [start + 1 for start in encoded.starts]
    assert encoded.unknown == sum(c not in CHARS.words for c in text)
    assert CHARS.decode(encoded.ids) == known == "".join(fed(CHARS, encoded.ids))
    assert CHARS.split_pending(text, final=False) == (text, "")


def test_the_order_of_ids():
    """Characters by code point, unknown last; words by frequency, then code point, specials first."""
    characters = WordVocab.of_characters_in("ba")
    assert characters.words == ("\n", "a", "b", "<unk>")
    assert characters.encode("\nabz").ids == [0, 1, 2, 3]
    assert (characters.size, characters.bos_id, characters.eos_id, characters.unknown_id) == (4, 0, 0, 3)
    assert WORDS.words == ("<unk>", "<eos>", "the", "cat", "end", "mat", "on", "sat")
    assert (WORDS.bos_id, WORDS.eos_id, WORDS.unknown_id) == (1, 1, 0)


@given(st.lists(st.lists(st.sampled_from(["the", "cat", "sat", "mat"])).map(" ".join)).map("\n".join))
def test_words_round_trip(text):
    """Known words between single spaces and newlines come back as they were."""
    assert WORDS.decode(WORDS.encode(text).ids) == text


@given(st.text(st.sampled_from("the cat\n\t\u2003x ")), st.text(st.sampled_from("the \n"), max_size=12))
def test_words_stand_between_white_space(text, more):
    """Spans cut out the words and newlines, in order; the last word waits, wherever a text is cut."""
    encoded = WORDS.encode(text)
    pieces = [text[start:end] for start, end in zip(encoded.starts, encoded.ends, strict=True)]
    assert pieces == [word for line in text.split("\n") for word in (*line.split(), "\n")][:-1]
    assert encoded.ids == [WORDS.encode(piece).ids[0] for piece in pieces]
    assert encoded.unknown == encoded.ids.count(WORDS.unknown_id)
    ready, pending = WORDS.split_pending(text, final=False)
    assert ready + pending == text
    assert not ready or ready[-1].isspace()
    rest, nothing = WORDS.split_pending(pending + more, final=True)
    assert nothing == ""
    assert WORDS.encode(ready).ids + WORDS.encode(rest).ids == WORDS.encode(text + more).ids


def test_only_a_newline_is_eos():
    """A user who types <eos> gets an unknown word; <unk> is <unk>."""
    assert WORDS.encode("<eos> <unk> \n").ids == [WORDS.unknown_id, WORDS.unknown_id, WORDS.eos_id]
    assert WORDS.token_bytes(WORDS.eos_id) == b"\n"
    assert "<eos>" not in WordVocab.build("a <eos> b").words[2:]


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
