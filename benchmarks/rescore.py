"""`rlstm rescore` on n-best lists made of a novel: `python -m benchmarks.rescore`.

A recogniser is played by one rule: it writes capitals, and in the place of a word it may hear one of the
three most like it with its first letter, of a lexicon of other novels. Its score is -2 a wrong word, and an
error. The first lists are for weights, the others are counted. The novels are those of RLSTM_CORPORA.
"""

import json
import lzma
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from rlstm_client.cli import inputs
from rlstm_client.cli.wer import Costs, Errors, Judged, Weights, errors_of, interval, order, rate, tuned
from rlstm_training.commands import console
from rlstm_training.commands.console import show_json, show_table
from rlstm_training.corpora import corpora_folder

NOVEL: Final = "Haggard_Mines_1885"
BEGIN: Final = 200_000
CANDIDATES: Final = 10  # at most
DRAWS: Final = 200
ERRORS: Final = 0.2  # of a candidate's words
HEARD: Final = 0.8  # of the sentences, that are among their candidates
PER_ERROR, SPREAD = -2.0, 5.0  # of the recogniser's score

Lists = Sequence[Mapping[str, Any]]


def novels(folder: Path) -> Mapping[str, str]:
    """All novels, by name."""
    return {
        path.name.partition(".")[0]: lzma.decompress(path.read_bytes()).decode("utf-8", "replace")
        for path in sorted(folder.glob("*.txt.xz"))
    }


def sentences(text: str, count: int) -> list[str]:
    """So many sentences in words alone, as recognisers write them, of 4 to 40 words."""
    found = (re.findall(r"[a-z]+(?:'[a-z]+)?", one.lower()) for one in re.split(r"[.!?;:]", text[BEGIN:]))
    return [" ".join(words) for words in found if 4 <= len(words) <= 40][:count]


def n_best_lists(said: Sequence[str], lexicon: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """What the recogniser makes of each sentence; the same in every run."""
    from rapidfuzz import fuzz, process

    alike, by_letter = dict[str, list[str]](), dict[str, list[str]]()
    for word in lexicon:
        by_letter.setdefault(word[0], []).append(word)
    for number, sentence in enumerate(said, 1):
        chance, words = random.Random(sentence), sentence.split()
        for word in words:
            if len(word) > 2 and word not in alike:
                near = process.extract(word, by_letter.get(word[0], ()), scorer=fuzz.ratio, limit=4)
                alike[word] = [other for other, *_ in near if other != word][:3]
        texts = {sentence: None} if chance.random() < HEARD else {}
        for _ in range(DRAWS):
            heard = [
                chance.choice(alike[word]) if alike.get(word) and chance.random() < ERRORS else word
                for word in words
            ]
            texts[" ".join(heard)] = None
            if len(texts) == CANDIDATES:
                break
        candidates = [
            {
                "text": text.upper(),
                "given": PER_ERROR * sum(a != b for a, b in zip(text.split(), words, strict=True))
                + chance.gauss(0, SPREAD),
            }
            for text in texts
        ]
        chance.shuffle(candidates)
        yield {"id": str(number), "candidates": candidates, "reference": sentence.upper()}


def rescored(lists: Lists, *options: str) -> list[Mapping[str, Any]]:
    """Rank lists as a user would."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lists"
        file.write_text("".join(json.dumps(one) + "\n" for one in lists), encoding="utf-8")
        words = ["rescore", str(file), "--local", "--fold-case", *options]
        call = [sys.executable, "-c", "from rlstm_client.cli import main; main()", *words]
        ran = subprocess.run(call, stdout=subprocess.PIPE, check=True)  # noqa: S603 - our own
    return [json.loads(line) for line in ran.stdout.splitlines()]


def judged(rows: Sequence[Mapping[str, Any]], lists: Lists) -> list[Judged]:
    """The candidates of each list, and their errors."""
    found: list[Judged] = []
    for row, one in zip(rows, lists, strict=True):
        costs = [
            Costs(own["given"], own["logprob"], own["static_logprob"], len(own["text"].split()))
            for own in row["candidates"]
        ]
        found.append((costs, errors_of([own["text"] for own in row["candidates"]], one["reference"])))
    return found


def frozen(lists: Sequence[Judged]) -> list[Judged]:
    """The same for a model that never learns: its weight of what was learned has nothing to weigh."""
    return [([own._replace(logprob=0.0) for own in costs], errors) for costs, errors in lists]


def chosen(lists: Sequence[Judged], weights: Weights) -> list[Errors]:
    """The errors of the best candidates."""
    return [errors[order(costs, weights)[0]] for costs, errors in lists]


def compared(lists: Lists, weighed: int, options: Sequence[str]) -> Mapping[str, Any]:
    """Find weights on the first lists, with and without learning, and count errors on the others."""
    first = judged(rescored(lists[:weighed], *options), lists[:weighed])
    weights = {"frozen": tuned(frozen(first)), "adapted": tuned(first)}
    values = zip(("--alpha", "--static-alpha", "--beta"), weights["adapted"], strict=True)
    given = [part for option, value in values for part in (option, f"{value:g}")]
    rest = judged(rescored(lists[weighed:], *options, *given), lists[weighed:])
    errors: dict[str, list[Errors]] = {
        "first pass": chosen(rest, Weights(0.0)),
        "frozen": chosen(frozen(rest), weights["frozen"]),
        "adapted": chosen(rest, weights["adapted"]),
        "best there is": [min(counted) for _, counted in rest],
    }
    errors["adapted - frozen"] = [
        Errors(own.wrong - other.wrong, own.words)
        for own, other in zip(errors["adapted"], errors["frozen"], strict=True)
    ]
    rows = {name: {"wer": rate(own), "interval": interval(own)} for name, own in errors.items()}
    return {
        "lists": len(rest),
        "words": sum(own.words for own in errors["frozen"]),
        "weights": weights,
        "rows": rows,
    }


@console.command()
@click.argument("model", default="bytes-small", help="Checkpoint folder, or the name of a shipped model.")
@click.option("--lists", type=click.IntRange(2), default=300, help="That are counted.")
@click.option(
    "--weighed", type=click.IntRange(2), default=100, help="By which weights are found, before them."
)
@click.option("--adapt", default="both", help="What learns: memory, weights or both.")
@inputs.as_json
def rescore(model: str, lists: int, weighed: int, adapt: str, as_json: bool) -> None:
    """Rank n-best lists with and without learning, and count word errors."""
    texts = dict(novels(corpora_folder() / "novels"))
    said = sentences(texts.pop(NOVEL), weighed + lists)
    lexicon = sorted({word for text in texts.values() for word in re.findall(r"[a-z]{3,}", text.lower())})
    made = [*n_best_lists(said, lexicon)]
    found = compared(made, weighed, ["--model", model, "--adapt", adapt])
    if as_json:
        show_json(dict(found))
        return
    show_table(
        ("chosen by", "WER", "95 % from", "to"),
        [
            (name, *(f"{100 * value:.2f} %" for value in (row["wer"], *row["interval"])))
            for name, row in found["rows"].items()
        ],
    )


if __name__ == "__main__":
    rescore()
