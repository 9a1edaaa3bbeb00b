"""What the commands print: one JSON object, or tables for people. Text never carries terminal commands."""

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from tabulate import tabulate

from rlstm_client import EventStream, Session
from rlstm_client._http import ArrivingFile
from rlstm_client.cli.exits import CommandError, failures_told
from rlstm_client.models import (
    COLUMNS,
    Adaptation,
    Ancestor,
    Answer,
    AppendResult,
    Columns,
    Event,
    Generation,
    Ranking,
    ScoreResult,
    SessionPage,
    SessionTotals,
    SnapshotList,
    TokenEvent,
    to_json,
)

_MOST_TOKEN_CHARACTERS: Final = 24
_LISTED: Final = ("id", "name", "version", "position", "gain", "created_at", "expires_at")
_NOT_SHOWN: Final = {"extra", "fingerprint", "adaptation_fingerprint", "numerics", *COLUMNS, "top", "words"}


class Scored(NamedTuple):
    """A text, and what was found of it."""

    result: ScoreResult
    text: str


class Ranked(NamedTuple):
    """Candidates, and their ranking."""

    ranking: Ranking
    texts: Sequence[str]


def show(answer: object, *, as_json: bool) -> None:
    """Print what a command answers: as one JSON object, or for people."""
    told = answer.created if isinstance(answer, Session) else answer
    told = told[0] if isinstance(told, Scored | Ranked) else told
    if as_json and isinstance(told, Answer):
        print_json(told)
        return
    match answer:
        case str():
            write(answer + "\n")
        case Session():
            write(answer.id + "\n")
        case Generation():
            write(answer.text + "\n")
        case EventStream():
            for event in answer:
                write_event(event)
        case Scored():
            _print_scores(*answer)
        case Ranked():
            _print_ranking(*answer)
        case SessionPage():
            _print_list(answer.sessions)
        case SnapshotList():
            _print_list(answer.snapshots)
        case Answer():
            print_pairs(_pairs(answer))


def print_json(value: Any) -> None:
    """Print a value of `models` on one line."""
    sys.stdout.write(json.dumps(to_json(value)) + "\n")
    sys.stdout.flush()


def write(text: str) -> None:
    """Write a model's text as it is to a file or pipe, and harmless to a terminal."""
    sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def write_event(event: Event) -> None:
    """Write the text of a generation as it comes."""
    write(event.text if isinstance(event, TokenEvent) else "\n")


def harmless(text: str) -> str:
    """Return the text with escapes for control characters, and for those that the encoding lacks.

    Line ends and tabs stay.
    """
    shown = "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii") for c in text
    )
    return shown.encode(sys.stdout.encoding, "backslashreplace").decode(sys.stdout.encoding)


def check(text: str) -> None:
    """Refuse a text that `write` could not write, before anything is done for it.

    Raises:
        CommandError: standard output has another encoding.
    """
    if not sys.stdout.isatty():
        with failures_told():
            text.encode(sys.stdout.encoding)


def check_place(path: Path) -> None:
    """Refuse a place that no file could be written to, before anything is done for it.

    Raises:
        OSError: there is no such folder, nothing may be written to it, or the path is a folder's.
    """
    with ArrivingFile(path):
        pass


def check_free(place: Path, *, force: bool) -> None:
    """Refuse to write over a file, or a folder with something in it, unless that is asked for.

    Raises:
        CommandError: something is there.
    """
    if not force and (place.is_file() or (place.is_dir() and any(place.iterdir()))):
        raise CommandError(f"{place}: is there already; --force replaces it")


def print_line(answer: AppendResult, text: str, *, as_json: bool) -> None:
    """Print what a line cost by its totals, and the line."""
    if as_json:
        print_json({"text": text, "version": answer.version, "totals": answer.totals})
    elif answer.totals is not None:
        costs = (answer.totals.logprob, answer.totals.static_logprob)
        shown = " ".join(f"{'-' if cost is None else format(-cost, '.1f'):>9}" for cost in costs)
        write(f"{shown}  {text.rstrip()}\n")


def table(columns: Mapping[str, Iterable[Any]]) -> str:
    """Lay out a table; numbers stand right, and a column without values is left out."""
    values = {name: list(column) for name, column in columns.items()}
    given = {name: column for name, column in values.items() if any(cell is not None for cell in column)}
    sides = [
        "right" if any(isinstance(cell, int | float) for cell in column) else "left"
        for column in given.values()
    ]
    cells = {name: [_cell(cell) for cell in column] for name, column in given.items()}
    return str(tabulate(cells, headers="keys", colalign=sides, disable_numparse=True))


def print_table(columns: Mapping[str, Iterable[Any]]) -> None:
    """Print a table."""
    write(table(columns) + "\n")


