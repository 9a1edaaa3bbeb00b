"""Files and folders that are the old ones or the new ones, whatever happens in between."""

import os
import shutil
from pathlib import Path


def replace_file(path: Path, data: bytes | str) -> None:
    """Write a file in one step; text is UTF-8. Raises OSError, with the old file unharmed.

    Behind a link that is what it leads to. What is no file, such as a device, is written into.
    """
    raw = data.encode() if isinstance(data, str) else data
    if path.exists() and not path.is_file():
        path.write_bytes(raw)
        return
    path = Path(os.path.realpath(path))
    beside = partial_of(path)
    try:
        beside.write_bytes(raw)
        sync(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def replace_folder(folder: Path, staged: Path) -> None:
    """Put ``staged``, which lies beside it, at ``folder``. Raises OSError, with the old folder in its place.

    A folder cannot be renamed over a full one: the old one steps aside.
    """
    for path in (*staged.iterdir(), staged):
        sync(path)
    aside = staged.with_name(staged.name + ".old")
    if folder.is_dir():
        folder.rename(aside)
    try:
        staged.rename(folder)
    except OSError:
        if aside.is_dir():
            aside.rename(folder)
        raise
    sync(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def partial_of(path: Path) -> Path:
    """Where a file or folder is written before it takes its place: what a killed process may leave."""
    return path.with_name(path.name + ".partial")


def sync(path: Path) -> None:
    """Wait until what a file or folder holds is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
