"""What the commands print: one JSON object, or a table for people. Text never carries terminal commands."""

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlstm_client._read import to_json
from rlstm_client.models import (
    Adaptation,
    Ancestor,
    AppendResult,
    Ranking,
    ScoredItem,
    SessionInfo,
    Snapshot,
    Totals,
)

_MOST_TOKEN_CHARACTERS = 24


def print_json(value: Any) -> None:
    """Print a value of `models` on one line."""
    sys.stdout.write(json.dumps(to_json(value)) + "\n")
    sys.stdout.flush()


def write(text: str) -> None:
    """Write a model's text as it is to a file or pipe, and harmless to a terminal."""
    sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def harmless(text: str) -> str:
    """Return the text with control characters shown as escapes, but for line ends and tabs."""
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)


def print_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table; columns of numbers stand right."""
    table = Table(title=title or None, title_justify="left")
    cells = [list(row) for row in rows]
    for index, heading in enumerate(headings):
        numbers = any(isinstance(row[index], int | float) for row in cells)
        table.add_column(heading, justify="right" if numbers else "left", no_wrap=numbers)
    for row in cells:
        table.add_row(*(Text(_cell(value)) for value in row))
    Console().print(table)


def print_pairs(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, one pair a line; what is not known is left out."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in pairs:
        if value is not None:
            table.add_row(Text(name), Text(_cell(value)))
    Console().print(table)


def print_scores(item: ScoredItem, text: str, unit: str) -> None:
    """Print the sums of one text, and its tokens and words where they were asked for."""
    if item.ids:
        print_table("", *_token_rows(item, text, unit))
    if item.words:
        rows = [(_token(text[word.start : word.end]), word.tokens, word.logprob) for word in item.words]
        print_table("", ("word", "tokens", unit), rows)
    print_pairs([("scored against", item.first_token), *_total_pairs(item.totals, unit)])


def print_line(answer: AppendResult, text: str, *, as_json: bool) -> None:
    """Print what a line cost by its totals, and the line."""
    if as_json:
        print_json({"text": text, "version": answer.version, "totals": answer.totals})
    elif answer.totals is not None:
        costs = (answer.totals.logprob, answer.totals.static_logprob)
        shown = " ".join(f"{'-' if cost is None else format(-cost, '.1f'):>9}" for cost in costs)
        write(f"{shown}  {text.rstrip()}\n")


def print_append(answer: AppendResult, unit: str) -> None:
    """Print what an append did."""
    totals = _total_pairs(answer.totals, unit) if answer.totals is not None else []
    print_pairs(
        [
            *totals,
            ("updates", answer.updates),
            ("guards", _listed(answer.guards)),
            ("weights of the experts", _rounded(answer.weights)),
            ("norm of the fast weights", answer.norm_ratio),
            ("version", answer.version),
            ("position", answer.position),
            ("pending characters", answer.pending or None),
        ]
    )


def print_session(info: SessionInfo) -> None:
    """Print a session."""
    totals = info.totals
    print_pairs(
        [
            ("id", info.id),
            ("name", info.name),
            ("model", info.model),
            ("version", info.version),
            ("position", info.position),
            ("bytes read", totals.bytes),
            ("static bits per byte", _rate(totals.static_bits, totals.bytes)),
            ("adapted bits per byte", _rate(totals.adapted_bits, totals.bytes)),
            ("bits saved", totals.gain),
            ("updates", totals.updates),
            ("state bytes", info.state_bytes),
            ("learning", None if info.learning else "off"),
            ("forked from", _ancestor(info.forked_from)),
            ("adaptation", _adaptation(info.adaptation)),
            ("weights of the experts", _rounded(info.weights)),
            ("norm of the fast weights", info.norm_ratio),
            ("guards", totals.guards or None),
            ("expires", _moment(info.expires_at)),
            *((f"metadata {name}", str(value)) for name, value in info.metadata.items()),
        ]
    )


def print_snapshots(snapshots: Iterable[Snapshot]) -> None:
    """Print one line a named snapshot."""
    rows = [
        (each.name, each.version, each.position, each.totals.gain, _moment(each.created_at))
        for each in snapshots
    ]
    print_table("", ("name", "version", "position", "bits saved", "taken"), rows)


def print_sessions(sessions: Iterable[SessionInfo]) -> None:
    """Print one line a session."""
    rows = [
        (
            info.id,
            info.name or "",
            info.version,
            info.position,
            info.totals.gain,
            _moment(info.expires_at),
        )
        for info in sessions
    ]
    print_table("", ("id", "name", "version", "position", "bits saved", "expires"), rows)


def print_ranking(ranking: Ranking, texts: Sequence[str]) -> None:
    """Print the candidates, the best first; what a session without a static row does not have is left out."""
    columns: dict[str, list[Any]] = {
        "rank": [each.rank for each in ranking.candidates],
        "static rank": [each.static_rank for each in ranking.candidates],
        "score": [each.score for each in ranking.candidates],
        ranking.unit: [each.logprob for each in ranking.candidates],
        f"static {ranking.unit}": [each.static_logprob for each in ranking.candidates],
        "tokens": [each.tokens for each in ranking.candidates],
        "candidate": [harmless(text) for text in texts],
    }
    given = {name: values for name, values in columns.items() if None not in values}
    print_table("", tuple(given), sorted(zip(*given.values(), strict=True)))


def _token_rows(item: ScoredItem, text: str, unit: str) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
    columns: dict[str, Iterable[Any]] = {
        "token": [_token(text[start:end]) for start, end in zip(item.starts, item.ends, strict=True)],
        "id": item.ids,
        unit: item.logprobs,
        f"static {unit}": item.static_logprobs,
        "rank": item.ranks,
        "entropy": item.entropies,
    }
    given = {name: values for name, values in columns.items() if values}
    return tuple(given), list(zip(*given.values(), strict=True))


def _total_pairs(totals: Totals, unit: str) -> list[tuple[str, Any]]:
    return [
        ("bytes", totals.bytes),
        ("tokens", totals.tokens),
        ("unknown words", totals.unknown or None),
        (f"log-probability ({unit})", totals.logprob),
        ("perplexity", totals.perplexity),
        ("static bits per byte", totals.static_bits_per_byte),
        ("bits per byte", totals.bits_per_byte),
        (f"gain ({unit})", totals.gain),
    ]


def _adaptation(given: Adaptation | None) -> str | None:
    """Say in a line how a session learns."""
    if given is None:
        return None
    parts = [
        f"{given.kind} of {given.num_fast_weights:,}",
        "1 expert" if given.experts == 1 else f"{given.experts} experts",
    ]
    if given.rates:
        parts.append("rates " + ", ".join(f"{rate:.3g}" for rate in given.rates))
    return "; ".join([*parts, *([] if given.static else ["no static row"])])


def _ancestor(given: Ancestor | None) -> str | None:
    if given is None:
        return None
    name = f" ({given.snapshot})" if given.snapshot else ""
    return f"{given.session} at version {given.version}{name}"


def _listed(counts: Mapping[str, int]) -> str | None:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or None


def _rounded(weights: Sequence[float]) -> str | None:
    return ", ".join(f"{weight:.4f}" for weight in weights) or None


def _token(text: str) -> str:
    short = text if len(text) <= _MOST_TOKEN_CHARACTERS else text[: _MOST_TOKEN_CHARACTERS - 1] + "…"
    return ascii(short) if short.isascii() else repr(short)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return harmless(str(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"


def _rate(bits: float | None, num_bytes: int) -> float | None:
    return bits / num_bytes if bits is not None and num_bytes else None


def _moment(seconds: float | None) -> str | None:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds is not None else None


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
