"""`rlstm watch` on the real application: each line is judged by those before it, wherever it was stopped."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlstm_client import AsyncClient
from rlstm_client.cli.exits import CommandError
from rlstm_client.cli.judging import Judge
from rlstm_client.cli.kept import Kept
from rlstm_client.cli.sources import File
from rlstm_client.cli.watch import READ, Watch

USUAL = [f"12:00:{number % 60:02} opened by {'ab'[number % 2]}" for number in range(96)]
STRANGE = "~~~ ÄÖÜ ÄÖÜ ~~~"
WRONG = ["12:00:000000 opened by a", "opened 12:00:02 by a"]
LINES = [*USUAL[:50], STRANGE, *USUAL[50:], STRANGE, *WRONG, *USUAL[:3], STRANGE]
ALARMS = [51, 98, 99, 100, 104]

Told = Sequence[Mapping[str, Any]]


async def watched(url: str, path: Path, name: str | None, *, every: bool = False, **options: Any) -> Told:
    """What a watch says of a log, from where it was left."""
    told: list[Mapping[str, Any]] = []
    judge = Judge(**{"threshold": 0.6, "warm_up": 12, **options})
    log = Watch(File(path, follow=False), judge, Kept(name=name, adapt="memory"))

    async def tell(line: Mapping[str, Any]) -> None:
        told.append(line)

    async with (
        AsyncClient(url) as client,
        log.opened(client, client) as watch,
    ):
        await watch.run(tell, every=every)
    return told


def written(path: Path, lines: Sequence[str]) -> Path:
    """A log of these lines."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


async def test_strange_lines_are_told_and_teach_nothing(url: str, tmp_path: Path) -> None:
    """Those alone; each with what it was judged by. The next time it is as strange."""
    told = await watched(url, written(tmp_path / "log", LINES), None)

    assert [(line["number"], line["text"]) for line in told] == [(n, LINES[n - 1]) for n in ALARMS]
    assert [line["reason"] for line in told] == ["score", "score", "field", "order", "score"]
    first = told[0]
    assert first["score"] == pytest.approx(first["bits"] / (8 + first["static_bits"]), abs=1e-4)
    assert first["score"] > 0.6
    assert [line["count"] for line in told] == [1, 2, 1, 1, 3]
    assert len({line["template"] for line in told}) == 3
    assert {first["text"][span["start"] : span["end"]] for span in first["spans"]} == {*STRANGE.split()}
    assert sum(span["bits"] for span in first["spans"]) < first["bits"]
    assert (first["log"], first["bytes"]) == (str(tmp_path / "log"), len(STRANGE.encode()) + 1)


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 10])
async def test_the_same_alarms_when_it_is_stopped_at_any_line(url: str, tmp_path: Path, step: int) -> None:
    """What a watch knows is in the session: one that begins anew at each line says what another one says."""
    whole = await watched(url, written(tmp_path / "log", LINES), f"whole{step}", every=True)
    parts = list[Mapping[str, Any]]()
    for end in range(step, len(LINES) + step, step):
        parts += await watched(url, written(tmp_path / "log", LINES[:end]), f"parts{step}", every=True)

    assert parts == whole
    assert [line["number"] for line in parts if line["reason"]] == ALARMS
    async with AsyncClient(url) as client:
        notes = [await (await client.sessions.find(f"{name}{step}")).note() for name in ("whole", "parts")]  # type: ignore[union-attr]
    assert notes[0].note == notes[1].note


async def test_only_what_no_template_explains_is_read(url: str, tmp_path: Path) -> None:
    """Of a line of a known template nothing is asked; the session has read the others, but for alarms."""
    told = await watched(url, written(tmp_path / "log", LINES), "read", every=True)
    async with AsyncClient(url) as client:
        session = await client.sessions.find("read")
        assert session is not None
        info = await session.info()
    asked = [line["text"] for line in told if "bits" in line]

    assert asked == [*USUAL[:2], STRANGE, STRANGE, STRANGE]
    assert info.totals.bytes == sum(len(line) + 1 for line in USUAL[:2])


async def test_a_long_line_is_read_and_told_in_part(url: str, tmp_path: Path) -> None:
    """Of 1 MB the beginning; its length is said."""
    lines = [*USUAL[:20], "é" * 500_000, *USUAL[:2]]
    (line,) = await watched(url, written(tmp_path / "log", lines), None)

    assert (line["number"], line["text"], line["bytes"]) == (21, "é" * READ, 1_000_001)
    assert len(json.dumps(line)) < 8_000


async def test_a_session_that_cannot_be_watched(url: str, tmp_path: Path) -> None:
    """One without a frozen baseline, or whose note is another's: said before a line is read."""
    async with AsyncClient(url) as client:
        await client.sessions.create(name="nobase", adaptation={"static": False, "experts": 1})
        other = await client.sessions.create(name="noted")
        await other.update(note="mine")
    for name, said in (("nobase", "frozen baseline"), ("noted", "note")):
        with pytest.raises(CommandError, match=said):
            await watched(url, written(tmp_path / "log", LINES), name)


async def test_a_session_ends_with_a_watch_that_does_not_keep_it(url: str, tmp_path: Path) -> None:
    """Without a name; with one it stays."""
    async with AsyncClient(url) as client:
        before = {info.id async for info in client.sessions.list()}
        await watched(url, written(tmp_path / "log", LINES[:3]), None)
        assert {info.id async for info in client.sessions.list()} == before
        await watched(url, tmp_path / "log", "kept")
        assert await client.sessions.find("kept") is not None
