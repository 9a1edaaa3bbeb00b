"""How `rlstm` ends: its exit codes, the one line that it says about an error, and output that fails."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from enum import IntEnum
from typing import IO, Any, TextIO, cast

import click

from rlstm_client.errors import (
    AppendProgress,
    CannotConnectError,
    NoAnswerError,
    RequestError,
    RLSTMError,
    ScoresNotStoredError,
    UnauthorizedError,
)
from rlstm_client.texts import TextError


class Exit(IntEnum):
    """The exit codes; they are part of the interface."""

    OK = 0
    REFUSED = 1  # the server, here or elsewhere, answered with an error
    USAGE = 2  # wrong arguments, a file that cannot be read or written, text that is not text
    NO_ANSWER = 3  # no connection, or it broke off
    MISSING = 4  # a part that is not installed
    NOT_STORED = 5  # done at an earlier time, and the scores of then are no longer stored
    INTERRUPTED = 130
    PIPE_CLOSED = 141  # nobody reads standard output: as a shell says of SIGPIPE


EXIT_CODES = (
    "Exit codes: 0 done, 1 refused by the server, 2 wrong usage or input, 3 no answer from the server, "
    "4 a part is not installed, 5 done before and the scores are no longer stored, 130 interrupted, "
    "141 nobody reads the output."
)


class CommandError(click.ClickException):
    """An error that the user can act upon: one line, and the exit code."""

    def __init__(self, message: str, code: Exit = Exit.USAGE) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]

    def show(self, file: IO[Any] | None = None) -> None:
        """Say it on standard error."""
        _say(self)


class _Output:
    """Standard output, which says what is wrong with it in one way, whatever library writes to it."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    @property
    def buffer(self) -> "_Output":
        """What takes bytes."""
        return _Output(self._file.buffer)

    def write(self, data: Any) -> int:
        """Write text, or bytes."""
        with failures_told():
            return int(self._file.write(data))

    def flush(self) -> None:
        """Write what was held back."""
        with failures_told():
            self._file.flush()


@contextmanager
def failures_told() -> Iterator[None]:
    """Turn what may be wrong with standard output into a `CommandError`; a disk or pipe is tried no more."""
    try:
        yield
    except UnicodeEncodeError as error:
        lacks = ascii(error.object[error.start])
        has = f"standard output has no {lacks} in its encoding, {sys.stdout.encoding}"
        raise CommandError(f"{has}; set PYTHONIOENCODING=utf-8") from error
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter would try once more at its end
        if isinstance(error, BrokenPipeError):
            raise CommandError("", Exit.PIPE_CLOSED) from error
        raise CommandError(f"standard output: {error.strerror or error}") from error


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn expected errors into one line on stderr and the documented exit code."""
    try:
        if sys.stdout is None:
            raise CommandError("standard output is closed")
        with failures_told():
            os.write(1, b"")  # some are full from the beginning
        with redirect_stdout(cast("TextIO", _Output(sys.stdout))):
            try:
                yield
            finally:
                sys.stdout.flush()
    except (CommandError, TextError, RLSTMError) as error:
        _say(error)
        sys.exit(_code(error))
    except OSError as error:
        _say(CommandError(f"{error.filename or 'the output'}: {error.strerror or error}"))
        sys.exit(Exit.USAGE)
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)


@contextmanager
def interruption_told() -> Iterator[None]:
    """Have an interrupted append say what of the text is in the session."""
    try:
        yield
    except KeyboardInterrupt as error:
        if said := _progress(error):
            raise CommandError(f"interrupted{said}", Exit.INTERRUPTED) from error
        raise


def _say(error: Exception) -> None:
    if message := str(error) + _progress(error) + _advice(error):
        with suppress(AttributeError, OSError):  # standard error may be closed, or full
            sys.stderr.write(f"rlstm: {message}\n")
            sys.stderr.flush()


def _code(error: Exception) -> int:
    match error:
        case CommandError():
            return error.exit_code
        case TextError() | RequestError():
            return Exit.USAGE
        case ScoresNotStoredError():
            return Exit.NOT_STORED
        case NoAnswerError():
            return Exit.NO_ANSWER
    return Exit.REFUSED


def _advice(error: Exception) -> str:
    """Say what a command is told in another way than a client."""
    match error:
        case CannotConnectError():
            return "; `rlstm serve` starts a server, --url names another"
        case UnauthorizedError():
            return "; --api-key or RLSTM_API_KEY is the key"
    return ""


def _progress(error: BaseException) -> str:
    """Say how far an append had come that ended with this error; nothing of a text that is all outside."""
    progress: AppendProgress | None = getattr(error, "progress", None)
    if progress is None:
        return ""
    said = f"; the first {progress.characters:,} characters are in the session" if progress.characters else ""
    if progress.piece is not None and getattr(error, "applied", "unknown") != "no":
        open_ends = [progress.piece, *(piece for piece, _ in progress.following)]
        said += f"; whether the next {sum(map(len, open_ends)):,} are is not known"
    return said
