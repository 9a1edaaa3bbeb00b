"""`rlstm reading-times`: how much of reading times surprisal explains, frozen and adapted.

Linear regressions by least squares; the times of each item are predicted by what was fitted to all others.
The gain of a predictor is by how much, in nats times 1000, a word's time is likelier with it than without.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from numpy.typing import NDArray
from wordfreq import zipf_frequency

from rlstm_client import AsyncClient, texts
from rlstm_client.cli import inputs, output
from rlstm_client.cli.exits import CommandError
from rlstm_client.cli.items import Columns, Item, read_table
from rlstm_client.cli.kept import USUAL, Service, service
from rlstm_client.cli.surprisal import RESET, Reader, Reset
from rlstm_client.cli.words import Space
from rlstm_client.models import Adapt

Array = NDArray[np.float64]
Place = tuple[str, float]
"""A word's item, and where in it the word stands."""

_ITEMS: Final = ("item", "story")
_POSITIONS: Final = ("position", "zone")
_TIMES: Final = ("time", "rt", "RT", "reading_time", "meanItemRT")
_STORIES: Final = "all_stories.tok"  # of Natural Stories, whose words and times are in two tables
_STORY_TIMES: Final = ("processed_wordinfo.tsv", "processed_RTs.tsv")
_MISSING: Final = ("", "NA")
_MODELS: Final = {"frozen": ("frozen",), "adapted": ("adapted",), "both": ("frozen", "adapted")}


@dataclass(frozen=True)
class Study:
    """Words in their order, each item's together: how long each was looked at, NaN where nobody knows."""

    places: Sequence[Place]
    words: Sequence[str]
    times: Array
    frequencies: Array

    @property
    def items(self) -> NDArray[np.str_]:
        """The item of each word."""
        return np.array([item for item, _ in self.places])

    def texts(self) -> list[Item]:
        """The items as texts."""
        found: dict[str, list[Columns]] = {}
        for (item, _), word in zip(self.places, self.words, strict=True):
            found.setdefault(item, []).append({"word": word})
        return [Item.of_words(rows, "word") for rows in found.values()]

    def gains(self, costs: Mapping[str, Array]) -> dict[str, Array]:
        """By how many nats each word's time is likelier with these costs than by the controls alone.

        Controls are length (with punctuation and without), frequency, these of the word before, and the
        place in the item; costs, too, are those of a word and of the one before. NaN for words without a
        time, or without a word before them.

        Raises:
            CommandError: there are too few words, or items.
        """
        lengths = np.array([(len(word), len(bare(word))) for word in self.words], dtype=float)
        places = np.array([at for _, at in self.places])
        controls = [places]
        for column in (*lengths.T, self.frequencies):
            controls += self._with_before(column)
        known = np.isfinite(np.column_stack([self.times, *controls])).all(axis=1)
        items, times = self.items[known], self.times[known]

        def likelihoods(*names: str) -> Array:
            columns = [np.ones(len(places)), *controls]
            columns += [column for name in names for column in self._with_before(costs[name])]
            return held_out(times, np.column_stack(columns)[known], items)

        base = likelihoods()
        found = {}
        for model, names in _MODELS.items():
            found[model] = np.full(len(places), math.nan)
            found[model][known] = likelihoods(*names) - base
        return found

    def _with_before(self, column: Array) -> tuple[Array, Array]:
        """A column, and of each word what it says of the word before: NaN for an item's first."""
        items = self.items
        first = np.append(True, items[1:] != items[:-1])
        return column, np.where(first, math.nan, np.roll(column, 1))


def bare(word: str) -> str:
    """A word without the punctuation around it."""
    return re.sub(r"^\W+|\W+$", "", word)


def held_out(times: Array, predictors: Array, items: NDArray[np.str_]) -> Array:
    """Log-likelihood of each time under a normal regression on the other items.

    times (W,); predictors (W, P), of which one is constant; items (W,).

    Raises:
        CommandError: there is one item, or too few words in the others.
    """
    found = np.empty(len(times))
    for item in np.unique(items):
        out = items == item
        if np.count_nonzero(~out) < 2 * predictors.shape[1]:
            raise CommandError(
                "too few words: it takes two items, and twice as many words as predictors in each"
            )
        weights, *_ = np.linalg.lstsq(predictors[~out], times[~out], rcond=None)
        errors = times - predictors @ weights
        variance = np.mean(errors[~out] ** 2)
        found[out] = -0.5 * (np.log(2 * math.pi * variance) + errors[out] ** 2 / variance)
    return found


