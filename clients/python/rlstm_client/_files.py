"""Exported sessions on disk: read whole, and written whole or not at all."""

import os
import tempfile
from pathlib import Path
from typing import BinaryIO

PathOrFile = str | os.PathLike[str] | BinaryIO


def write(data: bytes, to: PathOrFile) -> None:
    """Write bytes to an open file, or to a path, where they replace what is there when all are written."""
    if not isinstance(to, str | os.PathLike):
        to.write(data)
        return
    path = Path(to)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(data)
            file.flush()
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink()
            raise


def read(source: PathOrFile) -> bytes:
    """Read an open file, or the one at a path, to its end."""
    if isinstance(source, str | os.PathLike):
        return Path(source).read_bytes()
    return source.read()
