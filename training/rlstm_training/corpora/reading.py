"""From the name of a corpus or a stream to its text, checked against whatever is known of it.

Streams are ready orders of text segments that change author, domain or language: ``streams.json`` in the
corpora folder names each segment's file, start and length in bytes. They are test texts: nothing is ever
chosen on them, so :func:`held_out` gives only text that no stream uses.
"""

import hashlib
import json
import lzma
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlstm_training.corpora import (
    ENVIRONMENT,
    SPLITS,
    CorpusError,
    Split,
    as_text,
    corpora_folder,
    read_file,
)
from rlstm_training.corpora.published import PUBLISHED

MANIFEST, STREAMS = "manifest.json", "streams.json"
OWN_LICENCE = "the user's own text"


@dataclass(frozen=True, kw_only=True)
class Extent:
    """The bytes from ``start`` to before ``end`` of a file of the manifest, or of the user's own (path)."""

    path: str
    start: int
    end: int
    licence: str


def locate(name: str, split: Split) -> Extent:
    """Where a corpus's split lies.

    ``name`` is a dataset of the manifest; one of its files that has no splits, without suffix
    (``canterbury/alice29``: all splits are the whole file); a published corpus; the path of a folder with
    ``<split>.txt``; or that of a text, whose last tenth is its validation text. Raises CorpusError.
    """
    extent = _in_manifest(name, split)
    if extent is not None:
        return extent
    licence = PUBLISHED[name].licence if name in PUBLISHED else OWN_LICENCE
    raw = load_corpus(name, split)
    return Extent(path=f"{name}/{split}", start=0, end=len(raw), licence=licence)


def load_corpus(name: str, split: Split) -> bytes:
    """The raw bytes of a corpus's split, checked against whatever is known of its size and checksum.

    For ``name`` see :func:`locate`. Raises CorpusError.
    """
    folder, extent = corpora_folder(), _in_manifest(name, split)
    if extent is not None:
        return load_file(extent.path)[extent.start : extent.end]
    if name in PUBLISHED:
        return PUBLISHED[name].load(split, folder)
    if Path(name).is_file():
        return _part(as_text(read_file(Path(name)), name), split, name)
    if Path(name).is_dir():
        place = Path(name) / f"{split}.txt"
        return as_text(read_file(place), str(place))
    raise CorpusError(
        f"no corpus {name!r}: not in {folder / MANIFEST} (set {ENVIRONMENT} to a corpora folder), none of "
        f"the published ones ({', '.join(PUBLISHED)}), and no folder or file"
    )


def _part(raw: bytes, split: Split, name: str) -> bytes:
    """Of a text without parts: nine tenths to train on, to a line's end where there is one, and the rest."""
    if split == "test":
        raise CorpusError(f"{name}: a single text has no test part")
    tenth = len(raw) - len(raw) // 10
    cut = raw.rfind(b"\n", 0, tenth) + 1 or raw.rfind(b" ", 0, tenth) + 1 or tenth
    return raw[:cut] if split == "train" else raw[cut:]


def load_file(path: str) -> bytes:
    """A whole file of the manifest, by its path there, checked. Raises CorpusError."""
    folder = corpora_folder()
    record = next((record for record in read_manifest() if record["path"] == path), None)
    if record is None:
        raise CorpusError(f"no file {path!r} in {folder / MANIFEST}")
    place = folder / path
    packed = read_file(place)
    try:
        raw = lzma.decompress(packed)
    except (lzma.LZMAError, EOFError) as error:
        raise CorpusError(f"{place} is damaged: {error}") from error
    if len(raw) != record["raw_bytes"]:
        raise CorpusError(f"{place} holds {len(raw)} bytes; the manifest says {record['raw_bytes']}")
    if hashlib.sha256(raw).hexdigest() != record["raw_sha256"]:
        raise CorpusError(f"{place}: its checksum is not the manifest's")
    return raw


