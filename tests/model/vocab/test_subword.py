"""Subwords: byte-pair encoding against a slow one, spans against characters, any cut against none."""

import random
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.vocab import InvalidToken, SubwordVocab, VocabError

_WORDS = [
    "the",
    "sea",
    "was",
    "calm",
    "and",
    "naïve",
    "café",
    "straße",
    "世界",
    "🙂🙂",
    "12",
    "1999",
    "--",
    "क्या",
]


def _text(seed, count=2000):
    draw = random.Random(seed)
    return "".join(draw.choice(_WORDS) + draw.choice([" ", " ", "  ", ", ", ".\n"]) for _ in range(count))


VOCAB = SubwordVocab.build(_text(1), 320)

ANY = st.text(st.characters(exclude_categories=["Cs"]))
NEAR = st.lists(st.sampled_from([*_WORDS, " ", "  ", "\n", "x" * 70, " " * 70, "\x1c", "\u2028"])).map(
    "".join
)
TEXTS = ANY | NEAR


def _slowly(vocab, piece):
    """Ids of a piece: always the earliest merge, at its leftmost place, until there is none."""
    ids = list(piece.encode())
    while pairs := [pair for pair in pairwise(ids) if pair in vocab.merges]:
        pair = min(pairs, key=vocab.merges.index)
        at = next(i for i in range(len(ids)) if tuple(ids[i : i + 2]) == pair)
        joined = vocab.token_bytes(pair[0]) + vocab.token_bytes(pair[1])
        new = next(token for token in range(vocab.size) if vocab.token_bytes(token) == joined)
        ids[at : at + 2] = [new]
    return ids


@given(TEXTS)
def test_tokens_joined_are_the_text(text):
    """The bytes of the tokens are the UTF-8 of any text, and decoding gives it back: nothing is unknown."""
    encoded = VOCAB.encode(text)
    assert b"".join(map(VOCAB.token_bytes, encoded.ids)) == text.encode()
    assert VOCAB.decode(encoded.ids) == text
    assert encoded.unknown == 0


@given(TEXTS)
def test_spans_are_the_characters_of_the_tokens_bytes(text):
    """From the character of a token's first byte to that of its last, as a loop over all bytes finds them."""
    encoded = VOCAB.encode(text)
    characters = [index for index, character in enumerate(text) for _ in character.encode()]
    place = 0
    for token, start, end in zip(encoded.ids, encoded.starts, encoded.ends, strict=True):
        size = len(VOCAB.token_bytes(token))
        assert (start, end) == (characters[place], characters[place + size - 1] + 1)
        place += size


@given(st.text(st.sampled_from("theasclmn"), min_size=1, max_size=20))
def test_merging_against_a_slow_one(word):
    """A word of letters is one piece: the library merges as the definition says."""
    assert VOCAB.encode(word).ids == _slowly(VOCAB, word)
    assert VOCAB.encode(" " + word).ids == _slowly(VOCAB, " " + word)


@given(st.lists(TEXTS, max_size=6))
def test_a_stream_may_be_cut_anywhere(parts):
    """What is ready, part by part, gives the tokens of the whole; less than 66 characters ever wait."""
    ids, pending = [], ""
    for part in parts:
        ready, pending = VOCAB.split_pending(pending + part, final=False)
        assert len(pending) <= 65
        assert not pending.endswith("\n")
        ids += VOCAB.encode(ready).ids
    ready, pending = VOCAB.split_pending(pending, final=True)
    assert pending == ""
    assert ids + VOCAB.encode(ready).ids == VOCAB.encode("".join(parts)).ids


@given(st.lists(st.integers(0, VOCAB.size - 1)))
def test_decoding_piece_by_piece_never_cuts_a_character(ids):
    """Any ids: the pieces joined are the whole text, and no piece but the last ends inside a character."""
    decoder = VOCAB.decoder()
    pieces = [decoder.feed(token) for token in ids]
    assert "".join(pieces) + decoder.flush() == VOCAB.decode(ids)
    whole = b"".join(map(VOCAB.token_bytes, ids))
    assert VOCAB.decode(ids) == whole.decode("utf-8", "replace")


@given(st.text(st.sampled_from("naïvecafé世界🙂क्या ")))
def test_no_half_character_is_ever_shown(text):
    """A character that two tokens share comes out with the second, never as U+FFFD."""
    decoder = VOCAB.decoder()
    shown = ""
    for token in VOCAB.encode(text).ids:
        shown += decoder.feed(token)
        assert text.startswith(shown)
    assert shown == text


def test_a_line_ends_with_a_token_of_its_own():
    """Newlines are never merged: byte 10 is bos and eos, and white space stays on its side of a word."""
    ids = VOCAB.encode("the sea \n\n  the").ids
    assert ids.count(VOCAB.eos_id) == 2
    assert VOCAB.bos_id == VOCAB.eos_id == 10
    assert [VOCAB.token_bytes(token) for token in ids] == [b"the", b" sea", b" ", b"\n", b"\n", b" ", b" the"]


def test_training_is_repeatable_and_shortens_the_text():
    """The same text and size give the same merges, of two tokens for each new one, and far fewer tokens."""
    text = _text(1)
    assert SubwordVocab.build(text, 320) == VOCAB
    assert VOCAB.size == 320
    assert SubwordVocab.build(text, 300).merges == VOCAB.merges[:44]
    assert len(VOCAB.encode(text).ids) < 0.4 * len(text.encode())


def test_training_takes_the_commonest_pair_first():
    """The first merge joins the two bytes that are neighbours most often within pieces."""
    text = "ab ab ab cd cd"
    pairs = [pair for word in text.split() for pair in pairwise(word)]
    first = SubwordVocab.build(text, 257).merges[0]
    assert first == tuple(ord(c) for c in max(set(pairs), key=pairs.count))


def test_letters_digits_and_the_rest_are_kept_apart():
    """Marks belong to their letters."""
    text = "naïve1999-- " * 50 + "क्या1 " * 50
    vocab = SubwordVocab.build(text, 276)
    joined = [vocab.token_bytes(token).decode("utf-8", "ignore") for token in range(256, vocab.size)]
    assert "क्या" in {piece.strip() for piece in joined}
    assert not [piece for piece in joined if re.search(r"[^\W\d_]\d|\d[^\W\d_]|\d-|\w--", piece)]


def test_two_merges_may_give_the_same_token():
    """The later one has no id of its own, and is applied all the same."""
    ab, bc = (97, 98), (98, 99)
    vocab = SubwordVocab((ab, bc, (256, 99), (97, 257), (258, 258)))
    assert vocab.size == 260
    assert vocab.token_bytes(258) == b"abc"
    assert vocab.encode("abcabc").ids == [259]
    with pytest.raises(InvalidToken):
        vocab.token_bytes(260)


def test_sizes_that_cannot_be_had_are_refused():
    """Fewer tokens than bytes, and more than the text gives."""
    with pytest.raises(VocabError, match="so 255 tokens are too few"):
        SubwordVocab.build("the sea", 255)
    with pytest.raises(VocabError, match="gives 261 tokens, not 400; it is too short"):
        SubwordVocab.build("the sea the sea", 400)
