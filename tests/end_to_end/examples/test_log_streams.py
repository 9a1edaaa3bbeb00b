"""`log_watch.py` on fifteen real logs, with lines put in that do not belong there: found, and false.

Fifteen watches run at once, and a server reads its sessions together: one server in the short form, one for
each core for the whole logs. Every 25th line after the warm-up (in the short form every 5th) is one of three
kinds: a line of another system, a line of the log with its fields shuffled, or one with a word replaced.
*Without adaptation* is the best that static bits per byte can do: the threshold is chosen for each log, in
hindsight, as the lowest with at most 1 % false lines.
"""

import lzma
import os
import random
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle

import pytest
from rich.console import Console
from rich.table import Table

from rlstm_client import Client
from rlstm_training.corpora import corpora_folder

LOGS = corpora_folder() / "logs"
FOREIGN, SHUFFLED, REPLACED = KINDS = ("foreign", "shuffled", "replaced")
USUAL = "usual"
FALSE = 0.01  # of the usual lines, at most

pytestmark = pytest.mark.skipif(not LOGS.is_dir(), reason="no logs in RLSTM_CORPORA")


@dataclass(frozen=True)
class Judged:
    """A line after the warm-up: its kind, whether it was an alarm, and what it cost without adaptation."""

    kind: str
    alarm: bool
    static: float


@dataclass(frozen=True)
class Form:
    """How much of each log is read, and how often a line is put in."""

    lines: int
    warm_up: int
    every: int


def read_logs() -> Mapping[str, Sequence[str]]:
    """All lines of the logs, by name."""
    texts = {path: lzma.decompress(path.read_bytes()) for path in sorted(LOGS.glob("*.log.xz"))}
    return {
        path.name.partition(".")[0]: text.decode("utf-8", "replace").split("\n")[:-1]
        for path, text in texts.items()
    }


def shuffled(line: str, chance: random.Random) -> str:
    """The fields of a line in another order, what parts them in its place."""
    parts = re.split(r"([\s|]+)", line)
    fields = parts[::2]
    while len(set(fields)) > 1 and parts[::2] == fields:
        chance.shuffle(fields)
    return "".join(field + gap for field, gap in zip(fields, [*parts[1::2], ""], strict=True))


def replaced(line: str, words: Sequence[str], chance: random.Random) -> str:
    """A line with another word in the place of one of its words; in front of a line that has none."""
    word = chance.choice(words)
    places = [match for match in re.finditer(r"[A-Za-z]{3,}", line) if match[0] != word]
    if not places:
        return f"{word} {line}"
    place = chance.choice(places)
    return line[: place.start()] + word + line[place.end() :]


