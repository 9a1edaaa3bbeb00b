"""`rlstm reading-times` against the real application, on times that surprisal is known to have made."""

import asyncio
import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlstm_client import AsyncClient
from rlstm_client.cli.items import Item
from rlstm_client.cli.surprisal import Reader
from rlstm_training.corpora import corpora_folder

np = pytest.importorskip("numpy")
pytest.importorskip("wordfreq", reason="it comes with the extra reading")

WORDS = [
    "the",
    "boar,",
    "well",
    "and",
    "huntsman",
    "saw",
    "a",
    "lord;",
    "quick-witted,",
    "he",
    "cut",
    "its",
    "tongue",
]
STORIES = corpora_folder() / "naturalstories"

Run = Callable[..., tuple[Any, str, str]]


async def adapted_costs(url: str, stories: Sequence[Sequence[str]]) -> list[float]:
    """What each word costs that learns by fast weights."""
    items = [Item.of_words([{"word": word} for word in story], "word") for story in stories]
    async with AsyncClient(url) as client:
        readings = [reading async for reading in Reader(client, "bits", adapt="weights").read(items)]
    return [word["adapted"] for reading in readings for word in reading.words()]


def controls(stories: Sequence[Sequence[str]]) -> Any:
    """The predictors beside surprisal, word by word; an item's first word has none of a word before."""
    from wordfreq import zipf_frequency

    rows = []
    for story in stories:
        known = [(len(w), len(w.strip(",;")), zipf_frequency(w.strip(",;"), "en")) for w in story]
        for at, own in enumerate(known):
            before = known[at - 1] if at else (math.nan,) * 3
            rows.append([1.0, at + 1, *own, *before])
    return np.array(rows)


def test_what_made_the_times_explains_them(url: str, run: Run, tmp_path: Path) -> None:
    """In the files of Natural Stories; the gain is what theory expects of the cost that they were made of."""
    draw = random.Random(3)
    stories = [[draw.choice(WORDS) for _ in range(90)] for _ in range(4)]
    costs = np.array(asyncio.run(adapted_costs(url, stories)))
    noise, slope = 20.0, 4.0
    lengths = np.array([len(word) for story in stories for word in story])
    times = 250 + 5 * lengths + slope * costs + [draw.gauss(0, noise) for _ in lengths]
    folder = tmp_path / "corpus" / "naturalstories_RTS"
    folder.mkdir(parents=True)
    numbered = enumerate(stories, 1)
    places = [(word, zone, item) for item, story in numbered for zone, word in enumerate(story, 1)]
    tok = "".join(f"{word}\t{zone}\t{item}\n" for word, zone, item in places)
    (folder / "all_stories.tok").write_text("word\tzone\titem\n" + tok)
    rows = [f"{w}\t{z}\t{i}\t80\t{t}\n" for (w, z, i), t in zip(places, times, strict=True)]
    random.Random(1).shuffle(rows)  # they are sorted by their words
    (folder / "processed_wordinfo.tsv").write_text("word\tzone\titem\tnItem\tmeanItemRT\n" + "".join(rows))
    code, out, err = run("reading-times", tmp_path / "corpus", "--json")
    assert code == 0, err
    *items, together = json.loads(out)

    beside = controls(stories)
    known = np.isfinite(beside).all(axis=1)
    weights, *_ = np.linalg.lstsq(beside[known], costs[known], rcond=None)
    left = np.var(costs[known] - beside[known] @ weights)
    assert [row["words"] for row in items] == [89] * 4
    assert together["adapted"] == pytest.approx(500 * math.log(1 + slope**2 * left / noise**2), rel=0.3)
    assert together["adapted"] > together["frozen"] + together["beyond adapted"]
    assert "adapted >= frozen in" in run("reading-times", tmp_path / "corpus")[1]


def test_participants_are_averaged(run: Run, tmp_path: Path) -> None:
    """Rows of one place are one word; a time that is not there, and a frequency of the table's own."""
    draw = random.Random(5)
    rows = []
    for item in "ab":
        story = [draw.choice(WORDS) for _ in range(60)]
        for participant in (1, 2):
            for place, word in enumerate(story, 1):
                time = "NA" if place == 7 else round(draw.uniform(200, 400))
                rows.append(f'{participant},{item},{place},"{word}",{time},{len(word) * 10}\n')
    file = tmp_path / "times.csv"
    file.write_text("participant,item,position,word,rt,frequency\n" + "".join(rows))
    code, out, err = run("reading-times", file, "--json", "--log", "--language", "xx")
    assert code == 0, err

    assert [row["words"] for row in json.loads(out)] == [58, 58, 116]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("word,time\n" + "a,200\n" * 99, "too few words: it takes two items"),
        ("word,rt\na,fast\n", "rt is no number that it can be: 'fast'"),
        ("word,rt\na,-1\n", "rt is no number that it can be: '-1'"),
        ("word,ms\na,1\n", "has no column time or rt"),
        ("token,rt\na,1\n", "has no column word"),
        (None, "has no all_stories.tok with times"),
    ],
)
def test_what_cannot_be_studied(run: Run, tmp_path: Path, content: str | None, said: str) -> None:
    """Is said in a line."""
    file = tmp_path
    if content is not None:
        file = tmp_path / "times.csv"
        file.write_text(content)
    code, out, err = run("reading-times", file)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not STORIES.is_dir(), reason="no naturalstories in RLSTM_CORPORA")
def test_natural_stories(run: Run) -> None:
    """The shipped model explains reading times better where it adapts, in most stories."""
    code, out, err = run("reading-times", STORIES, "--local", "--log", "--json")
    assert code == 0, err
    *items, together = json.loads(out)

    assert len(items) == 10
    assert sum(row["adapted"] >= row["frozen"] for row in items) >= 8
    assert together["adapted"] > 1.3 * together["frozen"] > 0
