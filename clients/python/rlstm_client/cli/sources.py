"""Where the lines of a log come from: standard input, or files, as they grow and are rotated."""

import asyncio
import hashlib
import os
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

MOST_BYTES: Final = 4_000
"""Of a line that are kept: what comes after them is counted, and dropped."""

_CHUNK: Final = 65_536
_LOOK_SECONDS: Final = 0.5
_HEAD_BYTES: Final = 256


class Line(NamedTuple):
    """A line, of which the beginning is kept, and how many bytes it has with its end."""

    text: str
    size: int


class Cutter:
    """Cuts what comes into lines: each byte is looked at once, and no line holds more than `MOST_BYTES`."""

    def __init__(self) -> None:
        self._kept = b""
        self._size = 0

    def feed(self, chunk: bytes) -> list[Line]:
        """The lines that end in a chunk. Bytes that are no text are replaced."""
        *ended, rest = chunk.split(b"\n")
        lines = [self._end(part, 1) for part in ended]
        self._add(rest)
        return lines

    def finish(self) -> list[Line]:
        """The last line, where it has no end."""
        return [self._end(b"", 0)] if self._size else []

    def _add(self, part: bytes) -> None:
        self._kept += part[: MOST_BYTES - len(self._kept)]
        self._size += len(part)

    def _end(self, part: bytes, end: int) -> Line:
        self._add(part)
        line = Line(self._kept.decode("utf-8", "replace").rstrip("\r"), self._size + end)
        self._kept, self._size = b"", 0
        return line


class StandardInput:
    """Standard input, which nothing can go back in."""

    name: Final = "-"
    place: Mapping[str, Any] = {}

    async def lines(self, place: Mapping[str, Any]) -> AsyncIterator[Line]:
        """Yield lines as they come. Nothing waits at the end for what does not come."""
        loop, chunks = asyncio.get_running_loop(), asyncio.Queue[bytes](4)

        def pump() -> None:
            while True:
                chunk = os.read(0, _CHUNK)
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
                if not chunk:
                    return

        threading.Thread(target=pump, daemon=True).start()
        cut = Cutter()
        while chunk := await chunks.get():
            for line in cut.feed(chunk):
                yield line
        for line in cut.finish():
            yield line


class File:
    """A file, as it is or, to `follow`, as it grows: when another one has its name, that is read too.

    Raises OSError at once where it cannot be read.
    """

    def __init__(self, path: Path, *, follow: bool) -> None:
        path.open("rb").close()
        self.name = str(path)
        self._path, self._follow = path, follow
        self._at, self._head = 0, b""

    @property
    def place(self) -> Mapping[str, Any]:
        """The end of the line that came last, and what tells the file from another of its name."""
        return {"at": self._at, "head": _digest(self._head[: self._at])}

    async def lines(self, place: Mapping[str, Any]) -> AsyncIterator[Line]:
        """Yield the lines after a place that was told before; of another file than then, all."""
        while True:
            with self._path.open("rb") as file:
                self._begin(file, place)
                cut, grows = Cutter(), True
                while grows:
                    chunk = self._read(file)
                    grows = bool(chunk) or (self._follow and self._is_still(file))
                    for line in cut.feed(chunk) if grows else cut.finish():
                        self._at += line.size
                        yield line
                    await asyncio.sleep(0 if chunk else _LOOK_SECONDS if grows else 0)
            if not self._follow:
                return
            place = {}

    def _begin(self, file: IO[bytes], place: Mapping[str, Any]) -> None:
        at, self._head = place.get("at", 0), file.read(_HEAD_BYTES)
        same = os.fstat(file.fileno()).st_size >= at and _digest(self._head[:at]) == place.get("head")
        self._at = at if same else 0
        file.seek(self._at)

    def _read(self, file: IO[bytes]) -> bytes:
        chunk = file.read(_CHUNK)
        if len(self._head) < _HEAD_BYTES:
            at = file.tell()
            file.seek(0)
            self._head = file.read(_HEAD_BYTES)
            file.seek(at)
        return chunk

    def _is_still(self, file: IO[bytes]) -> bool:
        """Whether the file has its name, and all that was read of it. For a moment there may be none."""
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return True
        return os.path.samestat(there, os.fstat(file.fileno())) and there.st_size >= file.tell()


def _digest(head: bytes) -> str:
    return hashlib.blake2b(head, digest_size=8).hexdigest()
