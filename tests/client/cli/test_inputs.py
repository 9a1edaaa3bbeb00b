"""Where the commands take text from."""

import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_client.cli.exits import CommandError
from rlstm_client.cli.inputs import decoded, text_as_it_comes, whole_text


def stream(data: bytes, buffer_size: int = 8192) -> io.BufferedReader:
    return io.BufferedReader(io.BytesIO(data), buffer_size)  # type: ignore[arg-type]


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(1, 7))
def test_text_may_come_in_any_parts(text: str, size: int) -> None:
    """However the bytes are cut, the characters are whole and none is lost."""
    assert "".join(decoded(stream(text.encode(), size), "x")) == text


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(1, 7))
def test_bytes_that_are_no_text_are_named_with_their_place(text: str, size: int) -> None:
    """The offset of the first bad byte, from the start of the input, however it is cut."""
    data = text.encode() + b"\xff" + b"more"
    with pytest.raises(CommandError, match=f"x is not UTF-8 text .byte {len(text.encode()):,}."):
        list(decoded(stream(data, size), "x"))


def test_text_that_ends_inside_a_character() -> None:
    """A cut-off character at the end is no text either."""
    with pytest.raises(CommandError, match="byte 1"):
        list(decoded(stream("aé".encode()[:-1]), "x"))


def test_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    """Line ends are part of the text."""
    file = tmp_path / "text"
    file.write_bytes(b"a\r\nb\n")

    assert whole_text(None, file) == "a\r\nb\n"
    assert whole_text("given", None) == "given"


def test_standard_input_comes_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is there is handed on before the rest has come."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as stdin, os.fdopen(writer, "wb", buffering=0) as source:
        monkeypatch.setattr("sys.stdin", stdin)
        parts = text_as_it_comes(None, None)
        source.write(b"first")
        assert next(parts) == "first"
        source.write(b"second")
        assert next(parts) == "second"
        source.close()
        assert list(parts) == []


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    """The operating system's reason is passed on with the name."""
    with pytest.raises(CommandError, match="Is a directory"):
        whole_text(None, tmp_path)