def print_pairs(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, one pair a line."""
    cells = [(name, _cell(value)) for name, value in pairs]
    write(tabulate(cells, tablefmt="plain", disable_numparse=True) + "\n")


def _pairs(answer: Answer, unit: str = "nats") -> Iterator[tuple[str, Any]]:
    """Yield what an answer says by the names of its members; what is not known, or usual, is left out.

    What is a log-probability in JSON is for people what the text costs: positive, and named by its unit.
    """
    unit = getattr(answer, "unit", unit)
    for member in fields(answer):
        name, value = member.name.replace("_", " "), getattr(answer, member.name)
        unsaid = None if member.default is MISSING else member.default
        if member.name in _NOT_SHOWN or value in (None, (), {}) or value is unsaid:
            continue
        match value:
            case Adaptation():
                yield name, _adaptation(value)
            case Ancestor():
                snapshot = f" ({value.snapshot})" if value.snapshot else ""
                yield name, f"{value.session} at version {value.version}{snapshot}"
            case float() if name.endswith("logprob"):
                yield name.replace("logprob", unit), _cost(value)
            case float() if name == "perplexity":
                yield "perplexity per token", value
            case SessionTotals():
                yield from _pairs(value)
                for kind in ("static", "adapted"):
                    bits = getattr(value, f"{kind}_bits")
                    if bits is not None and value.bytes:
                        yield f"{kind} bits per byte", bits / value.bytes
            case Answer():
                yield from _pairs(value, unit)
            case _:
                yield name, _moment(value) if member.name.endswith("_at") else value


def _print_scores(result: ScoreResult, text: str) -> None:
    item, unit = result.items[0], result.unit
    if item.ids:
        print_table(_token_columns(item, text, unit))
    if item.words:
        words = [_token(text[word.start : word.end]) for word in item.words]
        tokens, costs = zip(*((word.tokens, _cost(word.logprob)) for word in item.words), strict=True)
        print_table({"word": words, "tokens": tokens, unit: costs})
    print_pairs([("unit", unit), *_pairs(item, unit)])


def _token_columns(item: Columns, text: str, unit: str) -> Mapping[str, Iterable[Any]]:
    spans = zip(item.starts, item.ends, strict=True)
    columns: dict[str, Iterable[Any]] = {
        "token": [_token(text[start:end]) for start, end in spans],
        "id": item.ids,
        unit: [*map(_cost, item.logprobs)],
        f"static {unit}": [*map(_cost, item.static_logprobs)],
        "rank": item.ranks,
        "entropy": item.entropies,
    }
    return {name: column for name, column in columns.items() if column}


def _print_list(answers: Sequence[Answer]) -> None:
    """Print one line a session or snapshot."""
    rows = [vars(each) | {"gain": vars(each)["totals"].gain} for each in answers]
    shown = {name: [row.get(name) for row in rows] for name in _LISTED}
    for name in ("created_at", "expires_at"):
        shown[name] = [None if at is None else _moment(at) for at in shown[name]]
    print_table({name.replace("_", " "): column for name, column in shown.items()})


def _print_ranking(ranking: Ranking, texts: Sequence[str]) -> None:
    """Print the candidates, the best first, in the columns that the session has."""
    order = sorted(range(len(texts)), key=lambda index: ranking.candidates[index].rank)
    ranked = [ranking.candidates[index] for index in order]
    columns: dict[str, list[Any]] = {
        name.replace("_", " "): [getattr(each, name) for each in ranked]
        for name in ("rank", "static_rank", "score")
    }
    columns[ranking.unit] = [_cost(each.logprob) for each in ranked]
    columns[f"static {ranking.unit}"] = [_cost(each.static_logprob) for each in ranked]
    columns["tokens"] = [each.tokens for each in ranked]
    print_table(columns | {"candidate": [texts[index] for index in order]})


def _cost(logprob: float | None) -> float | None:
    return None if logprob is None else 0.0 - logprob


def _adaptation(given: Adaptation) -> str:
    """Say in a line how a session learns."""
    experts = "1 expert" if given.experts == 1 else f"{given.experts} experts"
    rates = "rates " + ", ".join(f"{rate:.3g}" for rate in given.rates) if given.rates else ""
    memory = {"weights": "", "memory": "a memory, and no fast weights", "both": "a memory"}.get(
        given.adapt, ""
    )
    kind = "" if given.adapt == "memory" else f"{given.kind} of {given.num_fast_weights:,}"
    parts = [kind, experts, rates, memory]
    return "; ".join([*filter(None, parts), *([] if given.static else ["no frozen baseline"])])


def _token(text: str) -> str:
    short = text if len(text) <= _MOST_TOKEN_CHARACTERS else text[: _MOST_TOKEN_CHARACTERS - 1] + "…"
    return ascii(short) if short.isascii() else repr(short)


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.4f}"
        case Mapping():
            return ", ".join(f"{name} {_cell(one)}" for name, one in value.items())
        case list() | tuple():
            return ", ".join(map(_cell, value))
    return harmless(str(value))


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
