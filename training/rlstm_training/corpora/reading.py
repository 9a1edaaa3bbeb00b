"""From the name of a corpus to the text of a split."""

from pathlib import Path

from rlstm_training.corpora.base import (
    ENVIRONMENT,
    SPLITS,
    CorpusError,
    Extent,
    Split,
    corpora_folder,
    read_file,
)
from rlstm_training.corpora.manifest import MANIFEST, named, read_manifest, read_verified
from rlstm_training.corpora.table import PUBLISHED

OWN_LICENCE = "the user's own text"


def locate(name: str, split: Split, *, folder: Path | None = None) -> Extent:
    """Where a corpus's split lies.

    ``name`` is a dataset of the manifest; one of its files that has no splits, without suffix
    (``canterbury/alice29``: all splits are the whole file); a published corpus; or the path of a folder with
    ``<split>.txt``. Raises CorpusError.
    """
    extent = _in_manifest(name, split, folder or corpora_folder())
    if extent is not None:
        return extent
    licence = PUBLISHED[name].licence if name in PUBLISHED else OWN_LICENCE
    raw = load_corpus(name, split, folder=folder)
    return Extent(path=f"{name}/{split}", start=0, end=len(raw), licence=licence)


def load_corpus(name: str, split: Split, *, folder: Path | None = None) -> bytes:
    """The raw bytes of a corpus's split, checked against whatever is known of its size and checksum.

    For ``name`` see :func:`locate`. Raises CorpusError.
    """
    folder = folder or corpora_folder()
    extent = _in_manifest(name, split, folder)
    if extent is not None:
        return load_file(extent.path, folder=folder)[extent.start : extent.end]
    if name in PUBLISHED:
        return PUBLISHED[name].load(split, folder)
    if Path(name).is_dir():
        return read_file(Path(name) / f"{split}.txt")
    raise _unknown(name, folder)


def load_file(path: str, *, folder: Path | None = None) -> bytes:
    """A whole file of the manifest, by its path there, checked. Raises CorpusError."""
    folder = folder or corpora_folder()
    for record in read_manifest(folder):
        if record["path"] == path:
            return read_verified(folder, record)
    raise CorpusError(f"no file {path!r} in {folder / MANIFEST}")


def missing_files(name: str, *, folder: Path | None = None) -> list[Path]:
    """Which files of a corpus are not there; those that are may still turn out to be wrong.

    A name that means nothing is a folder that is not there. Raises CorpusError when the manifest is damaged.
    """
    folder = folder or corpora_folder()
    records = [record for record in read_manifest(folder) if named(name, record)]
    if records:
        return [folder / record["path"] for record in records if not (folder / record["path"]).is_file()]
    if name in PUBLISHED:
        corpus = PUBLISHED[name]
        return [folder / name / file.name for file in corpus.files if corpus.find(file, folder) is None]
    own = [Path(name) / f"{split}.txt" for split in SPLITS]
    return [path for path in own if not path.is_file()]


def _in_manifest(name: str, split: Split, folder: Path) -> Extent | None:
    """Where the manifest has it; None where it does not know the name. Raises CorpusError."""
    records = [record for record in read_manifest(folder) if named(name, record)]
    for record in records:
        start, end = 0, record["raw_bytes"]
        if record["role"] == "all":
            start, end = record.get("splits", {}).get(split, (0, 0))
        if end > start and record["role"] in (split, "all", "domain"):
            return Extent(path=record["path"], start=start, end=end, licence=record["licence"])
    if records:
        raise CorpusError(f"corpus {name!r} has no {split} split")
    return None


def _unknown(name: str, folder: Path) -> CorpusError:
    return CorpusError(
        f"no corpus {name!r}: not in {folder / MANIFEST} (set {ENVIRONMENT} to a corpora folder), none of "
        f"the published ones ({', '.join(PUBLISHED)}), and no folder"
    )