def read_study(place: Path, time: str | None, language: str) -> Study:
    """Read the folder of Natural Stories, or a table with a word and its time in each row.

    Rows of one place in an item are those of several participants: their times are averaged.

    Raises:
        CommandError: there are no words with times, or no frequencies in this language.
    """
    of_words, of_times = _tables(place)
    words: dict[Place, Columns] = {}
    for at, row in _placed(of_words, ("word",))[1]:
        words.setdefault(at, row)
    column, rows = _placed(of_times, (time,) if time else _TIMES)
    times: dict[Place, list[float]] = {at: [] for at in words}
    for at, row in rows:
        if at in times and row[column] not in _MISSING:
            times[at].append(_number(row, column, of_times, least=0.0))
    order = {item: number for number, item in enumerate(dict.fromkeys(item for item, _ in words))}
    places = sorted(words, key=lambda at: (order[at[0]], at[1]))
    return Study(
        places=places,
        words=[words[at]["word"].strip() for at in places],
        times=np.array([np.mean(times[at]) if times[at] else math.nan for at in places]),
        frequencies=np.array([_frequency(words[at], language, of_words) for at in places]),
    )


def _tables(place: Path) -> tuple[Path, Path]:
    if not place.is_dir():
        return place, place
    for story in sorted(place.rglob(_STORIES)):
        for name in _STORY_TIMES:
            if (story.parent / name).is_file():
                return story, story.parent / name
    raise CommandError(f"{place} has no {_STORIES} with times: give Natural Stories' folder, or a table")


def _placed(file: Path, wanted: Sequence[str]) -> tuple[str, list[tuple[Place, Columns]]]:
    """Which of the columns wanted a table has, and its rows by their places."""
    separator = "," if file.suffix == ".csv" else "\t"
    header, rows = read_table(texts.read(file), str(file), separator)
    item, position, column = (
        next((name for name in names if name in header), None) for names in (_ITEMS, _POSITIONS, wanted)
    )
    if column is None:
        raise CommandError(f"{file} has no column {' or '.join(wanted)}")
    seen: Counter[str] = Counter()
    found: list[tuple[Place, Columns]] = []
    for _, row in rows:
        of = row[item] if item else ""
        seen[of] += 1
        found.append(((of, _number(row, position, file) if position else seen[of]), row))
    return column, found


def _number(row: Columns, column: str, file: Path, least: float = -math.inf) -> float:
    try:
        number = float(row[column])
        if math.isfinite(number) and number > least:
            return number
    except ValueError:
        pass
    raise CommandError(f"{file}: {column} is no number that it can be: {row[column]!r}")


def _frequency(row: Columns, language: str, file: Path) -> float:
    """The logarithm of a word's frequency: of the table's column, or as others have counted."""
    if "frequency" in row:
        return math.log(_number(row, "frequency", file) + 1)
    try:
        return float(zipf_frequency(bare(row["word"]), language))
    except LookupError:
        raise CommandError(f"no frequencies of words in {language!r}: give a column frequency") from None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Which times are explained, and by what."""

    folder: Path = inputs.argument("Natural Stories' folder, or a table: word, time, item, position.")
    time: str | None = inputs.option(f"The column of times [{', '.join(_TIMES)}].")
    language: str = inputs.option("Of frequencies, where the table has none.", default="en")
    logs: bool = inputs.option("Explain logarithms of the times.", "--log", default=False)
    space: Space = inputs.option("The word that the space between two counts in.", default="leading")
    adapt: Adapt = inputs.option("What adapts.", default="weights")
    reset: Reset = inputs.option(RESET, default="item")


@click.command()
@inputs.given("asked", Asked)
@service
@inputs.as_json
def reading_times(asked: Asked, service: Service, as_json: bool) -> None:
    """Say how much of reading times surprisal explains, frozen and adapted, beside length, frequency, place.

    Example: rlstm reading-times --local naturalstories
    """
    study = read_study(asked.folder, asked.time, asked.language)
    if asked.logs:
        study = replace(study, times=np.log(study.times))
    costs: dict[str, list[float]] = {"frozen": [], "adapted": []}
    behind = "" if asked.space == "leading" else "_trailing"

    async def run(client: AsyncClient) -> None:
        model = await service.named(client, USUAL)
        reader = Reader(client, "bits", model, asked.adapt, asked.reset)
        async for reading in reader.read(study.texts()):
            for word in reading.words():
                for name, column in costs.items():
                    column.append(word[name + behind])

    service.run(run, USUAL)
    _tell(study, study.gains({name: np.array(column) for name, column in costs.items()}), as_json)


def _tell(study: Study, gains: Mapping[str, Array], as_json: bool) -> None:
    """Print the mean gains of each item, and of all words."""
    known = np.isfinite(gains["both"])
    parts = {str(item): known & (study.items == item) for item in dict.fromkeys(study.items)}
    table: list[dict[str, Any]] = []
    for name, part in {**parts, "all": known}.items():
        means = {model: 1000 * float(column[part].mean()) for model, column in gains.items()}
        table.append(
            {
                "item": name,
                "words": int(part.sum()),
                "frozen": means["frozen"],
                "adapted": means["adapted"],
                "beyond frozen": means["both"] - means["frozen"],
                "beyond adapted": means["both"] - means["adapted"],
            }
        )
    if as_json:
        output.write(json.dumps(table) + "\n")
        return
    output.print_table({name: [row[name] for row in table] for name in table[0]})
    better = sum(row["adapted"] >= row["frozen"] for row in table[:-1])
    output.write(f"log-likelihood gain a word x 1000; adapted >= frozen in {better} of {len(parts)} items\n")
