"""Bytes: ids to text and back, whole and piece by piece."""

from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.vocab import ByteVocab

BYTES = ByteVocab()
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


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
    assert list(encoded.starts) == expected
    assert list(encoded.ends) == [start + 1 for start in expected]


@given(st.lists(st.integers(0, 255)))
def test_decoding_bytes_piece_by_piece_is_decoding_them_at_once(fed, ids):
    """Invalid UTF-8 included: the same replacement characters in the same places."""
    assert "".join(fed(BYTES, ids)) == BYTES.decode(ids) == bytes(ids).decode("utf-8", "replace")


def test_a_decoder_never_cuts_inside_a_character(fed):
    """The bytes of one character come out together, with its last; a cut-off one as U+FFFD at the flush."""
    smile = "🙂".encode()
    assert fed(BYTES, smile) == ["", "", "", "🙂", ""]
    assert fed(BYTES, smile[:2]) == ["", "", "\N{REPLACEMENT CHARACTER}"]
    assert fed(BYTES, [0xFF, 0x41]) == ["\N{REPLACEMENT CHARACTER}", "A", ""]
