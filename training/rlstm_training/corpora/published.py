"""The corpora that papers report on: files, splits, sizes, checksums (``published.toml``), none of them ours.

A file is accepted as it is, packed as ``.xz``, or in a ``.zip``; what may be passed on can be downloaded.
What is not known for certain is left out: of the character files of the Penn Treebank and of the raw
WikiText-2 only the numbers of lines are.
"""

import hashlib
import lzma
import tempfile
import tomllib
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import httpx

from rlstm_model.files import replace_file
from rlstm_training.corpora import ENVIRONMENT, CorpusError, Split, read_file

WHOLE = slice(None)
_CHUNK = 2**20


@dataclass(frozen=True, kw_only=True)
class PublishedFile:
    """A file as its publisher made it. What is None is not known for certain, and not checked.

    splits      the splits in it, by bytes
    size        bytes
    lines       line ends
    tokens      words and line ends
    checksums   hex digests by algorithm
    """

    name: str
    splits: Mapping[Split, slice]
    size: int | None = None
    lines: int | None = None
    tokens: int | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)

    def verify(self, raw: bytes, path: Path) -> None:
        """Raises CorpusError, which names ``path``, when ``raw`` is not this file."""
        lines = raw.count(b"\n")
        found = {"bytes": len(raw), "lines": lines, "words and line ends": len(raw.split()) + lines}
        known = (self.size, self.lines, self.tokens)
        for (what, count), expected in zip(found.items(), known, strict=True):
            if expected is not None and count != expected:
                raise CorpusError(f"{path} has {count:,} {what}; {self.name} has {expected:,}")
        for algorithm, digest in self.checksums.items():
            if hashlib.new(algorithm, raw, usedforsecurity=False).hexdigest() != digest:
                raise CorpusError(f"{path}: its {algorithm} is not that of {self.name}")


@dataclass(frozen=True, kw_only=True)
class PublishedCorpus:
    """A corpus of such files.

    obtain    where a user finds the files
    address   of a zip archive that holds the one file, where it may be downloaded
    spaced    its texts are characters between spaces
    cited     Transformers on it: name, perplexity of words or bits per character or byte on test, source
    """

    name: str
    about: str
    licence: str
    files: tuple[PublishedFile, ...]
    obtain: str
    address: str | None = None
    spaced: bool = False
    cited: Sequence[Sequence[Any]] = ()

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
        # Characters between spaces, with an underscore for the space, as ptb.char.*.txt are.
        return part.replace(b" ", b"").replace(b"_", b" ") if self.spaced else part

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


def download(corpus: PublishedCorpus, folder: Path, client: httpx.Client) -> Path:
    """Fetch a corpus into a corpora folder; it appears there whole and verified, or not at all.

    Returns the file. Raises CorpusError, naming the file or the address.
    """
    if corpus.address is None:
        raise CorpusError(f"corpus {corpus.name!r} cannot be downloaded. {corpus.obtain}.")
    (file,) = corpus.files
    place = folder / corpus.name / file.name
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place.parent) as packed:
            _receive(corpus.address, client, packed)
            raw = _member(packed, corpus.address, file.name, file.size)
        file.verify(raw, Path(corpus.address))
        replace_file(place, raw)
    except OSError as error:
        raise CorpusError(f"{place}: cannot be written ({error.strerror})") from error
    return place


def _receive(address: str, client: httpx.Client, packed: IO[bytes]) -> None:
    try:
        with client.stream("GET", address, follow_redirects=True) as answer:
            answer.raise_for_status()
            for chunk in answer.iter_bytes(_CHUNK):
                packed.write(chunk)
    except httpx.HTTPError as error:
        raise CorpusError(f"{address}: cannot be downloaded ({error or type(error).__name__})") from error


def _member(packed: IO[bytes], address: str, name: str, size: int | None) -> bytes:
    """The one file in the archive; not unpacked unless its size is right."""
    try:
        with zipfile.ZipFile(packed) as archive:
            found = archive.getinfo(name).file_size
            if found != size:
                raise CorpusError(f"{address}: {name} in it has {found:,} bytes, not {size:,}")
            return archive.read(name)
    except KeyError:
        raise CorpusError(f"{address}: holds no file {name}") from None
    except zipfile.BadZipFile as error:
        raise CorpusError(f"{address}: is no whole zip archive ({error})") from error


def _corpus(name: str, files: list[dict[str, Any]], **told: Any) -> PublishedCorpus:
    for file in files:
        file["splits"] = {split: slice(*ends) if ends else WHOLE for split, ends in file["splits"].items()}
    return PublishedCorpus(name=name, files=tuple(PublishedFile(**file) for file in files), **told)


PUBLISHED: Mapping[str, PublishedCorpus] = {
    name: _corpus(name, **table)
    for name, table in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
}


def transformers(corpora: Collection[str]) -> list[dict[str, Any]]:
    """What is cited of these corpora, a row a model."""
    names = ("corpus", "model", "test", "source")
    rows = [
        (corpus.name, *row) for corpus in PUBLISHED.values() if corpus.name in corpora for row in corpus.cited
    ]
    return [dict(zip(names, row, strict=True)) for row in rows]
