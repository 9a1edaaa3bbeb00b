"""Streams: ready orders of text segments that change author, domain or language.

``streams.json`` in the corpora folder names each segment's file, start and length in bytes. Streams are
test texts: nothing is ever chosen on them, so :func:`held_out` hands out only text that no stream uses.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlstm_training.corpora import CorpusError, Extent, Split, corpora_folder, load_corpus, load_file, locate


def load_stream(
    name: str, *, prefix: int | None = None, folder: Path | None = None
) -> list[tuple[str, bytes]]:
    """The named segments of a stream: whole, or in the prefix form, the first ``prefix`` bytes of each.

    Raises CorpusError.
    """
    folder = folder or corpora_folder()
    streams = _streams(folder)
    if name not in streams:
        raise CorpusError(f"no stream {name!r} in {folder / 'streams.json'} (there: {', '.join(streams)})")
    extents = streams[name]
    whole = {path: load_file(path, folder=folder) for path in {extent.path for extent in extents}}
    segments = []
    for extent in extents:
        end = extent.end if prefix is None else min(extent.end, extent.start + prefix)
        label = f"{Path(extent.path).name.removesuffix('.xz')} @{extent.start}"
        segments.append((label, whole[extent.path][extent.start : end]))
    return segments


def stream_names(*, folder: Path | None = None) -> list[str]:
    """The streams that there are, in their order. Raises CorpusError."""
    return list(_streams(folder or corpora_folder()))


def held_out(name: str, split: Split, length: int, *, folder: Path | None = None) -> bytes:
    """The first ``length`` bytes in a row of a corpus's split that belong to no stream.

    Raises CorpusError when there are none.
    """
    extent = locate(name, split, folder=folder)
    raw = load_corpus(name, split, folder=folder)
    taken = [
        used
        for stream in _streams(folder or corpora_folder()).values()
        for used in stream
        if used.path == extent.path
    ]
    start = first_free(extent, taken, length) - extent.start
    return raw[start : start + length]


def first_free(extent: Extent, taken: Sequence[Extent], length: int) -> int:
    """Where the first ``length`` bytes of ``extent`` begin that touch nothing of ``taken``."""
    start = extent.start
    for used in sorted(taken, key=lambda used: used.start):
        if used.start < start + length and start < used.end:
            start = used.end
    if start + length > extent.end:
        raise CorpusError(f"{extent.path} has no {length} bytes in a row that belong to no stream")
    return start


def _streams(folder: Path) -> dict[str, list[Extent]]:
    """All streams by name; none where the folder has no ``streams.json``."""
    path = folder / "streams.json"
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
