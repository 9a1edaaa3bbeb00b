"""Where corpora lie, and what can be wrong with one."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
ENVIRONMENT = "RLSTM_CORPORA"
DEFAULT_FOLDER = Path("../shared/data")


class CorpusError(Exception):
    """A corpus that is missing, damaged or of another shape; the message names the file."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """The bytes from ``start`` to before ``end`` of a file of the manifest, or of the user's own (path)."""

    path: str
    start: int
    end: int
    licence: str


def corpora_folder() -> Path:
    """The folder in ``RLSTM_CORPORA``, else ``../shared/data``."""
    return Path(os.environ.get(ENVIRONMENT, DEFAULT_FOLDER))


def read_file(path: Path) -> bytes:
    """All bytes of a file, at least one. Raises CorpusError."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror}") from error
    if not raw:
        raise CorpusError(f"{path} is empty")
    return raw
