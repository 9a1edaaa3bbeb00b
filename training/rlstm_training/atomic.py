"""Files that are the old one or the new one, whatever happens in between."""

import os
from pathlib import Path


def replace_bytes(path: Path, raw: bytes) -> None:
    """Write a file in one step. Raises OSError, with the old file unharmed."""
    beside = partial_of(path)
    try:
        with beside.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """The same for text, as UTF-8."""
    replace_bytes(path, text.encode())


def partial_of(path: Path) -> Path:
    """Where a file is written before it takes its place: what a killed process may leave."""
    return path.with_name(path.name + ".partial")
