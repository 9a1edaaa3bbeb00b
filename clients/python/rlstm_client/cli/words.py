"""From the tokens of a text that was read to its words: what each costs, as a table or in KenLM's form.

A word costs what its tokens cost and, by one of two conventions, that white space comes before it
(`leading`, as the server's own sums) or behind it (`trailing`: what it takes to know that the word ends).
A token may hold white space and what follows it; so what passes from a word to the one before it is how
probable white space was in its place, of all tokens that begin with it (Pimentel & Meister 2024, Oh & Schuler
2024). White space before the first word is the first word's. The line end that ends a text is white space
behind its last word: where spaces lead, it counts in none. In KenLM's form it is `</s>`.
"""

import csv
import json
import math
import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from types import SimpleNamespace
from typing import Any, Final, Literal

from rlstm_client.cli import output
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
    """A text and its line end, as they were read: where the tokens begin, in code points, and what each cost.

    frozen, adapted  -log p under the model as loaded, and as it learned; the latter may be missing
    frozen_space, adapted_space  the same of white space in each token's place
    entropies        of the distribution that foresaw each token
    unknown          whether a token stands for a word out of the vocabulary
    """

    item: Item
    model: str
    starts: Sequence[int]
    frozen: Sequence[float]
    adapted: Sequence[float] | None
    frozen_space: Sequence[float]
    adapted_space: Sequence[float]
    entropies: Sequence[float]
    unknown: Sequence[bool]

    def members(self) -> list[range]:
        """The tokens of each word, and of white space before it."""
        ends = [bisect_left(self.starts, end) for _, end in self.item.spans]
        return [range(start, end) for start, end in pairwise([0, *ends])]

    def cost(self, name: Costs, tokens: range, space: Space) -> float | None:
        """What a word costs."""
        costs, spaces = getattr(self, name), getattr(self, f"{name}_space")
        if costs is None:
            return None
        cost = math.fsum(costs[token] for token in tokens)
        if space == "trailing":
            cost += self.of_space(spaces, tokens.stop) - self.of_space(spaces, tokens.start)
        return cost

    def of_space(self, costs: Sequence[float], token: int) -> float:
        """What it costs that white space comes in a token's place, if it does and a word came before."""
        read = self.item.text + "\n"
        return costs[token] if 0 < token < len(costs) and read[self.starts[token]].isspace() else 0.0

    def words(self) -> Iterator[dict[str, Any]]:
        """What is known of each word."""
        for (start, end), tokens in zip(self.item.spans, self.members(), strict=True):
            yield {
                "start": start,
                "end": end,
                "tokens": len(tokens),
                "unknown": sum(self.unknown[token] for token in tokens),
                "frozen": self.cost("frozen", tokens, "leading"),
                "adapted": self.cost("adapted", tokens, "leading"),
                "frozen_trailing": self.cost("frozen", tokens, "trailing"),
                "adapted_trailing": self.cost("adapted", tokens, "trailing"),
                "entropy": self.entropies[tokens.stop] if tokens.stop < len(self.entropies) else None,
            }


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
        total, oovs, end = 0.0, 0, 0
        members = reading.members()
        for (start, stop), tokens in zip(reading.item.spans, members, strict=True):
            unknown = any(reading.unknown[token] for token in tokens)
            number = 0 if unknown else self._ids.setdefault(text[start:stop], len(self._ids) + 3)
            logprob = -(reading.cost(self._costs, tokens, self._space) or 0.0)
            output.write(f"{text[start:stop]}={number} {len(tokens)} {logprob:.7g}\t")
            total, oovs, end = total + logprob, oovs + unknown, tokens.stop
            self._known += 0 if unknown else logprob
        logprob = -(reading.cost(self._costs, range(end, len(costs)), self._space) or 0.0)
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