def missing_files(name: str) -> list[Path]:
    """Which files of a corpus are not there; those that are may still turn out to be wrong.

    A name that means nothing is a folder that is not there. Raises CorpusError when the manifest is damaged.
    """
    folder = corpora_folder()
    records = [record for record in read_manifest() if _named(name, record)]
    if records:
        return [folder / record["path"] for record in records if not (folder / record["path"]).is_file()]
    if name in PUBLISHED:
        corpus = PUBLISHED[name]
        return [folder / name / file.name for file in corpus.files if corpus.find(file, folder) is None]
    own = [Path(name) / f"{split}.txt" for split in SPLITS]
    return [path for path in own if not path.is_file()]


def _in_manifest(name: str, split: Split) -> Extent | None:
    """Where the manifest has it; None where it does not know the name. Raises CorpusError."""
    records = [record for record in read_manifest() if _named(name, record)]
    for record in records:
        start, end = 0, record["raw_bytes"]
        if record["role"] == "all":
            start, end = record.get("splits", {}).get(split, (0, 0))
        if end > start and record["role"] in (split, "all", "domain"):
            return Extent(path=record["path"], start=start, end=end, licence=record["licence"])
    if records:
        raise CorpusError(f"corpus {name!r} has no {split} split")
    return None


def _named(name: str, record: dict[str, Any]) -> bool:
    """Whether a record belongs to the corpus of this name."""
    if record["role"] == "domain":
        return record["path"] == name or str(record["path"]).startswith(f"{name}.")
    return bool(record["dataset"] == name)


def read_manifest() -> list[dict[str, Any]]:
    """The records of the folder's files; none where it has no manifest. Raises CorpusError."""
    path = corpora_folder() / MANIFEST
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


def load_stream(name: str, *, prefix: int | None = None) -> list[tuple[str, bytes]]:
    """The named segments of a stream: whole, or in the prefix form, the first ``prefix`` bytes of each.

    Raises CorpusError.
    """
    streams = _streams()
    if name not in streams:
        raise CorpusError(f"no stream {name!r} in {corpora_folder() / STREAMS} (there: {', '.join(streams)})")
    whole = {path: load_file(path) for path in {extent.path for extent in streams[name]}}
    segments = []
    for extent in streams[name]:
        end = extent.end if prefix is None else min(extent.end, extent.start + prefix)
        label = f"{Path(extent.path).name.removesuffix('.xz')} @{extent.start}"
        segments.append((label, whole[extent.path][extent.start : end]))
    return segments


def stream_names() -> list[str]:
    """The streams that there are, in their order. Raises CorpusError."""
    return list(_streams())


def held_out(name: str, split: Split, length: int) -> bytes:
    """The first ``length`` bytes in a row of a corpus's split that belong to no stream.

    Raises CorpusError when there are none.
    """
    extent = locate(name, split)
    streams = _streams().values()
    taken = [used for stream in streams for used in stream if used.path == extent.path]
    if not taken and extent.end - extent.start < length:
        said = f"its {split} part has {extent.end - extent.start:,} bytes, but {length:,} are needed"
        whole = f", a text of {10 * length:,}" if Path(name).is_file() else ""
        raise CorpusError(f"{name}: {said}{whole}")
    start = first_free(extent, taken, length) - extent.start
    return load_corpus(name, split)[start : start + length]


def first_free(extent: Extent, taken: Sequence[Extent], length: int) -> int:
    """Where the first ``length`` bytes of ``extent`` begin that touch nothing of ``taken``."""
    start = extent.start
    for used in sorted(taken, key=lambda used: used.start):
        if used.start < start + length and start < used.end:
            start = used.end
    if start + length > extent.end:
        raise CorpusError(f"{extent.path} has no {length} bytes in a row that belong to no stream")
    return start


def _streams() -> dict[str, list[Extent]]:
    """All streams by name; none where the folder has no ``streams.json``."""
    path = corpora_folder() / STREAMS
    try:
        data: dict[str, Any] = json.loads(path.read_text())
        return {name: [_extent(segment) for segment in stream["segments"]] for name, stream in data.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorpusError(f"{path} is no description of streams: {error}") from error


def _extent(segment: dict[str, Any]) -> Extent:
    start = int(segment["start"])
    return Extent(path=str(segment["file"]), start=start, end=start + int(segment["length"]), licence="")
