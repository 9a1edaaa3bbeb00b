"""Exported sessions on disk: read whole, and written whole or not at all, without being held in memory."""

import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, BinaryIO, Self

PathOrFile = str | os.PathLike[str] | BinaryIO


class ArrivingFile:
    """A file on its way: `partial` takes its bytes, and `keep` puts all of them where they belong.

    What was at a path stays there until then, and for good if that never comes. An open file gets its bytes
    from where it stands.
    """

    partial: IO[bytes]

    def __init__(self, to: PathOrFile) -> None:
        self._to = Path(to) if isinstance(to, str | os.PathLike) else to

    def __enter__(self) -> Self:
        if isinstance(self._to, Path):
            self.partial = tempfile.NamedTemporaryFile(
                dir=self._to.parent, prefix=f".{self._to.name}.", delete=False
            )
        else:
            self.partial = tempfile.TemporaryFile()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.partial.close()
        if isinstance(self._to, Path):
            Path(self.partial.name).unlink(missing_ok=True)

    def keep(self) -> None:
        """Put the bytes in their place; none comes after them."""
        self.partial.flush()
        if isinstance(self._to, Path):
            os.fsync(self.partial.fileno())  # or a crash could leave the name with nothing behind it
            Path(self.partial.name).replace(self._to)
        else:
            self.partial.seek(0)
            shutil.copyfileobj(self.partial, self._to)


def read(source: PathOrFile) -> bytes:
    """Read an open file, or the one at a path, to its end."""
    if isinstance(source, str | os.PathLike):
        return Path(source).read_bytes()
    return source.read()
