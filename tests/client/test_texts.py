"""Bytes become text."""

import codecs
import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_client import texts
from rlstm_client.texts import TextError, decoded, lines, read, utf8

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff"))
MARKED = ["utf-8-sig", "utf-16", "utf-32"]


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@given(TEXTS, st.sampled_from(["utf-8", *MARKED]), st.integers(1, 7))
def test_text_may_come_in_any_parts(text: str, encoding: str, size: int) -> None:
    """However the bytes are cut no character is lost, and a mark tells the encoding and is no character."""
    assert "".join(decoded(cut(text.encode(encoding), size), "x")) == text


@given(TEXTS, st.integers(1, 7))
def test_bytes_that_are_no_text_are_named_with_their_place(text: str, size: int) -> None:
    """The first of them; what stands before comes before the error. They may be replaced instead."""
    before, data = text.encode(), text.encode() + b"\xff" + b"more"
    found = list[str]()
    with pytest.raises(TextError, match=rf"x is not UTF-8 text \(byte {len(before):,}\)"):
        found.extend(decoded(cut(data, size), "x"))
    assert "".join(found) == text
    assert "".join(decoded(cut(data, size), "x", invalid="replace")) == text + "\ufffdmore"


@pytest.mark.parametrize(
    ("data", "encoding", "said"),
    [
        ("aé".encode()[:-1], None, "not UTF-8 text .byte 1."),
        ("no mark".encode("utf-16-be"), None, "--encoding utf-16-be"),
        (b"\xff\xfea", None, "not UTF-16-LE text .byte 2."),
        (b"a", "utf-9", "no encoding 'utf-9'"),
        (b"a", "hex", "no encoding 'hex'"),
    ],
)
def test_what_is_no_text(data: bytes, encoding: str | None, said: str) -> None:
    """A cut character, units of two bytes that no mark tells, an encoding that nobody knows."""
    with pytest.raises(TextError, match=said):
        list(decoded([data], "x", encoding))


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [("latin-1", b""), ("utf-16", b""), ("utf-16", codecs.BOM_UTF16_BE), ("utf-8", codecs.BOM_UTF8)],
)
def test_an_encoding_may_be_told(encoding: str, mark: bytes) -> None:
    """With a mark or without."""
    order = "-be" if mark == codecs.BOM_UTF16_BE else "-le"
    data = "né".encode(encoding + order if encoding == "utf-16" else encoding)
    assert "".join(decoded([mark + data], "x", encoding)) == "né"


@given(st.lists(st.sampled_from(["a", "b\x0b\u2028", "\r", "\n", "\r\n"]), max_size=8), st.integers(1, 3))
def test_lines_end_with_any_line_end(pieces: list[str], size: int) -> None:
    """LF, CRLF and CR, wherever the text is cut, and nothing else; the last line may have none."""
    text = "".join(pieces)
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    whole = io.StringIO(text, newline=None).read()
    assert list(lines(parts)) == [line for line in whole.split("\n")[:-1] for line in [line + "\n"]] + (
        [rest] if (rest := whole.split("\n")[-1]) else []
    )


def test_a_line_is_there_as_soon_as_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is waited for behind a CR; a line that never ends comes in parts, which is said once."""
    parts = iter(["one\r", "\ntwo", "x" * texts.LONGEST_LINE, "y\n"])
    found = lines(parts)
    assert next(found) == "one\n"
    assert next(parts) == "\ntwo"
    long = "a" * texts.LONGEST_LINE
    assert list(lines([long, "b", long, "b", "c\n"])) == [long + "b", long + "b", "c\n"]
    assert capsys.readouterr().err.count("in parts") == 1


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (codecs.BOM_UTF8 + b"a\r\n", b"a\r\n"),
        ("né\n".encode("utf-16"), "né\n".encode()),
        (b"a\rb\r", b"a\nb\n"),
        (b"a\r\nb\r", b"a\r\nb\r"),
        (b"\xe9", b"\xe9"),
    ],
)
def test_a_corpus_is_utf8(raw: bytes, text: bytes) -> None:
    """Without a mark, with line ends; bytes that are no text stay as they are."""
    assert utf8(raw, "x") == text


def test_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    """Line ends are part of the text; what cannot be read is the operating system's error."""
    file = tmp_path / "text"
    file.write_bytes(b"a\r\nb\n")

    assert "".join(read(file)) == "a\r\nb\n"
    with pytest.raises(IsADirectoryError):
        list(read(tmp_path))


def test_standard_input_comes_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is there is handed on before the rest has come."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as stdin, os.fdopen(writer, "wb", buffering=0) as source:
        monkeypatch.setattr("sys.stdin", stdin)
        parts = read(Path("-"))
        for part in ("first", "second"):
            source.write(part.encode())
            assert next(parts) == part
        source.close()
        assert list(parts) == []
