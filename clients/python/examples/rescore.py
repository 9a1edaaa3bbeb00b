"""Rescore n-best lists by a session that learns from each winner before the next list.

    python rescore.py n-best.jsonl --prime transcript.txt > rescored.jsonl

In:   {"id": "17", "candidates": [{"text": "…", "given": -41.3}, …], "reference": "…"}
Out:  {"id": "17", "text": "…", "static_text": "…", "candidates": [{"text": "…", "score": …, "rank": 1, …}]}

The score is alpha · log p (nats) + beta · tokens + gamma · given; given is the recogniser's own score, or 0.
The session also reads with the weights as loaded: what they would have chosen, after the same winners, is the
static text. With references, standard error tells the word error rates of all three.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rlstm_client import Client, Session
from rlstm_client.cli import inputs
from rlstm_client.cli.exits import CommandError, one_line_errors
from rlstm_client.texts import lines, read

MOST_CANDIDATES = 256


@dataclass(frozen=True)
class Utterance:
    """What was heard, as the recogniser's candidates with its own scores; ``reference`` is what was said."""

    id: str
    texts: Sequence[str]
    given: Sequence[float]
    reference: str | None

    @classmethod
    def read(cls, line: str, where: str) -> "Utterance":
        """Read a line of JSON.

        Raises:
            CommandError: it is none, or a field is wrong; the message says where and which.
        """
        try:
            row = json.loads(line)
        except ValueError as error:
            raise CommandError(f"{where} is not JSON") from error
        if not isinstance(row, dict) or not isinstance(row.get("candidates"), list):
            raise CommandError(f"{where}: there has to be a list of candidates")
        candidates = row["candidates"]
        if not 1 <= len(candidates) <= MOST_CANDIDATES:
            raise CommandError(f"{where}: there have to be 1 to {MOST_CANDIDATES} candidates")
        for candidate in candidates:
            if not isinstance(candidate, dict) or not isinstance(candidate.get("text"), str):
                raise CommandError(f"{where}: a candidate needs a text")
            given = candidate.get("given", 0)
            if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
                raise CommandError(f"{where}: given has to be a finite number")
        reference = row.get("reference")
        if reference is not None and not isinstance(reference, str):
            raise CommandError(f"{where}: the reference has to be a text")
        texts = [candidate["text"] for candidate in candidates]
        scores = [float(candidate.get("given", 0)) for candidate in candidates]
        return cls(str(row.get("id", where)), texts, scores, reference)

    @property
    def first_pass(self) -> str:
        """The recogniser's own choice: the highest score, of equal ones the first."""
        return self.texts[self.given.index(max(self.given))]


@dataclass
class Errors:
    """Errors of one way to choose, against the references."""

    words: int = 0
    wrong: int = 0
    texts: int = 0
    right: int = 0

    def count(self, chosen: str, reference: str) -> None:
        """Add one utterance."""
        wrong = edits(chosen.split(), reference.split())
        self.words, self.wrong = self.words + len(reference.split()), self.wrong + wrong
        self.texts, self.right = self.texts + 1, self.right + (wrong == 0)


def edits(words: Sequence[str], reference: Sequence[str]) -> int:
    """Return the fewest words to insert, delete or replace to come from one to the other."""
    row = list(range(len(reference) + 1))
    for i, word in enumerate(words, 1):
        above, row = row, [i]
        for j, right in enumerate(reference, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (word != right)))
    return row[-1]


@dataclass
class Rescorer:
    """A session that reads the winners and learns from them."""

    session: Session
    weights: Mapping[str, float]
    errors: dict[str, Errors] = field(
        default_factory=lambda: {name: Errors() for name in ("first pass", "static", "adapted")}
    )
    changed: int = 0

    def read(self, text: str) -> None:
        """Let the session learn a text that is known to be right."""
        self.session.append(text, scores="none")

    def rescore(self, utterance: Utterance) -> dict[str, Any]:
        """Rank the candidates, commit the winner, and return the line to write."""
        candidates = [
            {"text": text + "\n", "given": given}
            for text, given in zip(utterance.texts, utterance.given, strict=True)
        ]
        ranking = self.session.score(candidates, weights=self.weights)
        assert ranking.static_best is not None  # a new session reads with the weights as loaded, too
        choices = (ranking.best, ranking.static_best)
        text, static_text = (utterance.texts[ranking.candidates.index(choice)] for choice in choices)
        self.read(text + "\n")
        self.changed += text != static_text
        if utterance.reference is not None:
            for name, choice in zip(self.errors, (utterance.first_pass, static_text, text), strict=True):
                self.errors[name].count(choice, utterance.reference)
        return {
            "id": utterance.id,
            "text": text,
            "static_text": static_text,
            "candidates": [
                {
                    "text": candidate,
                    "logprob": scored.logprob,
                    "static_logprob": scored.static_logprob,
                    "score": scored.score,
                    "static_score": scored.static_score,
                    "rank": scored.rank,
                    "static_rank": scored.static_rank,
                }
                for candidate, scored in zip(utterance.texts, ranking.candidates, strict=True)
            ],
        }

    def summary(self) -> Table:
        """Say who erred how often."""
        table = Table("chosen by", "right", "of", "word errors", "of words", "word error rate")
        for name, errors in self.errors.items():
            rate = f"{errors.wrong / errors.words:.1%}" if errors.words else ""
            table.add_row(name, *map(str, (errors.right, errors.texts, errors.wrong, errors.words)), rate)
        return table


def utterances(file: Path) -> list[Utterance]:
    """Read the file whole, so that a bad line is told before anything is scored."""
    return [
        Utterance.read(line, f"line {number}")
        for number, line in enumerate(lines(read(file)), 1)
        if line.strip()
    ]


def rescore(
    file: Annotated[Path, typer.Argument(help="Lines of JSON; - is standard input.")],
    *,
    prime: Annotated[Path | None, typer.Option(help="A text to be read and learned first.")] = None,
    alpha: Annotated[float, typer.Option(help="Weight of the log-probability, in nats.")] = 1.0,
    beta: Annotated[float, typer.Option(help="Weight of the number of tokens.")] = 0.0,
    gamma: Annotated[float, typer.Option(help="Weight of the recogniser's score.")] = 1.0,
    url: inputs.Url = "http://127.0.0.1:8000",
    api_key: inputs.ApiKey = None,
) -> None:
    """Rank the candidates of each line and write the winner."""
    lists = utterances(file)
    known = "".join(read(prime)) if prime else ""
    with Client(url, api_key=api_key) as client:
        session = client.sessions.create()
        try:
            rescorer = Rescorer(session, {"lm": alpha, "length": beta, "given": gamma})
            if known:
                rescorer.read(known if known.endswith("\n") else known + "\n")
            for utterance in lists:
                sys.stdout.write(json.dumps(rescorer.rescore(utterance), ensure_ascii=False) + "\n")
                sys.stdout.flush()
        finally:
            session.delete()
    console = Console(stderr=True)
    console.print(f"{rescorer.changed} of {len(lists)} winners changed by learning")
    if rescorer.errors["adapted"].texts:
        console.print(rescorer.summary())


if __name__ == "__main__":
    with one_line_errors():
        typer.run(rescore)
