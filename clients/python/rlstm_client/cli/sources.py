"""Where the lines of a log come from: standard input, or files, as they grow and are rotated."""

import asyncio
import codecs
import errno
import glob
import gzip
import hashlib
import os
import re
import sys
import threading
import zlib
from array import array
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, NamedTuple, TypeVar

from rlstm_client import texts
from rlstm_client.cli.inputs import How

T = TypeVar("T")

MOST_BYTES: Final = 4_000
"""Of a line that are kept: what comes after them is counted, and dropped."""

_LINE_END: Final = re.compile(texts.LINE_END.pattern.encode())
_CHUNK: Final = 65_536
_LOOK_SECONDS: Final = 0.5
_HEAD_BYTES: Final = 256
_ROTATED: Final = re.compile(r"[-._]\d[-._:T\d]*(\.[a-z]\w*)?")  # .1, -20261130, .2.gz

AS_LOGS: Final = How(invalid="replace")


class Line(NamedTuple):
    """A line, of which the beginning is kept, how many bytes it has with its end, and what is known of it."""

    text: str
    size: int
    labels: Mapping[str, str] = MappingProxyType({})


class Cutter:
    """Cuts what comes into lines: each byte is looked at once, and no line holds more than ``most`` bytes.

    name  for messages
    """

    def __init__(self, name: str = "-", how: How = AS_LOGS, most: int = MOST_BYTES) -> None:
        self._name, self._how, self._most = name, how, most
        self._codec: str | None = None
        self._rest = self._kept = b""
        self._size = self._before = 0

    def go_on(self, at: int, head: bytes) -> None:
        """Begin behind some bytes of a text, which began with ``head``."""
        self._codec, self._before = texts.encoding_of(head, self._name, self._how.encoding), at

    def feed(self, chunk: bytes, *, last: bool = False) -> Iterator[Line]:
        """Yield the lines that end in a chunk, and at last also one without end.

        Raises:
            TextError: a line is no text, and that is to be refused.
        """
        data = self._rest + chunk
        if self._codec is None:
            if texts.may_begin_a_mark(data) and not last:
                self._rest = data
                return
            self._codec = texts.encoding_of(data, self._name, self._how.encoding)
        units, width = _units(data, self._codec)
        held = not last and units.endswith(b"\r")  # it may be the beginning of CRLF
        end = len(data) if last else width * (len(units) - held)
        self._rest = data[end:]
        start = 0
        for match in _LINE_END.finditer(units, 0, len(units) - held):
            yield self._line(data[start : width * match.start()], width * len(match[0]))
            start = width * match.end()
        self._add(data[start:end])
        if last and self._size:
            yield self._line(b"", 0)

    def _add(self, part: bytes) -> None:
        self._kept += part[: self._most - len(self._kept)]
        self._size += len(part)

    def _line(self, part: bytes, end: int) -> Line:
        self._add(part)
        codec = str(self._codec)
        whole = len(self._kept) == self._size
        try:
            decoder = codecs.getincrementaldecoder(codec)(texts.errors_of(self._how.invalid))
            text = decoder.decode(self._kept, whole)
        except UnicodeDecodeError as error:
            raise texts.refusal(self._name, codec, self._before + error.start) from error
        line = Line(text.removeprefix(texts.MARK) if self._before == 0 else text, self._size + end)
        self._before += line.size
        self._kept, self._size = b"", 0
        return line


