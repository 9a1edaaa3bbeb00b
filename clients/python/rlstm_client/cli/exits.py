"""How `rlstm` ends: its exit codes, and the one line that it says about an error."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from rlstm_client.errors import (
    AppendProgress,
    NoAnswerError,
    RequestError,
    RLSTMError,
    ScoresNotStoredError,
)
from rlstm_client.texts import TextError


class Exit(IntEnum):
    """The exit codes; they are part of the interface."""

    OK = 0
    REFUSED = 1  # the server, or a local model, answered with an error
    USAGE = 2  # wrong arguments, an unreadable file, text that is not text
    NO_ANSWER = 3  # no connection, or it broke off
    MISSING = 4  # a part that is not installed
    NOT_STORED = 5  # done at an earlier time, and the scores of then are no longer stored
    INTERRUPTED = 130


EXIT_CODES = (
    "Exit codes: 0 done, 1 refused by the server, 2 wrong usage or input, 3 no answer from the server, "
    "4 a part is not installed, 5 done before and the scores are no longer stored, 130 interrupted."
)


class CommandError(Exception):
    """An error that the user can act upon: one line, and the exit code."""

    def __init__(self, message: str, code: Exit = Exit.USAGE) -> None:
        super().__init__(message)
        self.code = code


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn expected errors into one line on stderr and the documented exit code."""
    try:
        yield
    except CommandError as error:
        _leave(str(error) + _progress(error), error.code)
    except TextError as error:
        _leave(str(error) + _progress(error), Exit.USAGE)
    except RLSTMError as error:
        _leave(str(error) + _progress(error), _code(error))
    except BrokenPipeError:
        _drop_output()
        sys.exit(Exit.REFUSED)
    except OSError as error:
        _drop_output()
        _leave(f"{error.filename or 'the output'}: {error.strerror or error}", Exit.USAGE)
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


def _leave(message: str, code: Exit) -> None:
    sys.stderr.write(f"rlstm: {message}\n")
    sys.exit(code)


def _drop_output() -> None:
    """Have nothing more written to what cannot be written to, as the interpreter would at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _code(error: RLSTMError) -> Exit:
    if isinstance(error, RequestError):
        return Exit.USAGE
    if isinstance(error, ScoresNotStoredError):
        return Exit.NOT_STORED
    return Exit.NO_ANSWER if isinstance(error, NoAnswerError) else Exit.REFUSED


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
