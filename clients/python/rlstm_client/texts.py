"""Text, made of bytes: the one place for every command that reads text, and for corpora of one's own.

The encoding is told, or a byte-order mark tells it, which is no part of the text, or it is UTF-8. Where items
are lines CRLF and CR end one as LF does; a text that goes on keeps its line ends.
"""

import codecs
import io
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final, Literal

Invalid = Literal["refuse", "replace"]
"""What is done about bytes that are no text."""

LINE_END: Final = re.compile(r"\r\n?|\n")

LONGEST_LINE: Final = 1_000_000
"""Characters of a line; a longer one is given in parts, so that none has to be kept that never ends."""

_READ_BYTES: Final = 65_536
MARK: Final = "\ufeff"
_MARKS: Final = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_FEWEST_BYTES: Final = 8  # by which UTF-16 without a mark is known


class TextError(ValueError):
    """Bytes that are no text in their encoding, whose place it names; or there is no such encoding."""


def decoded(
    chunks: Iterable[bytes], name: str, encoding: str | None = None, invalid: Invalid = "refuse"
) -> Iterator[str]:
    """Yield bytes as text, cut where they are cut but never inside a character. ``name`` is for messages.

    Raises:
        TextError: they are no text; all that stands before was yielded.
    """
    coming, head = iter(chunks), b""
    while may_begin_a_mark(head) and (chunk := next(coming, b"")):
        head += chunk
    codec = encoding_of(head, name, encoding)
    decoder, offset, begun = codecs.getincrementaldecoder(codec)(errors_of(invalid)), 0, False
    for chunk, last in chain(((chunk, False) for chunk in chain((head,), coming)), ((b"", True),)):
        held = len(decoder.getstate()[0])
        fault = None
        try:
            text = decoder.decode(chunk, last)
        except UnicodeDecodeError as error:
            fault = refusal(name, codec, offset - held + error.start)
            decoder.reset()
            text = decoder.decode(error.object[: error.start])
        offset += len(chunk)
        if text:
            yield text if begun else text.removeprefix(MARK)
            begun = True
        if fault is not None:
            raise fault


def read(file: Path, encoding: str | None = None, invalid: Invalid = "refuse") -> Iterator[str]:
    """Yield a file as text; - is standard input, of which each part is yielded as soon as it is there.

    Raises:
        TextError: it is no text; all that stands before was yielded.
        OSError: it cannot be read.
    """
    if str(file) == "-":
        with open(sys.stdin.fileno(), "rb", closefd=False) as stream:
            yield from decoded(_chunks(stream), "standard input", encoding, invalid)
    else:
        with file.open("rb") as stream:
            yield from decoded(_chunks(stream), str(file), encoding, invalid)


def lines(parts: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a text as soon as each is whole, with LF as their ends; the last may have none."""
    held, size, after_cr, told = list[str](), 0, False, False
    for part in parts:
        *ended, rest = LINE_END.split(part.removeprefix("\n") if after_cr else part)
        after_cr = part.endswith("\r")
        for line in ended:
            yield "".join([*held, line, "\n"])
            held, size = [], 0
        held.append(rest)
        size += len(rest)
        if size > LONGEST_LINE:
            told = told or _say(f"a line is longer than {LONGEST_LINE:,} characters: it is read in parts")
            yield "".join(held)
            held, size = [], 0
    if size:
        yield "".join(held)


def utf8(raw: bytes, name: str, encoding: str | None = None) -> bytes:
    """A text as UTF-8 without a mark, with LF line ends where all were CR; bytes that are no text stay.

    Raises:
        TextError: it is not what its mark or ``encoding`` says, or it is UTF-16 without either.
    """
    codec = encoding_of(raw, name, encoding)
    if encoding is not None or codec != "utf-8":
        raw = "".join(decoded((raw,), name, codec)).encode()
    raw = raw.removeprefix(codecs.BOM_UTF8)
    if b"\r" in raw and b"\n" not in raw:
        _say(f"{name}: its lines end with CR; they are read as LF")
        raw = raw.replace(b"\r", b"\n")
    return raw


def may_begin_a_mark(head: bytes) -> bool:
    """Whether it takes more bytes to know the mark that a text begins with."""
    return any(len(head) < len(mark) and mark.startswith(head) for mark in _MARKS)


def encoding_of(head: bytes, name: str, told: str | None = None) -> str:
    """The encoding of a text that begins so; one that its mark tells is said on standard error.

    Raises:
        TextError: nobody knows the encoding that was told, or the text looks like UTF-16 without a mark.
    """
    marked = next((codec for mark, codec in _MARKS.items() if head.startswith(mark)), None)
    if told is not None:
        try:
            b"a".decode(told, "replace")
            codec = codecs.lookup(told).name
        except LookupError:
            raise TextError(f"there is no encoding {told!r} of text") from None
        if codec in ("utf-16", "utf-32"):
            return marked if marked is not None and marked.startswith(codec) else f"{codec}-le"
        return codec
    if marked not in (None, "utf-8"):
        _say(f"{name} is read as {str(marked).upper()}, as its mark says")
    zeros = [head[first:_READ_BYTES:2].count(0) for first in (0, 1)]
    if marked is None and len(head) >= _FEWEST_BYTES and max(zeros) * 4 > len(head) and not min(zeros):
        order = "be" if zeros[0] else "le"
        raise TextError(f"{name} looks like UTF-16 without a mark: give --encoding utf-16-{order}")
    return marked or "utf-8"


def errors_of(invalid: Invalid) -> str:
    """The word that Python's codecs have for it."""
    return "strict" if invalid == "refuse" else "replace"


def refusal(name: str, codec: str, at: int) -> TextError:
    """An error that says where a text is none, in bytes from its start."""
    advice = "give its --encoding, or --invalid replace"
    return TextError(f"{name} is not {codec.upper()} text (byte {at:,}): {advice}")


def _chunks(stream: io.BufferedReader) -> Iterator[bytes]:
    while chunk := stream.read1(_READ_BYTES):
        yield chunk


def _say(sentence: str) -> bool:
    sys.stderr.write(f"rlstm: {sentence}\n")
    return True