def _units(data: bytes, codec: str) -> tuple[bytes, int]:
    """Encoded text with one byte for each unit of so many bytes; what is no ASCII is another byte."""
    width = {"utf-16": 2, "utf-32": 4}.get(codec[:6], 1)
    if width == 1:
        return data, width
    units = array({2: "H", 4: "I"}[width], data[: len(data) // width * width])
    if codec.endswith("le") != (sys.byteorder == "little"):
        units.byteswap()
    return bytes(min(unit, 128) for unit in units), width


class StandardInput:
    """Standard input, which nothing can go back in."""

    name: Final = "-"
    place: Mapping[str, Any] = {}

    def __init__(self, how: How = AS_LOGS, most: int = MOST_BYTES) -> None:
        self._cut = Cutter("standard input", how, most)

    async def lines(self, place: Mapping[str, Any]) -> AsyncGenerator[Line, None]:
        """Yield lines as they come. Nothing waits at the end for what does not come."""
        async with aclosing(pumped(iter(lambda: os.read(0, _CHUNK), b""))) as chunks:
            async for chunk in chunks:
                for line in self._cut.feed(chunk):
                    yield line
        for line in self._cut.feed(b"", last=True):
            yield line


async def pumped(items: Iterable[T]) -> AsyncGenerator[T, None]:
    """Iterate over what may wait for long, in a thread for which no end waits."""
    loop, coming = asyncio.get_running_loop(), asyncio.Queue[T | Exception | None](4)

    def put(item: T | Exception | None) -> None:
        asyncio.run_coroutine_threadsafe(coming.put(item), loop).result()

    def pump() -> None:
        try:
            for item in items:
                put(item)
            put(None)
        except Exception as error:
            put(error)

    threading.Thread(target=pump, daemon=True).start()
    while (item := await coming.get()) is not None:
        if isinstance(item, Exception):
            raise item
        yield item


class File:
    """A file, as it is or, to `follow`, as it grows: when another one has its name, that is read too.

    Raises OSError at once where it cannot be read.
    """

    def __init__(self, path: Path, *, follow: bool, how: How = AS_LOGS, most: int = MOST_BYTES) -> None:
        path.open("rb").close()
        self._reading = (str(path), how, most)
        self.name = str(path)
        self._path, self._follow = path, follow
        self._at, self._head = 0, b""

    @property
    def place(self) -> Mapping[str, Any]:
        """The end of the line that came last, and what tells the file from another of its name."""
        return {"at": self._at, "head": _digest(self._head[: self._at])}

    async def lines(self, place: Mapping[str, Any]) -> AsyncGenerator[Line, None]:
        """Yield the lines after a place that was told before, and then those of other files of the name."""
        for path in self._rotated(place):
            async with aclosing(self._lines_of(path, place, follow=False)) as lines:
                async for line in lines:
                    yield line
            place = {}
        while True:
            async with aclosing(self._lines_of(self._path, place, follow=self._follow)) as lines:
                async for line in lines:
                    yield line
            if not self._follow:
                return
            place = {}

    async def _lines_of(
        self, path: Path, place: Mapping[str, Any], *, follow: bool
    ) -> AsyncGenerator[Line, None]:
        """Yield the lines of a file after a place; of another file than that of the place, all."""
        with _opened(path) as file:
            self._at, self._head = _left_at(file, place)
            file.seek(self._at)
            cut, grows = Cutter(*self._reading), True
            if self._at:
                cut.go_on(self._at, self._head)
            while grows:
                chunk = self._read(file)
                grows = bool(chunk) or (follow and self._is_still(file))
                for line in cut.feed(chunk, last=not grows):
                    self._at += line.size
                    yield line
                await asyncio.sleep(0 if chunk else _LOOK_SECONDS if grows else 0)

    def _rotated(self, place: Mapping[str, Any]) -> list[Path]:
        """The file of a place and those after it, if it was rotated: in its folder, under longer names."""
        if not place.get("at"):
            return []
        name, beside = self._path.name, list[tuple[int, Path]]()
        for path in self._path.parent.glob(f"{glob.escape(name)}?*"):
            with suppress(OSError):
                beside.append((path.stat().st_mtime_ns, path))
        moved = [path for _, path in sorted(beside)]
        for path in (self._path, *moved):
            with suppress(OSError), _opened(path) as file:
                if _left_at(file, place)[0]:
                    later = [] if path == self._path else moved[moved.index(path) + 1 :]
                    own = [each for each in later if _ROTATED.fullmatch(each.name.removeprefix(name))]
                    return [] if path == self._path else [path, *own]
        gone = "is not the file that was read before, and that is not beside it: lines may be missing"
        sys.stderr.write(f"rlstm: {self.name} {gone}\n")
        return []

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


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to read, one of gzip's unpacked. Raises OSError for one that is damaged, too."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        try:
            yield file
        except (EOFError, zlib.error) as error:
            raise OSError(errno.EIO, f"is damaged, or still being written: {error}", str(path)) from error


def _left_at(file: IO[bytes], place: Mapping[str, Any]) -> tuple[int, bytes]:
    """Where a file was left, 0 if the place is another's; and how it begins."""
    at, head = place.get("at", 0), file.read(_HEAD_BYTES)
    same = _digest(head[:at]) == place.get("head") and file.seek(0, os.SEEK_END) >= at
    return at if same else 0, head


def _digest(head: bytes) -> str:
    return hashlib.blake2b(head, digest_size=8).hexdigest()
