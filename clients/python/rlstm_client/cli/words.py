"""From the tokens of a text that was read to its words: what each costs, as a table or in KenLM's form.

A word costs what its tokens cost and, by one of two conventions, the white space before it (`leading`, as
the server's own sums) or behind it (`trailing`: what it takes to know that the word ends). White space before
the first word is the first word's. The line end that ends a text is white space behind its last word: where
spaces lead, it counts in none. In KenLM's form it is `</s>`.
"""

import csv
import json
import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import SimpleNamespace
from typing import Any, Final, Literal

from rlstm_client.cli import output
from rlstm_client.cli.exits import CommandError
from rlstm_client.cli.items import Columns, Item, Read
from rlstm_client.models import Unit

By = Literal["word", "region", "text"]
Space = Literal["leading", "trailing"]
To = Literal["csv", "tsv", "jsonl"]
Costs = Literal["frozen", "adapted"]

COSTS: Final = ("frozen", "adapted", "frozen_trailing", "adapted_trailing")
_DIGITS: Final = 6


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A text and its line end, as they were read: where the tokens are, in code points, and what each cost.

    frozen, adapted  -log p under the model as loaded, and as it learned; the latter may be missing
    entropies        of the distribution that foresaw each token
    unknown          whether a token stands for a word out of the vocabulary
    """

    item: Item
    model: str
    starts: Sequence[int]
    ends: Sequence[int]
    frozen: Sequence[float]
    adapted: Sequence[float] | None
    entropies: Sequence[float]
    unknown: Sequence[bool]

    def members(self, space: Space) -> list[list[int]] | None:
        """The tokens of each word; None where spaces cannot trail: a token holds one and what follows it."""
        spans = self.item.spans
        starts, ends = [start for start, _ in spans], [end for _, end in spans]
        found: list[list[int]] = [[] for _ in spans]
        if not spans:
            return found
        for token, start in enumerate(self.starts):
            if space == "leading":
                word = bisect_right(ends, start)
            else:
                word = max(bisect_right(starts, start) - 1, 0)
                if start >= ends[word] and any(start < other < self.ends[token] for other in starts):
                    return None
            if word < len(spans):
                found[word].append(token)
        return found

    def words(self) -> Iterator[dict[str, Any]]:
        """What is known of each word."""
        spans = self.item.spans
        leading, trailing = self.members("leading") or [], self.members("trailing")
        for number, ((start, end), tokens) in enumerate(zip(spans, leading, strict=True)):
            trailed = None if trailing is None else trailing[number]
            behind = bisect_left(self.starts, end)
            yield {
                "start": start,
                "end": end,
                "tokens": len(tokens),
                "unknown": sum(self.unknown[token] for token in tokens),
                "frozen": _cost(self.frozen, tokens),
                "adapted": _cost(self.adapted, tokens),
                "frozen_trailing": _cost(self.frozen, trailed),
                "adapted_trailing": _cost(self.adapted, trailed),
                "entropy": self.entropies[behind] if behind < len(self.entropies) else None,
            }


def _cost(costs: Sequence[float] | None, tokens: Sequence[int] | None) -> float | None:
    return None if costs is None or tokens is None else math.fsum(costs[token] for token in tokens)


def rows(reading: Reading, by: By) -> Iterator[tuple[Columns, dict[str, Any]]]:
    """Of each word, region or text: what its table says, where it says one thing, and what we say."""
    item, words = reading.item, [*reading.words()]
    regions: Sequence[str | None] = item.regions or [None] * len(words)
    borders = {"word": range(len(words)), "region": regions, "text": [0] * len(words)}[by]
    numbered = zip(borders, words, regions, item.columns, strict=True)
    for position, (_, group) in enumerate(groupby(numbered, key=lambda each: each[0]), 1):
        _, parts, inside, columns = zip(*group, strict=True)
        start, end = parts[0]["start"], parts[-1]["end"]
        ours = {"position": position, "region": inside[0], "word": item.text[start:end]}
        ours |= {"words": len(parts), "start": start, "end": end, "length": end - start}
        ours |= {name: sum(part[name] for part in parts) for name in ("tokens", "unknown")}
        ours |= {name: _sum([part[name] for part in parts]) for name in COSTS}
        ours["entropy"] = _sum([parts[-1]["entropy"]])
        for name, said in {"region": by == "text" or inside[0] is None, "words": by == "word"}.items():
            if said:
                del ours[name]
        same = {name: value for name, value in columns[0].items() if all(c[name] == value for c in columns)}
        yield same, ours


def _sum(values: Sequence[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return round(math.fsum(given), _DIGITS) if len(given) == len(values) else None


class Table:
    """Writes rows as they come: the columns of the table that was read, then ours.

    A column of ours whose name is taken gets another name, unless it says the same.
    """

    def __init__(self, read: Read, by: By, to: To, unit: Unit) -> None:
        self._read, self._by, self._to, self.unit = read, by, to, unit
        self._out: Any = None
        self._words = 0
        self._sums: dict[str, list[float]] = {"frozen": [], "adapted": []}

    def write(self, reading: Reading) -> None:
        """Write the rows of a text."""
        header = self._read.header
        for theirs, ours in rows(reading, self._by):
            row: dict[str, Any] = {name: theirs.get(name) for name in header}
            for name, value in {**ours, "unit": self.unit, "model": reading.model}.items():
                row[f"rlstm_{name}" if name in header and name not in self._read.same else name] = value
            self._print(row)
            self._words += ours.get("words", 1)
            for name, costs in self._sums.items():
                costs.extend(() if ours[name] is None else [ours[name]])

    def _print(self, row: Mapping[str, Any]) -> None:
        if self._to == "jsonl":
            output.write(json.dumps(row, ensure_ascii=False) + "\n")
            return
        if self._out is None:
            place, delimiter = SimpleNamespace(write=output.write), "\t" if self._to == "tsv" else ","
            self._out = csv.DictWriter(place, row, delimiter=delimiter, lineterminator="\n")
            self._out.writeheader()
        self._out.writerow(row)

    def close(self) -> None:
        """Say on standard error what a word costs on average."""
        base = {"bits": 2.0, "nats": math.e, "log10": 10.0}[self.unit]
        told = [
            f"{name} {math.fsum(costs) / self._words:.3f} {self.unit} a word"
            f" (perplexity per word {perplexity(math.fsum(costs), self._words, base):,.1f})"
            for name, costs in self._sums.items()
            if costs
        ]
        sys.stderr.write(f"{self._words:,} words: {', '.join(told)}\n")


class KenLM:
    """Writes what KenLM's `query` writes of sentences: ``word=id length log10``, totals, perplexities.

    Words are numbered as they come, from 3; 0 is one out of the vocabulary, 2 the sentence's end. An n-gram's
    context has a length; this model's has no end, and the number of the word's tokens stands there.
    """

    unit: Final = "log10"

    def __init__(self, costs: Costs, space: Space) -> None:
        self._costs, self._space = costs, space
        self._ids: dict[str, int] = {}
        self._sum = self._known = 0.0
        self._tokens = self._oovs = 0

    def write(self, reading: Reading) -> None:
        """Write a sentence. Its costs are in log10."""
        text, costs = reading.item.text, getattr(reading, self._costs)
        total, oovs = 0.0, 0
        end = bisect_left(reading.starts, len(text))
        members = reading.members(self._space)
        if members is None:
            raise CommandError("tokens of this model begin with the space before a word: use --space leading")
        for (start, stop), tokens in zip(reading.item.spans, members, strict=True):
            own = [token for token in tokens if token < end]
            unknown = any(reading.unknown[token] for token in own)
            number = 0 if unknown else self._ids.setdefault(text[start:stop], len(self._ids) + 3)
            logprob = -math.fsum(costs[token] for token in own)
            output.write(f"{text[start:stop]}={number} {len(own)} {logprob:.7g}\t")
            total, oovs = total + logprob, oovs + unknown
            self._known += 0 if unknown else logprob
        logprob = -math.fsum(costs[end:])
        output.write(f"</s>=2 {len(costs) - end} {logprob:.7g}\tTotal: {total + logprob:.7g} OOV: {oovs}\n")
        self._sum, self._known = self._sum + total + logprob, self._known + logprob
        self._tokens, self._oovs = self._tokens + len(members) + 1, self._oovs + oovs

    def close(self) -> None:
        """Write the totals."""
        output.write(f"Perplexity including OOVs:\t{perplexity(-self._sum, self._tokens, 10):.7g}\n")
        known = self._tokens - self._oovs
        output.write(f"Perplexity excluding OOVs:\t{perplexity(-self._known, known, 10):.7g}\n")
        output.write(f"OOVs:\t{self._oovs}\nTokens:\t{self._tokens}\n")


def perplexity(cost: float, words: int, base: float) -> float:
    """Return the perplexity a word; words as long as pages may be beyond any number."""
    try:
        return float(base ** (cost / words))
    except OverflowError:
        return math.inf
