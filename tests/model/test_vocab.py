"""Vocabularies: text to ids with spans and back, whole and piece by piece."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.vocab import (
    ByteVocab,
    CharVocab,
    InvalidText,
    InvalidToken,
    VocabError,
    WordVocab,
    from_json,
)

BYTES = ByteVocab()
CHARS = CharVocab.build("hello wörld 🙂")
WORDS = WordVocab.build("the cat sat\non the mat\n <unk> the end")
ALL = [BYTES, CHARS, WORDS]

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LINES = st.lists(st.lists(st.sampled_from(["the", "cat", "sat", "on", "mat"])).map(" ".join)).map("\n".join)


def _fed(vocab, ids):
    decoder = vocab.decoder()
    return [*(decoder.feed(token) for token in ids), decoder.flush()]


@given(TEXT)
def test_bytes_round_trip(text):
    """Any text is its UTF-8 and comes back whole."""
    encoded = BYTES.encode(text)
    assert bytes(encoded.ids) == text.encode()
    assert BYTES.decode(encoded.ids) == text
    assert encoded.unknown == 0


@given(TEXT)
def test_all_bytes_of_a_character_share_its_span(text):
    """Spans count code points, one character each, as a loop over the characters finds them."""
    encoded = BYTES.encode(text)
    expected = [index for index, character in enumerate(text) for _ in character.encode()]
    assert encoded.starts == expected
    assert encoded.ends == [start + 1 for start in expected]


@given(st.lists(st.integers(0, 255)))
def test_decoding_bytes_piece_by_piece_is_decoding_them_at_once(ids):
    """Invalid UTF-8 included: the same replacement characters in the same places."""
    assert "".join(_fed(BYTES, ids)) == BYTES.decode(ids) == bytes(ids).decode("utf-8", "replace")


def test_a_decoder_never_cuts_inside_a_character():
    """The bytes of one character come out together, with its last; a cut-off one as U+FFFD at the flush."""
    smile = "🙂".encode()
    assert _fed(BYTES, smile) == ["", "", "", "🙂", ""]
    assert _fed(BYTES, smile[:2]) == ["", "", "\N{REPLACEMENT CHARACTER}"]
    assert _fed(BYTES, [0xFF, 0x41]) == ["\N{REPLACEMENT CHARACTER}", "A", ""]


def test_a_megabyte_is_encoded_in_a_blink():
    """No Python loop over bytes: 1 MB takes well under a second even on a busy core."""
    text = "naïve café\n" * 80_000
    started = time.process_time()
    assert len(BYTES.encode(text).ids) > 1_000_000
    assert time.process_time() - started < 1.0


@given(TEXT)
def test_characters_outside_the_vocabulary_are_unknown(text):
    """One token a code point; what the vocabulary lacks is counted and decodes to U+FFFD."""
    encoded = CHARS.encode(text)
    known = "".join(c if c in CHARS.characters else "\N{REPLACEMENT CHARACTER}" for c in text)
    assert encoded.starts == list(range(len(text)))
    assert encoded.ends == [start + 1 for start in encoded.starts]
    assert encoded.unknown == sum(c not in CHARS.characters for c in text)
    assert CHARS.decode(encoded.ids) == known == "".join(_fed(CHARS, encoded.ids))


def test_character_ids_are_in_code_point_order_with_the_unknown_last():
    """The newline is always there: it is bos and eos."""
    vocab = CharVocab.build("ba")
    assert vocab.characters == "\nab"
    assert vocab.encode("\nabz").ids == [0, 1, 2, 3]
    assert (vocab.size, vocab.bos_id, vocab.eos_id, vocab.unknown_id) == (4, 0, 0, 3)


def test_words_are_ordered_by_frequency_after_the_special_ones():
    """Ties go by code point; <unk> in the text is the special one, not another."""
    assert WORDS.words == ("<unk>", "<eos>", "the", "cat", "end", "mat", "on", "sat")
    assert (WORDS.bos_id, WORDS.eos_id, WORDS.unknown_id) == (1, 1, 0)


@given(LINES)
def test_words_round_trip(text):
    """Known words between single spaces and newlines come back as they were."""
    assert WORDS.decode(WORDS.encode(text).ids) == text


@given(st.text(st.sampled_from("the cat\n\t\u2003x ")))
def test_word_spans_cover_the_words_and_nothing_else(text):
    """The spans cut out exactly the words and newlines, in order; between them is only white space."""
    encoded = WORDS.encode(text)
    pieces = [text[start:end] for start, end in zip(encoded.starts, encoded.ends, strict=True)]
    expected = [word for line in text.split("\n") for word in (*line.split(), "\n")][:-1]
    assert pieces == expected
    assert encoded.ids == [WORDS.encode(piece).ids[0] for piece in pieces]
    assert encoded.unknown == encoded.ids.count(WORDS.unknown_id)


def test_only_a_newline_is_eos():
    """A user who types <eos> gets an unknown word; <unk> is <unk>."""
    assert WORDS.encode("<eos> <unk> \n").ids == [WORDS.unknown_id, WORDS.unknown_id, WORDS.eos_id]
    assert WORDS.token_bytes(WORDS.eos_id) == b"\n"
    assert "<eos>" not in WordVocab.build("a <eos> b").words[2:]


@given(st.text(st.sampled_from("ab \n"), max_size=12), st.text(st.sampled_from("ab \n"), max_size=12))
def test_holding_back_the_last_word_makes_words_independent_of_the_cut(first, second):
    """Encoding what is ready, then the rest with more text, gives the tokens of the whole."""
    ready, pending = WORDS.split_pending(first, final=False)
    assert ready + pending == first
    assert not ready or ready[-1].isspace()
    rest, nothing = WORDS.split_pending(pending + second, final=True)
    assert nothing == ""
    assert WORDS.encode(ready).ids + WORDS.encode(rest).ids == WORDS.encode(first + second).ids


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


@pytest.mark.parametrize("vocab", ALL, ids=lambda vocab: vocab.kind)
def test_a_lone_surrogate_is_no_text(vocab):
    """The error says where it stands and does not repeat the text."""
    with pytest.raises(InvalidText, match="character 3") as caught:
        vocab.encode("cat\udc80s")
    assert caught.value.index == 3
    assert "cat" not in str(caught.value)
    with pytest.raises(InvalidText):
        type(vocab).build("\ud800") if vocab is not BYTES else vocab.encode("\ud800")


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


@pytest.mark.parametrize("vocab", ALL, ids=lambda vocab: vocab.kind)
def test_json_round_trip(vocab):
    """Through real JSON text, a vocabulary comes back equal."""
    assert from_json(json.loads(json.dumps(vocab.to_json()))) == vocab


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "JSON object"),
        ({"kind": "bytes"}, "format_version"),
        ({"format_version": 2, "kind": "bytes"}, "format_version"),
        ({"format_version": 1, "kind": "subwords"}, "kind"),
        ({"format_version": 1, "kind": ["bytes"]}, "kind"),
        ({"format_version": 1, "kind": "bytes", "size": 256}, "size"),
        ({"format_version": 1, "kind": "characters"}, "characters"),
        (
            {"format_version": 1, "kind": "characters", "characters": ["a", "\n"]},
            "characters must be a string",
        ),
        ({"format_version": 1, "kind": "characters", "characters": "aa\n"}, "distinct"),
        ({"format_version": 1, "kind": "characters", "characters": "ab"}, "newline"),
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
    ],
)
def test_what_is_no_vocabulary_is_refused(data, message):
    """The error names the field."""
    with pytest.raises(VocabError, match=message):
        from_json(data)
