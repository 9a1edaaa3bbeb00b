"""Surprisal of every word of some texts, as a table for a reading study.

    python surprisal.py story-1.txt story-2.txt --out words.csv
    python surprisal.py items.txt --lines --kenlm static

A word is a run of characters that are not white space, so punctuation belongs to the word that it touches.
Surprisal is -log p in --unit: static by the model as loaded, adapted by one that learns as it reads, each
text alone or all --together. By --space, white space counts in the word after it (leading) or in the one
before it (trailing); at the ends of a text in the word that is there. So every token counts in exactly one
word. The first word of a text is foreseen after a line end; with --together, after the text before.
"""

import csv
import io
import math
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Literal, TextIO

import typer

from rlstm_client import Client
from rlstm_client.cli import inputs
from rlstm_client.cli.exits import CommandError, one_line_errors
from rlstm_client.models import AppendResult, ScoredItem, Unit
from rlstm_client.texts import read as texts_read

AT_ONCE = 32  # texts in one request
CHARACTERS_AT_ONCE = 100_000  # of several texts
Space = Literal["leading", "trailing"]
Column = Literal["static", "adapted"]


@dataclass(frozen=True)
class Reading:
    """A text that was read: where its tokens are, in code points, and what each cost.

    ``unknown`` says which tokens stand for a word that is not in the vocabulary.
    """

    name: str
    text: str
    starts: Sequence[int]
    ends: Sequence[int]
    static: Sequence[float]
    adapted: Sequence[float]
    unknown: Sequence[bool]

    @classmethod
    def of(
        cls, name: str, text: str, answer: ScoredItem | AppendResult, unknown_id: int | None, offset: int = 0
    ) -> "Reading":
        """Take the columns of an answer; its spans count from ``offset`` before the text."""
        return cls(
            name,
            text,
            [start - offset for start in answer.starts],
            [end - offset for end in answer.ends],
            [-logprob for logprob in answer.static_logprobs],
            [-logprob for logprob in answer.logprobs],
            [token == unknown_id for token in answer.ids],
        )

    def cut(self, length: int) -> tuple["Reading", "Reading"]:
        """Part the tokens that start in the first ``length`` characters from those after."""
        middle = bisect_left(self.starts, length)
        first, second = slice(None, middle), slice(middle, None)
        return self._only(first, self.text[:length]), self._only(second, self.text)

    def _only(self, some: slice, text: str) -> "Reading":
        columns = {
            name: getattr(self, name)[some] for name in ("starts", "ends", "static", "adapted", "unknown")
        }
        return replace(self, text=text, **columns)


@dataclass(frozen=True)
class Word:
    """A word; ``start`` and ``end`` are its own span, without white space."""

    number: int
    word: str
    start: int
    end: int
    tokens: int
    unknown: int
    static: float
    adapted: float


def texts_of(files: Sequence[Path], *, lines: bool) -> dict[str, str]:
    """Read the files, by name; with ``lines`` each line with a word in it is a text, ``file:number``."""
    texts = {str(file): "".join(texts_read(file)) for file in files}
    for name, text in texts.items():
        if not text.strip():
            raise CommandError(f"{name} holds no word")
    if not lines:
        return texts
    return {
        f"{name}:{number}": line
        for name, text in texts.items()
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip()
    }


def read_alone(
    client: Client, texts: dict[str, str], unit: Unit, unknown_id: int | None
) -> Iterator[Reading]:
    """Score each text on its own: what is learned in it is forgotten after it."""
    for some in batches(texts):
        result = client.score(items=[{"text": text} for _, text in some], adapt=True, unit=unit)
        for (name, text), item in zip(some, result.items, strict=True):
            yield Reading.of(name, text, item, unknown_id)


def batches(texts: dict[str, str]) -> Iterator[list[tuple[str, str]]]:
    """Yield the texts in groups that make a request."""
    batch: list[tuple[str, str]] = []
    characters = 0
    for name, text in texts.items():
        if batch and (len(batch) == AT_ONCE or characters + len(text) > CHARACTERS_AT_ONCE):
            yield batch
            batch, characters = [], 0
        batch.append((name, text))
        characters += len(text)
    yield batch


def read_together(
    client: Client, texts: dict[str, str], unit: Unit, unknown_id: int | None
) -> Iterator[Reading]:
    """Append the texts to one session, parted by line ends: what is learned in one helps in the next."""
    session, offset = client.sessions.create(), 0
    try:
        for name, text in texts.items():
            whole = text if text.endswith("\n") else text + "\n"
            answer = session.append(whole, final=True, unit=unit)
            yield Reading.of(name, whole, answer, unknown_id, offset)
            offset += len(whole)
    finally:
        session.delete()


