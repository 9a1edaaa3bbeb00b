"""Where lines come from: cut out of what comes, and found again in a file."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_client.cli.sources import MOST_BYTES, Cutter, File, Line


@given(st.binary(max_size=60).map(lambda data: data.replace(b"x", b"\n")), st.integers(1, 9))
def test_lines_are_the_text_however_it_comes(data: bytes, size: int) -> None:
    """Each with its bytes; what is no text is replaced, and the last line may have no end."""
    cutter = Cutter()
    lines = [line for at in range(0, len(data), size) for line in cutter.feed(data[at : at + size])]
    lines += cutter.finish()
    whole = data.split(b"\n")
    whole = whole[:-1] if not whole[-1] else whole

    assert [line.text for line in lines] == [line.decode("utf-8", "replace").rstrip("\r") for line in whole]
    assert sum(line.size for line in lines) == len(data)


def test_a_line_without_end_is_bounded() -> None:
    """64 MB in small parts: its beginning is kept, the rest is counted, and the line after it is read."""
    cutter, chunk = Cutter(), b"x" * 4096
    for _ in range(1 << 14):
        assert cutter.feed(chunk) == []

    assert cutter.feed(b"\nnext\n") == [Line("x" * MOST_BYTES, (1 << 26) + 1), Line("next", 5)]


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
