"""The manifest of a corpora folder, and the files that it describes."""

import hashlib
import json
import lzma
from pathlib import Path
from typing import Any

from rlstm_training.corpora.base import CorpusError, read_file

MANIFEST = "manifest.json"


def named(name: str, record: dict[str, Any]) -> bool:
    """Whether a record belongs to the corpus of this name."""
    if record["role"] == "domain":
        return record["path"] == name or str(record["path"]).startswith(f"{name}.")
    return bool(record["dataset"] == name)


def read_manifest(folder: Path) -> list[dict[str, Any]]:
    """The records of the folder's files; none where it has no manifest. Raises CorpusError."""
    path = folder / MANIFEST
    try:
        files: list[dict[str, Any]] = json.loads(path.read_text())["files"]
        for record in files:
            record["path"], record["dataset"], record["role"], record["licence"]
            record["raw_bytes"], record["raw_sha256"]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorpusError(f"{path} is no corpora manifest: {error}") from error
    return files


def read_verified(folder: Path, record: dict[str, Any]) -> bytes:
    """The bytes of a record's file, checked against its size and checksum. Raises CorpusError."""
    path = folder / record["path"]
    packed = read_file(path)
    try:
        raw = lzma.decompress(packed)
    except (lzma.LZMAError, EOFError) as error:
        raise CorpusError(f"{path} is damaged: {error}") from error
    if len(raw) != record["raw_bytes"]:
        raise CorpusError(f"{path} holds {len(raw)} bytes; the manifest says {record['raw_bytes']}")
    if hashlib.sha256(raw).hexdigest() != record["raw_sha256"]:
        raise CorpusError(f"{path}: its checksum is not the manifest's")
    return raw
