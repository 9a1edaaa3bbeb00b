"""Words: what stands between white space, and newlines."""

from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.vocab import WordVocab

WORDS = WordVocab.build("the cat sat\non the mat\n <unk> the end")
LINES = st.lists(st.lists(st.sampled_from(["the", "cat", "sat", "on", "mat"])).map(" ".join)).map("\n".join)


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
