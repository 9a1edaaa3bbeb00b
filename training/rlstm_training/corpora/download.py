"""Downloading those published corpora that may be passed on."""

import tempfile
import zipfile
from pathlib import Path
from typing import IO

import httpx

from rlstm_training.atomic import replace_bytes
from rlstm_training.corpora.base import CorpusError
from rlstm_training.corpora.published import PublishedCorpus

_CHUNK = 2**20


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
        replace_bytes(place, raw)
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
