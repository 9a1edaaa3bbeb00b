"""Corpora: verified texts with their splits, and the forms they are read in.

A corpora folder holds ``manifest.json``, which gives each file's size, sha256 and role; a corpus with one
file has byte-range splits. ``RLSTM_CORPORA`` names the folder. A folder of the user's own with
``train.txt``, ``valid.txt`` and ``test.txt`` is a corpus too: name it by its path.
"""

import hashlib
import json
import lzma
import os
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from rlstm_training.config import Form

Split = Literal["train", "valid", "test"]
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


def locate(name: str, split: Split, *, folder: Path | None = None) -> Extent:
    """Where a corpus's split lies.

    ``name`` is a dataset of the manifest; one of its files that has no splits, without suffix
    (``canterbury/alice29``: all splits are the whole file); or the path of a folder with ``<split>.txt``.
    Raises CorpusError.
    """
    if Path(name).is_dir():
        path = Path(name) / f"{split}.txt"
        return Extent(path=str(path), start=0, end=len(_read(path)), licence="the user's own text")
    folder = folder or corpora_folder()
    records = [record for record in _manifest(folder) if _names(name, record)]
    if not records:
        raise CorpusError(f"no corpus {name!r} in {folder / 'manifest.json'}, and no folder of that name")
    for record in records:
        start, end = 0, record["raw_bytes"]
        if record["role"] == "all":
            start, end = record.get("splits", {}).get(split, (0, 0))
        if end > start and record["role"] in (split, "all", "domain"):
            return Extent(path=record["path"], start=start, end=end, licence=record["licence"])
    raise CorpusError(f"corpus {name!r} has no {split} split")


def load_corpus(name: str, split: Split, *, folder: Path | None = None) -> bytes:
    """The raw bytes of a corpus's split, checked against the manifest's size and checksum.

    For ``name`` see :func:`locate`. Raises CorpusError.
    """
    extent = locate(name, split, folder=folder)
    if Path(name).is_dir():
        return _read(Path(extent.path))
    return load_file(extent.path, folder=folder)[extent.start : extent.end]


def load_file(path: str, *, folder: Path | None = None) -> bytes:
    """A whole file of the manifest, by its path there, checked. Raises CorpusError."""
    folder = folder or corpora_folder()
    for record in _manifest(folder):
        if record["path"] == path:
            return _verified(folder, record)
    raise CorpusError(f"no file {path!r} in {folder / 'manifest.json'}")


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


def _names(name: str, record: dict[str, Any]) -> bool:
    if record["role"] == "domain":
        return record["path"] == name or str(record["path"]).startswith(f"{name}.")
    return bool(record["dataset"] == name)


def _manifest(folder: Path) -> list[dict[str, Any]]:
    path = folder / "manifest.json"
    try:
        files: list[dict[str, Any]] = json.loads(path.read_text())["files"]
        for record in files:
            record["path"], record["dataset"], record["role"], record["licence"]
            record["raw_bytes"], record["raw_sha256"]
    except FileNotFoundError:
        raise CorpusError(f"{path} is missing; set {ENVIRONMENT} to a corpora folder") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorpusError(f"{path} is no corpora manifest: {error}") from error
    return files


def _read(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror}") from error
    if not raw:
        raise CorpusError(f"{path} is empty")
    return raw


def _verified(folder: Path, record: dict[str, Any]) -> bytes:
    path = folder / record["path"]
    packed = _read(path)
    try:
        raw = lzma.decompress(packed)
    except (lzma.LZMAError, EOFError) as error:
        raise CorpusError(f"{path} is damaged: {error}") from error
    if len(raw) != record["raw_bytes"]:
        raise CorpusError(f"{path} holds {len(raw)} bytes; the manifest says {record['raw_bytes']}")
    if hashlib.sha256(raw).hexdigest() != record["raw_sha256"]:
        raise CorpusError(f"{path}: its checksum is not the manifest's")
    return raw
