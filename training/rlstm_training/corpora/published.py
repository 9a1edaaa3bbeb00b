"""What is known of a corpus that papers report on: its files, splits, sizes and checksums.

A file is accepted as it is, packed as ``.xz``, or in a ``.zip``.
"""

import hashlib
import lzma
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlstm_training.corpora.base import ENVIRONMENT, CorpusError, Split, read_file
from rlstm_training.corpora.forms import from_spaced_characters


@dataclass(frozen=True, kw_only=True)
class PublishedFile:
    """A file as its publisher made it. What is None is not known for certain, and not checked.

    splits      the splits in it, by bytes
    size        bytes
    lines       line ends
    tokens      words and line ends
    alphabet    the only bytes in it
    distinct    how many byte values occur
    checksums   hex digests by algorithm
    """

    name: str
    splits: Mapping[Split, slice]
    size: int | None = None
    lines: int | None = None
    tokens: int | None = None
    alphabet: bytes | None = None
    distinct: int | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)

    def verify(self, raw: bytes, path: Path) -> None:
        """Raises CorpusError, which names ``path``, when ``raw`` is not this file."""
        if self.alphabet is not None:
            foreign = re.search(b"[^" + re.escape(self.alphabet) + b"]", raw)
            if foreign is not None:
                byte = f"byte {foreign.start()} is 0x{foreign[0].hex()}"
                raise CorpusError(f"{path}: {byte}, which {self.name} does not have")
        for what, found, expected in self._counts(raw):
            if found != expected:
                raise CorpusError(f"{path} has {found:,} {what}; {self.name} has {expected:,}")
        for algorithm, digest in self.checksums.items():
            if hashlib.new(algorithm, raw, usedforsecurity=False).hexdigest() != digest:
                raise CorpusError(f"{path}: its {algorithm} is not that of {self.name}")

    def _counts(self, raw: bytes) -> Iterator[tuple[str, int, int]]:
        """What is counted, what was found, and what should be."""
        if self.size is not None:
            yield "bytes", len(raw), self.size
        if self.lines is not None:
            yield "lines", raw.count(b"\n"), self.lines
        if self.tokens is not None:
            yield "words and line ends", len(raw.split()) + raw.count(b"\n"), self.tokens
        if self.distinct is not None:
            yield "distinct bytes", sum(bytes((byte,)) in raw for byte in range(256)), self.distinct


@dataclass(frozen=True, kw_only=True)
class PublishedCorpus:
    """A corpus of such files.

    obtain    where a user finds the files
    address   of a zip archive that holds the one file, where it may be downloaded
    spaced    its texts are characters between spaces
    """

    name: str
    about: str
    licence: str
    files: tuple[PublishedFile, ...]
    obtain: str
    address: str | None = None
    spaced: bool = False

    def find(self, file: PublishedFile, folder: Path) -> Path | None:
        """Where ``file`` lies in a corpora folder, if it does."""
        places = (
            place / (file.name + packing)
            for place in (folder / self.name, folder)
            for packing in ("", ".xz", ".zip")
        )
        return next((path for path in places if path.is_file()), None)

    def load(self, split: Split, folder: Path) -> bytes:
        """The text of a split, its file checked. Raises CorpusError."""
        file = next((file for file in self.files if split in file.splits), None)
        if file is None:
            raise CorpusError(f"corpus {self.name!r} has no {split} split")
        path = self.find(file, folder)
        if path is None:
            missing = folder / self.name / file.name
            raise CorpusError(f"{missing} is missing. {self.how_to_get(folder)}")
        raw = _unpacked(path, file.name)
        file.verify(raw, path)
        part = raw[file.splits[split]]
        return from_spaced_characters(part) if self.spaced else part

    def how_to_get(self, folder: Path) -> str:
        """What to put where, or which command to run."""
        names = ", ".join(file.name for file in self.files)
        download = f", or run: rlstm corpora {self.name} --download" if self.address else "."
        return (
            f"Corpus {self.name} is not part of this project: put {names} into {folder / self.name} "
            f"({ENVIRONMENT} names the folder above). {self.obtain}{download}"
        )


def _unpacked(path: Path, name: str) -> bytes:
    """A file's bytes, out of its packing. Raises CorpusError."""
    raw = b""
    try:
        if path.suffix == ".xz":
            raw = lzma.decompress(read_file(path))
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                raw = archive.read(name)
        else:
            raw = read_file(path)
    except KeyError:
        raise CorpusError(f"{path} holds no file {name}") from None
    except (lzma.LZMAError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise CorpusError(f"{path} is damaged: {error}") from error
    if not raw:
        raise CorpusError(f"{path} is empty")
    return raw
