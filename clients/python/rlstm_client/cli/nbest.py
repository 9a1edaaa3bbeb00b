"""N-best lists, in the formats of recognisers and in ours.

    ours    JSON lines: {"id", "candidates": [{"text", "given" or "score"}, …], "reference"}
    ESPnet  a folder of 1best_recog, 2best_recog, …, each with text, score, token: "UTTERANCE …" a line
    Kaldi   a folder with words_text or text, and costs: "UTTERANCE-N …" a line
    NeMo    NAME.tsv: a candidate's text and score a line, equally many for each utterance

`Format` reads a place; what it read is written in another order in the same form.
"""

import json
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rlstm_client import texts
from rlstm_client._http import ArrivingFile
from rlstm_client.cli import output
from rlstm_client.cli.exits import CommandError
from rlstm_client.cli.inputs import How

MOST_CANDIDATES: Final = 256
_AS_MARKED: Final = How()
_GREATEST: Final = sys.float_info.max
_FIRST: Final = "1best_recog"
_KALDI_TEXTS: Final = ("words_text", "text")
_KALDI_COSTS: Final = (("lm_cost", "lmwt.withlm", "lmwt", "lmwt.nolm"), ("ac_cost", "acwt"))
_ALSO: Final = {"espnet": ("token", "token_int"), "kaldi": ("words",)}

Table = Mapping[str, tuple[str, str]]
"""Lines "KEY …" by their keys: where each stands, and what it says."""

Order = Sequence[int]
"""A list's candidates, the best first, by their places."""


@dataclass(frozen=True)
class NBest:
    """What was heard, as a recogniser's candidates.

    texts      at least one; a text may be empty
    given      the recogniser's own score of each, which is greater for the better one
    reference  what was said, where the list tells it
    lines      of each candidate, what its files say, by their names
    """

    id: str
    texts: Sequence[str]
    given: Sequence[float]
    reference: str | None = None
    lines: Sequence[Mapping[str, str]] = ()

    @property
    def first_pass(self) -> int:
        """The recogniser's own choice: the highest score, of equal ones the first."""
        return self.given.index(max(self.given))


