"""Files that are the old one or the new one, whatever happens in between."""

import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write a text file in one step. Raises OSError, with the old file unharmed."""
    beside = path.with_name(path.name + ".partial")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