def stream(name: str, logs: Mapping[str, Sequence[str]], form: Form) -> list[tuple[str, str]]:
    """A log's lines with lines put in after the warm-up, each with its kind; the same in every run."""
    chance = random.Random(name)
    others = [other for other in logs if other != name]
    words = sorted(
        {word for log in logs.values() for line in log for word in re.findall(r"[A-Za-z]{4,}", line)}
    )
    lines = list[tuple[str, str]]()
    for number, line in enumerate(logs[name][: form.lines]):
        if number >= form.warm_up and number % form.every == 0:
            kind = KINDS[number // form.every % len(KINDS)]
            strange = {
                FOREIGN: chance.choice(logs[chance.choice(others)]),
                SHUFFLED: shuffled(line, chance),
                REPLACED: replaced(line, words, chance),
            }
            lines.append((strange[kind], kind))
        lines.append((line, USUAL))
    return lines


def judged(module, url: str, lines: Sequence[tuple[str, str]], warm_up: int) -> list[Judged]:
    """What a watch says of the lines, in one session that ends with it."""
    with Client(url) as client, module.watching(client, module.Threshold(warm_up), None, keep=False) as watch:
        told = list(watch.lines(line for line, _ in lines))
    return [
        Judged(kind, said.alarm, said.static_bits / (len(line.encode()) + 1))
        for said, (line, kind) in zip(told, lines, strict=True)
        if said.threshold is not None
    ]


@dataclass(frozen=True)
class Found:
    """Of one log: the share of the usual lines that were alarms, and what was found of each kind."""

    false: float
    precision: float
    recall: Mapping[str, float]

    @classmethod
    def by(cls, lines: Sequence[Judged], alarms: Sequence[bool]) -> "Found":
        """Count."""
        of = {
            kind: [a for line, a in zip(lines, alarms, strict=True) if line.kind == kind]
            for kind in (USUAL, *KINDS)
        }
        shares = {kind: sum(values) / len(values) for kind, values in of.items()}
        true = sum(sum(of[kind]) for kind in KINDS)
        return cls(shares[USUAL], true / max(1, sum(alarms)), {kind: shares[kind] for kind in KINDS})

    @classmethod
    def without_adaptation(cls, lines: Sequence[Judged]) -> "Found":
        """By static bits per byte, with the lowest threshold that has few enough false lines."""
        usual = sorted(line.static for line in lines if line.kind == USUAL)
        limit = usual[-1 - int(FALSE * len(usual))]
        return cls.by(lines, [line.static > limit for line in lines])

    @property
    def well(self) -> bool:
        """At most 1 % false lines, and at least 90 % of the foreign ones found."""
        return self.false <= FALSE and self.recall[FOREIGN] >= 0.9


def watched(module, urls: Sequence[str], form: Form) -> dict[str, tuple[Found, Found]]:
    """Watch all logs at once; print what was found, with and without adaptation, and return it."""
    logs = read_logs()
    streams = {name: stream(name, logs, form) for name in logs}
    with ThreadPoolExecutor(len(logs)) as pool:
        judgements = pool.map(
            lambda url, lines: judged(module, url, lines, form.warm_up), cycle(urls), streams.values()
        )
        found = {
            name: (Found.by(lines, [line.alarm for line in lines]), Found.without_adaptation(lines))
            for name, lines in zip(logs, judgements, strict=True)
        }
    table = Table("log", "false", "precision", *KINDS, "static: false", *KINDS, title=f"{form}")
    for name, both in found.items():
        adapted, static = both
        cells = [
            adapted.false,
            adapted.precision,
            *adapted.recall.values(),
            static.false,
            *static.recall.values(),
        ]
        table.add_row(name, *(f"{cell:.1%}" for cell in cells))
    Console(width=130).print(table)
    for side, label in enumerate(("adapted", "static, in hindsight")):
        print(f"{label}: {sum(both[side].well for both in found.values())} of {len(found)} logs")
    return found


@pytest.mark.jobs
@pytest.mark.timeout(3600)
def test_lines_of_other_systems_are_found(example, shipped):
    """100 lines a log: on at least 12 of the 15 logs, where static bits find them on hardly any."""
    found = watched(example("log_watch"), [shipped.url], Form(lines=100, warm_up=50, every=5))

    assert sum(adapted.well for adapted, _ in found.values()) >= 12
    assert sum(static.well for _, static in found.values()) <= 7


@pytest.mark.bench
@pytest.mark.timeout(0)
def test_whole_logs(example, start):
    """2,000 lines a log."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(start("--durability", "memory", model="bytes-small", OMP_NUM_THREADS="1"))
            for _ in range(os.cpu_count() or 1)
        ]
        urls = [server.url for server in servers]
        assert all(urls), [server.errors() for server in servers]
        found = watched(example("log_watch"), urls, Form(lines=2000, warm_up=50, every=25))

    assert sum(adapted.well for adapted, _ in found.values()) >= 12


def test_what_is_put_in_is_strange():
    """Each kind is there, a third of what is put in; none is a line as the log has it."""
    logs = read_logs()
    for name in ("Apache", "HealthApp"):
        lines = stream(name, logs, Form(lines=200, warm_up=50, every=5))
        kinds = [kind for _, kind in lines]
        assert [kinds.count(kind) for kind in KINDS] == [10, 10, 10]
        assert [line for line, kind in lines if kind == USUAL] == logs[name][:200]
        assert not {line for line, kind in lines if kind != USUAL} & {*logs[name]}
