"""Snapshots, forks and files of both clients."""

import io
from pathlib import Path
from typing import Any

import pytest

from rlstm_client import errors


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
