"""The forms that a text is read in."""

import re
from itertools import pairwise

from rlstm_training.config import Form


def in_form(raw: bytes, form: Form) -> bytes:
    """``raw`` in another form: see :class:`rlstm_training.config.Source`."""
    if form == "as_is":
        return raw
    text = raw.replace(b"\r\n", b"\n")
    return text if form == "lf" else unwrap(text)


def unwrap(text: bytes) -> bytes:
    """Join hard-wrapped lines, and let one newline end a paragraph, as novels have it.

    A line was wrapped if the next line's first word would not have fitted on it: so verse, headings and
    lists keep their lines. The width is that of the block's longest line, at least 50 bytes.
    """
    blocks = re.split(rb"\n[ \t]*\n", text)
    return b"\n".join(_unwrap_block(block) for block in blocks if block.strip()) + b"\n"


def _unwrap_block(block: bytes) -> bytes:
    lines = block.strip(b"\n").split(b"\n")
    width = max(50, *(len(line) for line in lines))
    joined = [lines[0]]
    for before, line in pairwise(lines):
        first_word = line.split(b" ", 1)[0]
        wrapped = bool(first_word) and len(before) + 1 + len(first_word) > width - 3
        if wrapped:
            joined[-1] = joined[-1].rstrip() + b" " + line
        else:
            joined.append(line)
    return b"\n".join(joined)


def from_spaced_characters(raw: bytes) -> bytes:
    """A text written as characters between spaces, with ``_`` for the space, as ``ptb.char.*.txt`` are."""
    return raw.replace(b" ", b"").replace(b"_", b" ")
