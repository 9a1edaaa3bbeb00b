"""Where the commands take text from: an argument, a file, or standard input. Bytes must be UTF-8."""

import codecs
import io
import sys
from collections.abc import Iterator
from pathlib import Path

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
    if file is not None and not is_standard_input(argument, file):
        return _file_parts(file)
    if nothing_piped():
        raise CommandError("give a text, --file FILE, or pipe a text in")
    return _standard_input()


def lines_as_they_come(file: Path | None) -> Iterator[str]:
    """Yield lines with their ends as soon as each is whole; the last one may have none."""
    rest = ""
    for part in text_as_it_comes(None, file):
        *lines, rest = (rest + part).split("\n")
        yield from (f"{line}\n" for line in lines)
    if rest:
        yield rest


def is_standard_input(argument: str | None, file: Path | None) -> bool:
    """Whether a command that was given these reads its text from standard input."""
    return argument is None and (file is None or str(file) == "-")


def nothing_piped() -> bool:
    """Whether standard input is a terminal, or closed."""
    return sys.stdin is None or sys.stdin.isatty()


def decoded(stream: io.BufferedReader, name: str) -> Iterator[str]:
    """Yield a stream of bytes as text, cut where it happens to pause but never inside a character."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    while True:
        chunk = stream.read1(_READ_BYTES)
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


def _standard_input() -> Iterator[str]:
    with open(sys.stdin.fileno(), "rb", closefd=False) as stream:
        yield from decoded(stream, "standard input")
