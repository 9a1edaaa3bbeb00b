"""Where the commands take text from: an argument, a file, or standard input. Bytes must be UTF-8."""

import codecs
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rlstm_client.cli.exits import CommandError

_READ_BYTES = 65_536


def whole_text(argument: str | None, file: Path | None) -> str:
    """Return the text; line ends stay as they are.

    Raises:
        CommandError: none or two were given, the file cannot be read, or it is not UTF-8.
    """
    return "".join(text_as_it_comes(argument, file))


def text_as_it_comes(argument: str | None, file: Path | None) -> Iterator[str]:
    """Yield the text in parts; from standard input as soon as something is there."""
    if argument is not None and file is not None:
        raise CommandError("give either a text or --file, not both")
    if argument is not None:
        return iter((argument,))
    if file is not None and str(file) != "-":
        return _file_parts(file)
    if sys.stdin is None or sys.stdin.isatty():
        raise CommandError("give a text, --file FILE, or pipe a text in")
    return decoded(sys.stdin.buffer, "standard input")


def size_of(argument: str | None, file: Path | None) -> int | None:
    """Return the bytes that the text will have, or None where only its end will tell."""
    if argument is not None:
        return len(argument.encode("utf-8", "surrogateescape"))
    return os.stat(file).st_size if file is not None and file.is_file() else None


def decoded(stream: BinaryIO, name: str) -> Iterator[str]:
    """Yield a stream of bytes as text, cut where it happens to pause but never inside a character."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    while True:
        chunk = (
            stream.read1(_READ_BYTES) if isinstance(stream, io.BufferedReader) else stream.read(_READ_BYTES)
        )
        held = len(decoder.getstate()[0])
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            at = offset - held + error.start
            raise CommandError(f"{name} is not UTF-8 text (byte {at:,})") from error
        offset += len(chunk)
        if text:
            yield text
        if not chunk:
            return


def _file_parts(file: Path) -> Iterator[str]:
    try:
        with file.open("rb") as stream:
            yield from decoded(stream, str(file))
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror or error}") from error