@dataclass(frozen=True)
class Format:
    """How lists are read: of NeMo's ``beam_size`` lines each; Kaldi's acoustic costs by their scale."""

    place: Path
    beam_size: int | None = None
    acoustic_scale: float = 1.0
    how: How = _AS_MARKED
    kind: str = field(init=False)

    def __post_init__(self) -> None:
        if self.place.is_dir():
            kind = "espnet" if (self.place / _FIRST).is_dir() else "kaldi"
        else:
            kind = "nemo" if self.place.suffix == ".tsv" else "json"
        object.__setattr__(self, "kind", kind)

    def read(self) -> list[NBest]:
        """Read all lists, so that a bad line is told before anything is scored.

        Raises:
            CommandError: a line is wrong; the message says which, and repeats nothing of it.
            OSError, TextError: a file cannot be read, or is no text.
        """
        lists = {"json": self._json, "nemo": self._nemo, "espnet": self._espnet, "kaldi": self._kaldi}[
            self.kind
        ]()
        found = dict[str, NBest]()
        for one in lists:
            if one.id in found:
                raise CommandError(f"{self.place}: there are two lists {one.id!r}")
            if len(one.texts) > MOST_CANDIDATES:
                raise CommandError(f"{self.place}: {one.id} has more than {MOST_CANDIDATES} candidates")
            found[one.id] = one
        if not found:
            raise CommandError(f"{self.place}: there is no list in it")
        return list(found.values())

    def check(self, to: Path, *, force: bool = False) -> None:
        """Refuse a place that the lists could not be written to, before anything is done.

        Raises:
            CommandError: something is there, which a folder never replaces.
            OSError: it cannot be written.
        """
        if self._is_folder and to.exists():
            raise CommandError(f"{to}: is there already")
        output.check_free(to, force=force)
        output.check_place(to)

    def write(
        self, to: Path, lists: Sequence[NBest], orders: Sequence[Order], rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Write the lists' own lines, the best first; of JSON lines `rows`. All of it, or nothing."""
        written = dict[str, list[str]]()
        if self.kind == "json":
            written[""] = [json.dumps(row) + "\n" for row in rows]
        for one, order in zip(lists, orders, strict=True):
            for rank, index in enumerate(order, 1):
                for name, line in one.lines[index].items() if one.lines else ():
                    written.setdefault(self._file(name, rank), []).append(self._line(one.id, rank, line))
        if not self._is_folder:
            with ArrivingFile(to) as file:
                file.partial.write("".join(written[""]).encode())
                file.keep()
            return
        beside = Path(tempfile.mkdtemp(prefix=f".{to.name}.", dir=to.parent))
        try:
            for name, lines in written.items():
                (beside / name).parent.mkdir(exist_ok=True)
                (beside / name).write_text("".join(lines), encoding="utf-8")
            beside.chmod(0o755)
            beside.replace(to)
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    @property
    def _is_folder(self) -> bool:
        return self.kind in ("espnet", "kaldi")

    def _file(self, name: str, rank: int) -> str:
        return f"{rank}best_recog/{name}" if self.kind == "espnet" else name

    def _line(self, utterance: str, rank: int, line: str) -> str:
        key = {"espnet": f"{utterance} ", "kaldi": f"{utterance}-{rank} "}.get(self.kind, "")
        return f"{key}{line}".rstrip(" ") + "\n"

    def _json(self) -> Iterator[NBest]:
        for number, (where, line) in enumerate(_lines(self.place, self.how), 1):
            yield _from_json(line, where, str(number))

    def _nemo(self) -> Iterator[NBest]:
        size = self.beam_size
        if size is None:
            raise CommandError(f"{self.place}: give --beam-size, the lines of each utterance")
        rows = [(where, line.split("\t"), line) for where, line in _lines(self.place, self.how)]
        if len(rows) % size:
            raise CommandError(f"{self.place}: {len(rows)} lines are no multiple of --beam-size {size}")
        for row in rows:
            if len(row[1]) < 2:
                raise CommandError(f"{row[0]}: there has to be a text, a tab, and a score")
        for start in range(0, len(rows), size):
            own = rows[start : start + size]
            candidates = [text for _, (text, *_), _ in own]
            scores = [_number(columns[1], where) for where, columns, _ in own]
            lines = [{"": line} for _, _, line in own]
            yield NBest(str(start // size + 1), candidates, scores, lines=lines)

    def _espnet(self) -> Iterator[NBest]:
        folders = list[Path]()
        while (folder := self.place / f"{len(folders) + 1}best_recog").is_dir():
            folders.append(folder)
        tables = [
            {name: _table(folder / name, self.how) for name in ("text", "score", *_ALSO["espnet"])}
            for folder in folders
        ]
        for utterance in {**tables[0]["score"], **tables[0]["text"]}:
            own = [one for one in tables if utterance in one["score"] or utterance in one["text"]]
            lines = [
                {name: rows[utterance][1] for name, rows in one.items() if utterance in rows} for one in own
            ]
            scores = [self._score(one["score"], utterance) for one in own]
            yield NBest(utterance, [line.get("text", "") for line in lines], scores, lines=lines)

    def _score(self, rows: Table, key: str) -> float:
        if key not in rows:
            raise CommandError(f"{self.place}: {key} has a candidate without a score")
        where, said = rows[key]
        return _number(said, where)

    def _kaldi(self) -> Iterator[NBest]:
        names = [name for name in _KALDI_TEXTS if (self.place / name).is_file()][:1]
        if not names:
            raise CommandError(f"{self.place}: there is no {_FIRST}, no words_text and no text")
        costs = {
            name: scale
            for group, scale in zip(_KALDI_COSTS, (1.0, self.acoustic_scale), strict=True)
            for name in [name for name in group if (self.place / name).is_file()][:1]
        }
        tables = {name: _table(self.place / name, self.how) for name in (*names, *costs, *_ALSO["kaldi"])}
        lists = dict[str, list[tuple[str, float, dict[str, str]]]]()
        for key, (where, text) in tables[names[0]].items():
            utterance, dash, rank = key.rpartition("-")
            if not (utterance and dash and rank.isdecimal()):
                raise CommandError(f"{where}: a line begins with UTTERANCE-N")
            total = 0.0
            for name, scale in costs.items():
                total += scale * self._score(tables[name], key)
            lines = {name: rows[key][1] for name, rows in tables.items() if key in rows}
            lists.setdefault(utterance, []).append((text, -total, lines))
        for utterance, own in lists.items():
            candidates, scores, lines_of = zip(*own, strict=True)
            yield NBest(utterance, candidates, scores, lines=lines_of)


def references(file: Path, how: How = _AS_MARKED) -> dict[str, str]:
    """What was said, by utterance: lines "UTTERANCE …", or JSON lines with a reference or a text.

    A JSON line without an id is of the utterance of its number, as in a manifest of NeMo's.

    Raises:
        CommandError: a line is neither, or nothing is there.
    """
    found = dict[str, str]()
    for number, (where, line) in enumerate(_lines(file, how), 1):
        if line.lstrip().startswith("{"):
            row = _row(line, where)
            said = row.get("reference", row.get("text"))
            if not isinstance(said, str):
                raise CommandError(f"{where}: there has to be a reference or a text")
            found[_id(row, where, str(number))] = said
        else:
            utterance, *said = line.split(maxsplit=1)
            found[utterance] = "".join(said).strip()
    if not found:
        raise CommandError(f"{file}: there is no reference in it")
    return found


def _table(file: Path, how: How) -> Table:
    """Read a table; a file that is not there has no line."""
    if not file.is_file():
        return {}
    found = dict[str, tuple[str, str]]()
    for where, line in _lines(file, how):
        key, *rest = line.split(maxsplit=1)
        if key in found:
            raise CommandError(f"{where}: {key!r} comes twice")
        found[key] = (where, "".join(rest).strip())
    return found


def _lines(file: Path, how: How) -> Iterator[tuple[str, str]]:
    """Yield the lines that are not blank, and where they stand."""
    for number, line in enumerate(texts.LINE_END.split("".join(how.read(file))), 1):
        if line.strip(" \r\n"):
            yield f"{file} line {number}", line


def _from_json(line: str, where: str, number: str) -> NBest:
    row = _row(line, where)
    candidates = row.get("candidates")
    if not isinstance(candidates, list) or not 1 <= len(candidates) <= MOST_CANDIDATES:
        raise CommandError(f"{where}: candidates has to be a list of 1 to {MOST_CANDIDATES}")
    for candidate in candidates:
        if not isinstance(candidate, dict) or not isinstance(candidate.get("text"), str):
            raise CommandError(f"{where}: a candidate needs a text")
        given = _given(candidate)
        if isinstance(given, bool) or not isinstance(given, int | float) or not abs(given) <= _GREATEST:
            raise CommandError(f"{where}: given has to be a finite number")
    reference = row.get("reference")
    if reference is not None and not isinstance(reference, str):
        raise CommandError(f"{where}: the reference has to be a text")
    own = [candidate["text"] for candidate in candidates]
    scores = [float(_given(candidate)) for candidate in candidates]
    return NBest(_id(row, where, number), own, scores, reference)


def _given(candidate: Mapping[str, Any]) -> Any:
    """The recogniser's score; in what we wrote `score` is ours, and `given` beside it."""
    return candidate.get("given", candidate.get("score", 0))


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise CommandError(f"{where} holds half a character, a lone surrogate") from error
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{where} is not JSON") from error
    if not isinstance(row, dict):
        raise CommandError(f"{where} is no JSON object")
    return row


def _id(row: Mapping[str, Any], where: str, number: str) -> str:
    given = row.get("id", number)
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise CommandError(f"{where}: the id has to be a text or a whole number")
    return str(given)


_TENSOR: Final = re.compile(r"tensor\(([^,)]*).*\)")


def _number(said: str, where: str) -> float:
    """Read a score; ESPnet may write it as torch prints a tensor."""
    found = _TENSOR.fullmatch(said.strip())
    try:
        value = float(found[1] if found else said)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise CommandError(f"{where}: the score has to be a finite number")
    return value