def words_of(reading: Reading, space: Space) -> list[Word]:
    """Sum the tokens of each word.

    Raises:
        CommandError: trailing, and a token holds a space and what follows it: its cost can't be parted.
    """
    spans = [match.span() for match in re.finditer(r"\S+", reading.text)]
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    members: list[list[int]] = [[] for _ in spans]
    for token, start in enumerate(reading.starts):
        if space == "leading":
            word = min(bisect_right(ends, start), len(spans) - 1)
        else:
            word = max(bisect_right(starts, start) - 1, 0)
            if start >= ends[word] and reading.ends[token] > [*starts, len(reading.text)][word + 1]:
                raise CommandError(
                    "tokens of this model begin with the space before a word: use --space leading"
                )
        members[word].append(token)
    return [
        Word(
            number=number,
            word=reading.text[start:end],
            start=start,
            end=end,
            tokens=len(tokens),
            unknown=sum(reading.unknown[token] for token in tokens),
            static=sum(reading.static[token] for token in tokens),
            adapted=sum(reading.adapted[token] for token in tokens),
        )
        for number, ((start, end), tokens) in enumerate(zip(spans, members, strict=True), 1)
    ]


def write_table(readings: Iterable[Reading], space: Space, unit: Unit, model: str, out: TextIO) -> None:
    """Write one row a word; what the numbers are stands in every row, so that no join loses it."""
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["text", *(field.name for field in fields(Word)), "unit", "space", "model"])
    for reading in readings:
        for word in words_of(reading, space):
            table.writerow([reading.name, *vars(word).values(), unit, space, model])


def write_kenlm(readings: Iterable[Reading], column: Column, out: TextIO) -> None:
    """Write what KenLM's ``query`` writes of sentences: ``word=id length log10``, totals, perplexities.

    Words are numbered as they come, from 3; 0 is one out of the vocabulary, 2 the sentence's end. An n-gram's
    context has a length; this model's has no end, and the number of the word's tokens stands there.
    """
    ids: dict[str, int] = {}
    corpus, unknown_only, tokens, oovs = 0.0, 0.0, 0, 0
    for reading in readings:
        sentence, line_end = reading.cut(len(reading.text) - 1)
        total, oov = 0.0, 0
        for word in words_of(sentence, "leading"):
            number = 0 if word.unknown else ids.setdefault(word.word, len(ids) + 3)
            logprob = -getattr(word, column)
            out.write(f"{word.word}={number} {word.tokens} {logprob:.7g}\t")
            total, tokens = total + logprob, tokens + 1
            if word.unknown:
                oov, unknown_only = oov + 1, unknown_only + logprob
        end = -sum(getattr(line_end, column))
        out.write(f"</s>=2 {len(line_end.starts)} {end:.7g}\tTotal: {total + end:.7g} OOV: {oov}\n")
        corpus, tokens, oovs = corpus + total + end, tokens + 1, oovs + oov
    out.write(f"Perplexity including OOVs:\t{perplexity(corpus, tokens):.7g}\n")
    out.write(f"Perplexity excluding OOVs:\t{perplexity(corpus - unknown_only, tokens - oovs):.7g}\n")
    out.write(f"OOVs:\t{oovs}\nTokens:\t{tokens}\n")


def perplexity(log10: float, words: int) -> float:
    """Return the perplexity a word; words as long as pages may be beyond any number."""
    exponent = -log10 / words
    return 10.0**exponent if exponent < sys.float_info.max_10_exp else math.inf


def surprisal(
    files: Annotated[list[Path], typer.Argument(help="The texts (UTF-8); - is standard input.")],
    *,
    out: Annotated[Path | None, typer.Option(help="Write here; default: standard output.")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line is a text of its own.")] = False,
    together: Annotated[
        bool, typer.Option("--together", help="One reader reads all texts, in order.")
    ] = False,
    space: Annotated[Space, typer.Option(help="Where the space between two words counts.")] = "leading",
    unit: inputs.UnitOption = "bits",
    kenlm: Annotated[
        Column | None, typer.Option(help="Write these numbers as KenLM's query does: lines, log10.")
    ] = None,
    url: inputs.Url = "http://127.0.0.1:8000",
    api_key: inputs.ApiKey = None,
) -> None:
    """Write the surprisal of every word as CSV, or in KenLM's form."""
    texts = texts_of(files, lines=lines or kenlm is not None)
    if kenlm:
        texts, unit = {name: line + "\n" for name, line in texts.items()}, "log10"
    written = io.StringIO(newline="")
    with Client(url, api_key=api_key) as client:
        info = client.info()
        unknown_id = info.extra.get("vocabulary", {}).get("unknown_id")
        readings = (read_together if together else read_alone)(client, texts, unit, unknown_id)
        if kenlm:
            write_kenlm(readings, kenlm, written)
        else:
            write_table(readings, space, unit, str(info.model), written)
    if out is None:
        sys.stdout.write(written.getvalue())
    else:
        out.write_text(written.getvalue(), encoding="utf-8", newline="")


if __name__ == "__main__":
    with one_line_errors():
        typer.run(surprisal)
