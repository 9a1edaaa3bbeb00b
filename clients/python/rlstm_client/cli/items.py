"""What `rlstm surprisal` reads: texts, from files of text and from tables of sentences or of words."""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, NamedTuple

from rlstm_client import texts
from rlstm_client.cli.exits import CommandError
from rlstm_client.cli.inputs import How

Form = Literal["text", "lines", "csv", "tsv"]
"""A file's: a text, a text in each line, or a table."""

Columns = Mapping[str, str]

WORD: Final = re.compile(r"\S+")
KENLM_WORD: Final = re.compile(r"[^\0\t\n\v\f\r ]+")  # KenLM's own spaces: no others end a word
SENTENCES: Final = ("sentence", "text")
"""Columns with a text in each row; in a column `word` each row has one of a text's words."""

_WORD: Final = "word"
_LONGEST_CELL: Final = 2**31 - 1
_TEXT_BORDERS: Final = ("item", "condition", "story", "sentence", "text")
"""Where one of these columns has another value than in the row before, a table of words begins a new text."""


@dataclass(frozen=True)
class Item:
    """A text to be read, without its line end.

    spans    of its words, in code points
    columns  what the table says beside: of each word
    regions  that its words belong to, by number from 1, or by the table's column `region`
    """

    text: str
    spans: Sequence[tuple[int, int]]
    columns: Sequence[Columns]
    regions: Sequence[str]

    @classmethod
    def of(cls, text: str, columns: Columns, mark: str | None, word: re.Pattern[str] = WORD) -> "Item":
        """A text in which a mark may part regions; the mark is not read."""
        parts = [part.strip() for part in text.split(mark)] if mark else [text]
        whole = " ".join(filter(None, parts)) if mark else text
        borders = [0]
        for part in filter(None, parts):
            borders.append(borders[-1] + len(part) + 1)
        spans = [match.span() for match in word.finditer(whole)]
        inside = [sum(border <= start for border in borders[1:]) + 1 for start, _ in spans]
        return cls(whole, spans, [columns] * len(spans), list(map(str, inside)) if mark else [])

    @classmethod
    def of_words(cls, rows: Sequence[Columns], column: str) -> "Item":
        """A text of words, a row each."""
        words = [row[column] for row in rows]
        ends = [0]
        for word in words:
            ends.append(ends[-1] + len(word) + 1)
        spans = [(start, end - 1) for start, end in pairwise(ends)]
        return cls(" ".join(words), spans, rows, [row["region"] for row in rows if "region" in row])


class Read(NamedTuple):
    """What a file holds: its texts, and the columns that go with them; those of ``same`` are ours as well."""

    header: Sequence[str]
    items: Sequence[Item]
    same: Set[str] = frozenset()


def read_items(
    file: Path,
    how: How,
    form: Form | Literal["sentences"] | None = None,
    *,
    column: str | None = None,
    mark: str | None = None,
) -> Read:
    """Read the texts of a file; ``sentences`` are its lines, blank ones too, with words as KenLM has them.

    Without ``form`` the file's name tells it.

    Raises:
        CommandError: it has no words, or is no table; the row is named.
        TextError, OSError: it cannot be read.
    """
    parts, name = how.read(file), str(file)
    if form == "sentences":
        lines = [line.removesuffix("\n") for line in texts.lines(parts)]
        return Read([], [Item.of(line, {}, None, KENLM_WORD) for line in lines])
    known: Mapping[str, Form] = {".csv": "csv", ".tsv": "tsv"}
    form = form or known.get(file.suffix.lower(), "csv" if column else "text")
    if form in ("csv", "tsv"):
        header, rows = read_table(parts, name, "\t" if form == "tsv" else ",")
        found = _column(header, column, file)
        same = {_WORD, "region"} if found == _WORD else set[str]()
        return Read(header, list(_items_of(rows, found, mark, file)), same)
    named = {"file": name}
    if form == "lines":
        numbered = enumerate(texts.lines(parts), 1)
        items = [Item.of(line.strip(), named | {"line": str(number)}, mark) for number, line in numbered]
        items = [item for item in items if item.spans]
        header = ["file", "line"]
    else:
        whole = Item.of("".join(texts.lines(parts)).rstrip(), named, mark)
        items, header = ([whole] if whole.spans else []), ["file"]
    if not items:
        raise CommandError(f"{file} holds no word")
    return Read(header, items)


def read_table(
    parts: Iterator[str], name: str, delimiter: str
) -> tuple[list[str], list[tuple[int, Columns]]]:
    """Read a table whole: its header, and its rows with the lines that they end in.

    Where a comma is no delimiter, as in the tables of many countries, a semicolon or a tab is. Rows without
    a word, which spreadsheets leave behind, are none.

    Raises:
        CommandError: it is none; the row is named.
    """
    csv.field_size_limit(_LONGEST_CELL)
    text = "".join(parts)
    first = texts.LINE_END.split(text, 1)[0]
    delimiter = next((mark for mark in (delimiter, ";", "\t") if mark in first), delimiter)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        header = next(reader, [])
        if not header or len({*header}) < len(header):
            raise CommandError(f"{name}: the first row has to name each column once")
        rows: list[tuple[int, Columns]] = []
        for cells in reader:
            if not any(map(str.strip, cells)):
                continue
            if len(cells) != len(header):
                found = f"{len(cells)} cells, not the {len(header)} of the first row"
                raise CommandError(f"{name}, row {reader.line_num}: {found}")
            rows.append((reader.line_num, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise CommandError(f"{name}, row {reader.line_num}: {error}") from error
    if not rows:
        raise CommandError(f"{name} has no rows")
    return header, rows


def _column(header: Sequence[str], asked: str | None, file: Path) -> str:
    """The column that is read."""
    wanted = [asked] if asked is not None else [*SENTENCES, _WORD]
    found = next((name for wish in wanted for name in header if name == wish), None)
    if found is None:
        names = " or ".join(wanted)
        raise CommandError(f"{file} has no column {names}: give one of {', '.join(header)} as --column")
    return found


def _items_of(
    rows: Sequence[tuple[int, Columns]], column: str, mark: str | None, file: Path
) -> Iterator[Item]:
    for number, row in rows:
        if not row[column].strip():
            raise CommandError(f"{file}, row {number}: no word in the column {column}")
    if column != _WORD:
        yield from (Item.of(texts.LINE_END.sub("\n", row[column]).strip(), row, mark) for _, row in rows)
        return
    text: list[Columns] = []
    for _, row in rows:
        if text and any(row.get(name) != text[-1].get(name) for name in _TEXT_BORDERS):
            yield Item.of_words(text, column)
            text = []
        text.append({**row, column: row[column].strip()})
    yield Item.of_words(text, column)
