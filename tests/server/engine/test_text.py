"""A stream may be cut anywhere: tokens and spans are those of the whole."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.vocab import ByteVocab, WordVocab
from rlstm_server.engine.reading import START, Place, read_passage
from rlstm_server.errors import InvalidText

TEXTS = st.text(st.sampled_from("ab \n\té€😀"), max_size=40)
BYTES = ByteVocab()


def read_all(vocab, passages, final=True):
    """Ids and spans of the passages read one after the other, and the place at the end."""
    place, ids, spans = START, [], []
    for number, passage in enumerate(passages):
        last = number == len(passages) - 1
        piece = read_passage(vocab, passage, "", place=place, final=final and last)
        ids += piece.ids
        spans += zip(piece.starts, piece.ends, strict=True)
        place = piece.after
    return ids, spans, place


def cut(sequence, points):
    edges = [0, *sorted(min(point, len(sequence)) for point in points), len(sequence)]
    parts = [sequence[a:b] for a, b in pairwise(edges)]
    return [part for part in parts if part]


@pytest.mark.parametrize(
    "vocab",
    [BYTES, WordVocab.of_characters_in("ab \t€"), WordVocab.build("a b ab é")],
    ids=lambda vocab: vocab.kind,
)
@given(text=TEXTS, points=st.lists(st.integers(0, 40), max_size=4))
def test_text_in_pieces_equals_the_whole(vocab, text, points):
    """However a text is cut into appends, its tokens and spans are the same."""
    pieces = cut(text, points)
    if pieces:
        assert read_all(vocab, [text])[:2] == read_all(vocab, pieces)[:2]


@given(text=TEXTS, points=st.lists(st.integers(0, 160), max_size=4))
def test_byte_ids_in_pieces_span_whole_characters(text, points):
    """Ids cut inside a character have the spans that the text has, and the place comes out the same."""
    pieces = cut(tuple(text.encode()), points)
    if pieces:
        ids, spans, place = read_all(BYTES, pieces)
        whole = BYTES.encode(text)

        assert ids == whole.ids
        assert spans == list(zip(whole.starts, whole.ends, strict=True))
        assert place == Place(characters=len(text))


def test_an_unfinished_character_is_given_up_when_text_follows():
    """Text begins a new character: what was unfinished counts as one."""
    cut_short = read_passage(BYTES, (0xE2, 0x82), "")
    after = read_passage(BYTES, "a", "", place=cut_short.after)

    assert list(zip(cut_short.starts, cut_short.ends, strict=True)) == [(0, 1), (0, 1)]
    assert list(zip(after.starts, after.ends, strict=True)) == [(1, 2)]


@pytest.mark.parametrize(
    ("ids", "spans"),
    [
        ([97, 200, 98], [(0, 1), (1, 2), (2, 3)]),
        ([0xE2, 0x82, 98], [(0, 1), (0, 1), (1, 2)]),
        ([200, 195, 169, 97], [(0, 1), (1, 2), (1, 2), (2, 3)]),
        ([200, 200], [(0, 1), (1, 2)]),
        ([200, 255, 98], [(0, 1), (1, 2), (2, 3)]),
    ],
)
@pytest.mark.parametrize("cuts", [[], [1], [2]])
def test_a_character_after_one_that_is_none_has_its_own_place(ids, spans, cuts):
    """What was begun and not completed is a character by itself, U+FFFD."""
    found, text_spans, _ = read_all(BYTES, [tuple(part) for part in cut(ids, cuts)])
    assert (found, text_spans) == (ids, spans)


def test_a_word_waits_until_it_is_complete(words):
    """The word in progress waits, becomes a token when white space follows, and is flushed by `final`."""
    first = read_passage(words, "the ca", "", final=False)
    second = read_passage(words, "t sat", "", place=first.after, final=False)
    last = read_passage(words, "", "", place=second.after, final=True)

    assert [words.decode(piece.ids) for piece in (first, second, last)] == ["the", "cat", "sat"]
    assert list(zip(second.starts, second.ends, strict=True)) == [(4, 7)]
    assert (first.after.pending, last.after) == ("ca", Place(characters=11))


def test_ids_complete_the_word_in_progress(words):
    """Ids that follow pending text come after its token."""
    held = read_passage(words, "cat", "", final=False)
    joined = read_passage(words, (words.encode("sat").ids[0],), "", place=held.after)

    assert words.decode(joined.ids) == "cat sat"


def test_a_lone_surrogate_is_refused_even_where_it_would_wait(words):
    """A word in progress is checked when it arrives, not when it is complete."""
    with pytest.raises(InvalidText):
        read_passage(words, "the c\udfff", "", final=False)
