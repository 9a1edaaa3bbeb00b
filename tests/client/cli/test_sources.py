"""Where lines come from: cut out of what comes, and found again in a file."""

import asyncio
import gzip
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_client.cli.inputs import How
from rlstm_client.cli.sources import MOST_BYTES, Cutter, File, Line
from rlstm_client.texts import TextError

ENCODINGS = ["utf-8-sig", "utf-16", "utf-32"]


def cut(data: bytes, size: int, **options: Any) -> list[Line]:
    """The lines of bytes that come in parts of a size."""
    cutter = Cutter(**options)
    lines = [line for at in range(0, len(data), size) for line in cutter.feed(data[at : at + size])]
    return [*lines, *cutter.feed(b"", last=True)]


@given(st.lists(st.sampled_from([b"a", b"\xff", "é".encode(), b"\r", b"\n", b"\r\n"])), st.integers(1, 9))
def test_lines_are_the_text_however_it_comes(pieces: list[bytes], size: int) -> None:
    """Each with its bytes; what is no text is replaced, and the last line may have no end."""
    data = b"".join(pieces)
    lines = cut(data, size)
    whole = re.split(rb"\r\n|\r|\n", data)
    whole = whole if whole[-1] else whole[:-1]

    assert [line.text for line in lines] == [line.decode("utf-8", "replace") for line in whole]
    assert sum(line.size for line in lines) == len(data)


@given(st.text("a\n\rÜ\u0a0d\u0d0a🙂", min_size=1, max_size=9), st.sampled_from(ENCODINGS), st.integers(1, 9))
def test_lines_of_every_encoding(text: str, encoding: str, size: int) -> None:
    """A mark tells it; a byte that looks like a line end is none in the middle of a unit."""
    lines = cut(text.encode(encoding), size)
    whole = re.split(r"\r\n|\r|\n", text)

    assert [line.text for line in lines] == (whole if whole[-1] else whole[:-1])
    assert sum(line.size for line in lines) == len(text.encode(encoding))


def test_a_line_that_is_no_text_may_be_refused() -> None:
    """With its place, after the lines before it."""
    lines = Cutter("log", How()).feed(b"one\nt\xff\n")
    assert next(lines) == Line("one", 4)
    with pytest.raises(TextError, match=r"log is not UTF-8 text .byte 5."):
        next(lines)


def test_a_line_without_end_is_bounded() -> None:
    """64 MB in small parts: its beginning is kept, the rest is counted, and the line after it is read."""
    cutter, chunk = Cutter(), b"x" * 4096
    for _ in range(1 << 14):
        assert [*cutter.feed(chunk)] == []

    assert [*cutter.feed(b"\nnext\n")] == [Line("x" * MOST_BYTES, (1 << 26) + 1), Line("next", 5)]


async def read(
    path: Path, place: Mapping[str, Any], most: int = 10_000
) -> tuple[list[str], Mapping[str, Any]]:
    """The lines after a place, at most so many, and the place after them."""
    file, texts = File(path, follow=False), list[str]()
    async for line in file.lines(place):
        texts.append(line.text)
        if len(texts) == most:
            break
    return texts, file.place


async def test_a_file_goes_on_where_it_was_left(tmp_path: Path) -> None:
    """At any line, when it has grown too; another file of its name is read from its beginning."""
    path = tmp_path / "log"
    path.write_text("one\ntwo\n")
    first, place = await read(path, {}, most=1)
    path.write_text("one\ntwo\n" + "three\n" * 100)
    second, place = await read(path, place)
    third, _ = await read(path, place)
    assert (first, second, third) == (["one"], ["two", *["three"] * 100], [])

    for other in ("One\ntwo\n" + "three\n" * 200, "one\n", ""):
        path.write_text(other)
        assert (await read(path, place))[0] == other.splitlines()


async def test_a_file_that_was_rotated_meanwhile_is_read_to_its_end(tmp_path: Path, capsys: Any) -> None:
    """Before the one that has its name now, even if that is interrupted; it is said where it is gone."""
    path = tmp_path / "log"
    path.write_text("one\ntwo\nthree\n")
    _, place = await read(path, {}, most=1)
    (tmp_path / "log.lock").write_text("no log\n")
    path.rename(tmp_path / "log-20261130")
    path.write_text("new\n")
    assert (await read(path, place))[0] == ["two", "three", "new"]
    _, later = await read(path, place, most=2)
    assert (await read(path, later))[0] == ["new"]
    assert capsys.readouterr().err == ""
    (tmp_path / "log-20261130").unlink()
    assert (await read(path, place))[0] == ["new"]
    assert "lines may be missing" in capsys.readouterr().err


@pytest.mark.parametrize("packed", [False, True])
async def test_files_that_were_rotated_meanwhile_are_read_in_their_order(
    tmp_path: Path, packed: bool
) -> None:
    """That which was left, what came between, compressed too, and the one that has the name now."""
    path = tmp_path / "log"
    path.write_text("one\ntwo\n")
    _, place = await read(path, {}, most=1)
    for hour, text in ((3, "oldest\n"), (2, "one\ntwo\n"), (1, "three\nfour\n")):
        rotated = tmp_path / f"log.{hour}{'.gz' if packed else ''}"
        rotated.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
        os.utime(rotated, (10**9 - hour, 10**9 - hour))
    path.write_text("five\n")
    assert (await read(path, place))[0] == ["two", "three", "four", "five"]
    _, later = await read(path, place, most=2)
    assert (await read(path, later))[0] == ["four", "five"]


async def test_a_file_of_another_encoding_goes_on(tmp_path: Path) -> None:
    """Its mark tells it, wherever it is gone on with."""
    path = tmp_path / "log"
    path.write_bytes("é\r\nü\r\nö\r\n".encode("utf-16"))
    first, place = await read(path, {}, most=1)
    second, _ = await read(path, place)

    assert (first, second) == (["é"], ["ü", "ö"])


async def test_a_file_is_followed_as_it_grows_and_rotates(tmp_path: Path, monkeypatch: Any) -> None:
    """A line is read when it has its end; the rest of the old file comes before the new one."""
    monkeypatch.setattr("rlstm_client.cli.sources._LOOK_SECONDS", 0.01)
    path, texts = tmp_path / "log", asyncio.Queue[str]()
    path.write_text("one\ntw")

    async def follow() -> None:
        async for line in File(path, follow=True).lines({}):
            texts.put_nowait(line.text)

    following = asyncio.ensure_future(follow())
    assert await texts.get() == "one"
    await asyncio.sleep(0.05)
    assert texts.empty()
    with path.open("a") as file:
        file.write("o\nno end")
    assert await texts.get() == "two"
    path.rename(tmp_path / "log.1")
    await asyncio.sleep(0.05)
    path.write_text("new\n")
    assert [await texts.get(), await texts.get()] == ["no end", "new"]
    path.write_text("a\n")
    assert await texts.get() == "a"
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
