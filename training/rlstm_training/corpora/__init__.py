"""Corpora: verified texts with their splits, and the forms they are read in.

``RLSTM_CORPORA`` names the corpora folder. A corpus is, whichever comes first:

* a dataset of the folder's ``manifest.json``, which gives each file's size, sha256 and role; a corpus with
  one file has byte-range splits;
* a published corpus, whose files, as their publisher names them, lie in the folder or in a folder of the
  corpus's name in it (:mod:`rlstm_training.corpora.published`);
* a folder of the user's own with ``train.txt``, ``valid.txt`` and ``test.txt``: name it by its path.
"""

import os
from pathlib import Path
from typing import Literal

from rlstm_client.texts import TextError, utf8

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
ENVIRONMENT = "RLSTM_CORPORA"
DEFAULT_FOLDER = Path("corpora")


class CorpusError(Exception):
    """A corpus that is missing, damaged or of another shape; the message names the file."""


def corpora_folder() -> Path:
    """The folder in ``RLSTM_CORPORA``, else ``corpora`` where the process runs."""
    return Path(os.environ.get(ENVIRONMENT, DEFAULT_FOLDER))


def as_text(raw: bytes, name: str, encoding: str | None = None) -> bytes:
    """A user's own text as UTF-8 without a mark; bytes that are no text stay. Raises CorpusError."""
    try:
        return utf8(raw, name, encoding)
    except TextError as error:
        raise CorpusError(str(error)) from error


def read_file(path: Path) -> bytes:
    """All bytes of a file, at least one. Raises CorpusError."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror}") from error
    if not raw:
        raise CorpusError(f"{path} is empty")
    return raw
