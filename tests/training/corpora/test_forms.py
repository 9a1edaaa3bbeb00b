"""The forms that a text is read in."""

from hypothesis import given
from hypothesis import strategies as st


from rlstm_training.corpora.texts import in_form, unwrap


def test_unwrap_joins_paragraphs_and_keeps_verse():
    """Hard-wrapped prose becomes one line a paragraph; short lines, headings and verse stay."""
    prose = (
        b"CHAPTER I\n\nIt was the best of times, it was the worst of times, it was\n"
        b"the age of wisdom, it was the age of foolishness, it was the\nepoch of belief.\n\n"
        b"Tyger Tyger,\nburning bright,\n"
    )
    assert unwrap(prose) == (
        b"CHAPTER I\nIt was the best of times, it was the worst of times, it was the age of wisdom, "
        b"it was the age of foolishness, it was the epoch of belief.\nTyger Tyger,\nburning bright,\n"
    )


_lines = st.lists(st.text(alphabet="ab ,.", max_size=90).map(str.encode), max_size=12)


@given(_lines.map(b"\n".join))
def test_unwrap_changes_white_space_only(text):
    """No word is lost, made or moved."""
    assert unwrap(text).split() == text.split()


@given(_lines.map(b"\r\n".join))
def test_forms(raw):
    """``as_is`` is the text; ``lf`` has no CRLF; ``unwrapped`` starts from ``lf``."""
    assert in_form(raw, "as_is") == raw
    assert b"\r\n" not in in_form(raw, "lf")
    assert in_form(raw, "lf").replace(b"\n", b"\r\n") == raw
    assert in_form(raw, "unwrapped") == unwrap(in_form(raw, "lf"))


@given(st.text(st.sampled_from("ab <>\n.")))
def test_spaced_characters(text):
    """Characters between spaces, with _ for the space, are the text again; lines stay lines."""
    lines = [" ".join(line.replace(" ", "_")) for line in text.split("\n")]
    assert from_spaced_characters(" \n ".join(lines).encode()) == text.encode()
