"""Snapshots, forks and files of both clients."""

import io
import os
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rlstm_client import errors
from rlstm_client._files import ArrivingFile

OCTETS = {"content-type": "application/octet-stream"}
MEGABYTE = bytes(2**20)


class Parts(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that comes in parts, and may break off."""

    def __init__(self, parts: list[bytes], cut: bool) -> None:
        self._parts, self._cut = parts, cut

    def __iter__(self) -> Iterator[bytes]:
        """Give the parts."""
        yield from self._parts
        if self._cut:
            raise httpx.ReadError("the connection was cut")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Give the parts."""
        for part in self:
            yield part


def sent(*parts: bytes, cut: bool = False) -> Any:
    """An answer with a file of these parts."""
    return lambda _: httpx.Response(200, headers=OCTETS, stream=Parts(list(parts), cut))


def test_snapshots(client: Any) -> None:
    """A version is named, listed, gone back to, and forgotten."""
    session = client.sessions.create()
    session.append("abc")
    assert session.snapshot("here").position == 3
    session.append("def")
    assert [snapshot.name for snapshot in session.snapshots()] == ["here"]
    assert session.restore("here").position == 3
    session.drop_snapshot("here")
    with pytest.raises(errors.NotFoundError):
        session.restore("here")


def test_no_path_is_sent_as_a_name(client: Any, server: Any) -> None:
    """A name that no snapshot can have never becomes part of an address."""
    session = client.sessions.create()
    sent = len(server.requests)
    with pytest.raises(errors.RequestError):
        session.drop_snapshot("../s2")
    assert len(server.requests) == sent


def test_a_fork_is_a_session(client: Any) -> None:
    """It goes on by itself, and knows where it came from."""
    session = client.sessions.create()
    session.append("abc")
    fork = session.fork(name="twin")
    fork.append("d")
    assert (fork.info().position, session.info().position) == (4, 3)
    assert fork.created.forked_from.session == session.id


def test_an_update(client: Any) -> None:
    """Only what was given is sent."""
    assert client.sessions.create().update(learning=False).learning is False


@pytest.mark.parametrize("opened", [False, True])
def test_a_session_travels_as_a_file(client: Any, tmp_path: Path, opened: bool) -> None:
    """To a path or an open file, and from there into a new session."""
    session, path = client.sessions.create(), tmp_path / "session.rlstm"
    session.append("abc")
    file: Any = io.BytesIO() if opened else path
    session.export(file)
    if opened:
        file.seek(0)
    assert client.sessions.import_session(file).info().position == 3


def test_a_failed_export_leaves_the_file_as_it_was(client: Any, server: Any, tmp_path: Path) -> None:
    """Nothing is written before the whole session has arrived, and nothing left behind."""
    path = tmp_path / "session.rlstm"
    path.write_bytes(b"old")
    session = client.sessions.create()
    server.refuse(409, "export_disabled")
    with pytest.raises(errors.ExportDisabledError):
        session.export(path)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"old"]


def test_a_file_has_its_name_once_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash the name leads to the old file or to the whole new one."""
    path = tmp_path / "session.rlstm"
    done: list[Any] = []
    sync, rename = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        done.append(os.fstat(descriptor).st_size)
        sync(descriptor)

    def renamed(partial: Path, to: Path) -> Path:
        done.append("renamed")
        return rename(partial, to)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    with ArrivingFile(path) as file:
        file.partial.write(b"whole")
        file.keep()
    assert done == [5, "renamed"]


def test_a_file_that_breaks_off_is_fetched_again(client: Any, server: Any, tmp_path: Path) -> None:
    """Nothing of the first part stays in what is written."""
    path = tmp_path / "session.rlstm"
    session = client.sessions.create()
    server.faults.extend([sent(b"a longer part", cut=True), sent(b"the ", b"file")])
    session.export(path)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"the file"]


@pytest.mark.parametrize("opened", [False, True])
def test_a_file_that_never_comes_whole_is_not_written(
    client: Any, server: Any, tmp_path: Path, opened: bool
) -> None:
    """Neither to a path, nor into an open file."""
    path, file = tmp_path / "session.rlstm", io.BytesIO()
    path.write_bytes(b"old")
    session = client.sessions.create()
    server.faults.extend([sent(b"part", cut=True)] * 4)
    with pytest.raises(errors.ConnectionLostError):
        session.export(file if opened else path)
    assert file.getvalue() == b""
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"old"]


def test_somebody_elses_page_is_no_file(client: Any, server: Any, tmp_path: Path) -> None:
    """A proxy's page with status 200 is not kept as a session."""
    session = client.sessions.create()
    server.faults.append(lambda _: httpx.Response(200, headers={"content-type": "text/html"}, content=b"hi"))
    with pytest.raises(errors.UnreadableAnswerError):
        session.export(tmp_path / "session.rlstm")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("opened", [False, True])
def test_a_large_file_is_not_held_in_memory(client: Any, server: Any, tmp_path: Path, opened: bool) -> None:
    """64 MB pass through a few."""
    path = tmp_path / "session.rlstm"
    session = client.sessions.create()
    server.faults.append(sent(*[MEGABYTE] * 64))
    tracemalloc.start()
    if opened:
        with path.open("wb") as file:
            session.export(file)
    else:
        session.export(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size == 64 * 2**20
    assert peak < 8 * 2**20


@pytest.mark.parametrize("verb", ["fork", "snapshot", "restore", "update", "import"])
def test_a_lost_answer_is_asked_for_again_with_the_same_key(client: Any, server: Any, verb: str) -> None:
    """The repetition is word for word the same, so that it takes effect once."""
    session = client.sessions.create()
    session.snapshot("here")
    calls = {
        "fork": session.fork,
        "snapshot": lambda: session.snapshot("there"),
        "restore": lambda: session.restore("here"),
        "update": lambda: session.update(ttl_seconds=9),
        "import": lambda: client.sessions.import_session(io.BytesIO(b"file abc")),
    }
    made = len(server.texts)
    server.lose("answer")
    calls[verb]()
    first, again = server.requests[-2:]
    assert first.headers["idempotency-key"] == again.headers["idempotency-key"]
    assert (first.url, first.content) == (again.url, again.content)
    assert len(server.texts) == made + (verb in {"fork", "import"})


def test_a_lost_delete_is_not_called_harmless(client: Any, server: Any) -> None:
    """It may have been done: nobody is told that it was not."""
    session = client.sessions.create()
    for _ in range(4):
        server.lose("answer")
    with pytest.raises(errors.ConnectionLostError) as caught:
        session.delete()
    assert caught.value.applied == "unknown"
