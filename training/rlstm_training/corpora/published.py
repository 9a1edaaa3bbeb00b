"""The corpora that papers report on: files, splits, sizes, checksums. None is part of this project.

A file is accepted as it is, packed as ``.xz``, or in a ``.zip``; what may be passed on can be downloaded.
What is not known for certain is left out: of the character files of the Penn Treebank and of the raw
WikiText-2 only the numbers of lines are.
"""

import hashlib
import lzma
import tempfile
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import httpx

from rlstm_model.files import replace_file
from rlstm_training.corpora import ENVIRONMENT, CorpusError, Split, read_file

WHOLE = slice(None)
MILLION = 1_000_000
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


# The usual split of 100 million bytes: 90, 5 and 5 million, in this order.
_NINETY_FIVE_FIVE: Mapping[Split, slice] = {
    "train": slice(0, 90 * MILLION),
    "valid": slice(90 * MILLION, 95 * MILLION),
    "test": slice(95 * MILLION, 100 * MILLION),
}


def _file(name: str, split: Split, **known: Any) -> PublishedFile:
    """A file that is one split."""
    return PublishedFile(name=name.format(split), splits={split: WHOLE}, **known)


_PTB_LICENCE = "LDC licence (LDC99T42): not to be passed on"
_PTB_OBTAIN = (
    "The Penn Treebank may not be passed on: members of the LDC have it, and simple-examples.tgz of "
    "T. Mikolov's RNNLM page holds these files under data/"
)
_PTB_LINES: Mapping[Split, int] = {"train": 42_068, "valid": 3_370, "test": 3_761}
_PTB_WORDS: Mapping[Split, tuple[int, str]] = {
    "train": (929_589, "f26c4b92c5fdc7b3f8c7cdcb991d8420"),
    "valid": (73_760, "aa0affc06ff7c36e977d7cd49e3839bf"),
    "test": (82_430, "8b80168b89c18661a38ef683c0dc3721"),
}
_WIKITEXT_2: Mapping[Split, tuple[int, int, str]] = {
    "train": (10_797_148, 2_088_628, "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"),
    "valid": (1_121_681, 217_646, "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
    "test": (1_256_449, 245_569, "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
}
_WIKIPEDIA_LICENCE = "CC BY-SA 3.0 (also GFDL), the Wikipedia contributors"
_WIKITEXT_LICENCE = "CC BY-SA 3.0, the Wikipedia contributors"
_WIKITEXT_OBTAIN = "It is the archive {} of Merity et al. 2016 (arXiv:1609.07843)"

_TABLE = (
    PublishedCorpus(
        name="ptb-words",
        about="Penn Treebank by words, as preprocessed by Mikolov: 10,000 types, <eos> among them",
        licence=_PTB_LICENCE,
        files=tuple(
            _file("ptb.{}.txt", split, lines=_PTB_LINES[split], tokens=tokens, checksums={"md5": md5})
            for split, (tokens, md5) in _PTB_WORDS.items()
        ),
        obtain=_PTB_OBTAIN,
    ),
    PublishedCorpus(
        name="ptb-characters",
        about="The same by characters: 50 symbols, the line end among them",
        licence=_PTB_LICENCE,
        files=tuple(_file("ptb.char.{}.txt", split, lines=lines) for split, lines in _PTB_LINES.items()),
        obtain=_PTB_OBTAIN,
        spaced=True,
    ),
    PublishedCorpus(
        name="wikitext-2",
        about="WikiText-2 by words: 33,278 types, <eos> among them",
        licence=_WIKITEXT_LICENCE,
        files=tuple(
            _file("wiki.{}.tokens", split, size=size, tokens=tokens, checksums={"sha256": sha256})
            for split, (size, tokens, sha256) in _WIKITEXT_2.items()
        ),
        obtain=_WIKITEXT_OBTAIN.format("wikitext-2-v1.zip"),
    ),
    PublishedCorpus(
        name="wikitext-2-raw",
        about="WikiText-2 before rare words became <unk>",
        licence=_WIKITEXT_LICENCE,
        files=(
            _file("wiki.{}.raw", "train", lines=36_718),
            _file("wiki.{}.raw", "valid", lines=3_760),
            _file("wiki.{}.raw", "test", lines=4_358),
        ),
        obtain=_WIKITEXT_OBTAIN.format("wikitext-2-raw-v1.zip"),
    ),
    PublishedCorpus(
        name="enwik8",
        about="100 million bytes of Wikipedia's XML of 2006, split 90/5/5",
        licence=_WIKIPEDIA_LICENCE,
        files=(
            PublishedFile(
                name="enwik8",
                splits=_NINETY_FIVE_FIVE,
                size=100 * MILLION,
                checksums={
                    "md5": "a1fa5ffddb56f4953e226637dabbb36a",
                    "sha1": "57b8363b814821dc9d47aa4d41f58733519076b2",
                },
            ),
        ),
        obtain="Get enwik8.zip of mattmahoney.net/dc/textdata.html",
        address="http://mattmahoney.net/dc/enwik8.zip",
    ),
    PublishedCorpus(
        name="text8",
        about="100 million letters and spaces made from the same, split 90/5/5",
        licence=_WIKIPEDIA_LICENCE,
        files=(
            PublishedFile(
                name="text8",
                splits=_NINETY_FIVE_FIVE,
                size=100 * MILLION,
                checksums={"md5": "3bea1919949baf155f99411df5fada7e"},
            ),
        ),
        obtain="Get text8.zip of mattmahoney.net/dc/textdata.html",
        address="http://mattmahoney.net/dc/text8.zip",
    ),
)

PUBLISHED: Mapping[str, PublishedCorpus] = {corpus.name: corpus for corpus in _TABLE}


CITED: Mapping[str, Sequence[tuple[str, float, str]]] = {
    "enwik8": (
        ("Transformer-XL, 41 M weights", 1.06, "Dai et al. 2019"),
        ("Transformer-XL, 88 M weights", 1.03, "Dai et al. 2019"),
        ("Transformer-XL, 277 M weights", 0.99, "Dai et al. 2019"),
        ("Longformer, 41 M weights", 1.00, "Beltagy et al. 2020"),
        ("Longformer, 102 M weights", 0.99, "Beltagy et al. 2020"),
    ),
    "text8": (
        ("Transformer-XL, 277 M weights", 1.08, "Dai et al. 2019"),
        ("Longformer, 41 M weights", 1.10, "Beltagy et al. 2020"),
    ),
    "ptb-words": (("Transformer-XL, 24 M weights", 54.5, "Dai et al. 2019"),),
}
"""Transformers on the same corpora: perplexity of words, bits per character or byte, on test."""


def transformers(corpora: Collection[str]) -> list[dict[str, Any]]:
    """Rows of `CITED` for these corpora."""
    names = ("corpus", "model", "test", "source")
    rows = [(corpus, *row) for corpus, rows in CITED.items() if corpus in corpora for row in rows]
    return [dict(zip(names, row, strict=True)) for row in rows]
