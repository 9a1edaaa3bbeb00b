"""`rlstm watch` on fifteen real logs with strange lines put in: `python -m benchmarks.watch`.

After the first 50 lines of a log there is, before every 25th, one of four kinds: a line of another system, or
that line with its fields shuffled, a word replaced, or a number two digits longer. One process watches all
logs at once, without a server. The logs are those of RLSTM_CORPORA, for tests and benchmarks.
"""

import json
import lzma
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from rlstm_client.cli import inputs
from rlstm_training.commands import console
from rlstm_training.commands.console import show_json, show_table, warn
from rlstm_training.corpora import corpora_folder

USUAL, FOREIGN, SHUFFLED, REPLACED, LONGER = "usual", "foreign", "shuffled", "replaced", "field"
KINDS: Final = (FOREIGN, SHUFFLED, REPLACED, LONGER)
WARM_UP: Final = 50
FALSE: Final = 0.01  # of a log's usual lines, at most

Lines = Sequence[tuple[str, str]]
"""Lines with their kinds."""


def read_logs(folder: Path) -> Mapping[str, Sequence[str]]:
    """All lines of the logs, by name."""
    texts = {path: lzma.decompress(path.read_bytes()) for path in sorted(folder.glob("*.log.xz"))}
    return {
        path.name.partition(".")[0]: text.decode("utf-8", "replace").split("\n")[:-1]
        for path, text in texts.items()
    }


def with_strange_lines(name: str, logs: Mapping[str, Sequence[str]], *, lines: int, every: int) -> Lines:
    """The first lines of a log with those of another kind put in; the same in every run."""
    chance = random.Random(name)
    others = [other for other in logs if other != name]
    words = sorted(
        {word for log in logs.values() for line in log for word in re.findall("[A-Za-z]{4,}", line)}
    )
    mixed = list[tuple[str, str]]()
    for number, line in enumerate(logs[name][:lines]):
        if number >= WARM_UP and number % every == 0:
            kind = KINDS[number // every % len(KINDS)]
            strange = {
                FOREIGN: chance.choice(logs[chance.choice(others)]),
                SHUFFLED: shuffled(line, chance),
                REPLACED: replaced(line, words, chance),
                LONGER: longer(line, chance),
            }
            mixed.append((strange[kind], kind))
        mixed.append((line, USUAL))
    return mixed


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


def longer(line: str, chance: random.Random) -> str:
    """A line with one of its numbers, to which two digits are added; in front of a line that has none."""
    places = [*re.finditer(r"\d+", line)]
    if not places:
        return f"-1 {line}"
    place = chance.choice(places)
    return f"{line[: place.end()]}{chance.randrange(10, 100)}{line[place.end() :]}"


@dataclass(frozen=True)
class Found:
    """Of one log: lines that were judged and alarms among them, by kind."""

    lines: Mapping[str, int]
    alarms: Mapping[str, int]

    @classmethod
    def of(cls, lines: Lines, alarms: set[int]) -> "Found":
        """Count; ``alarms`` are numbers of lines, from 1."""
        kinds = [(kind, number in alarms) for number, (_, kind) in enumerate(lines, 1) if number > WARM_UP]
        return cls(
            {kind: sum(one == kind for one, _ in kinds) for kind in (USUAL, *KINDS)},
            {kind: sum(one == kind and alarm for one, alarm in kinds) for kind in (USUAL, *KINDS)},
        )

    @classmethod
    def together(cls, logs: Sequence["Found"]) -> "Found":
        """Of all logs."""
        return cls(
            {kind: sum(log.lines[kind] for log in logs) for kind in (USUAL, *KINDS)},
            {kind: sum(log.alarms[kind] for log in logs) for kind in (USUAL, *KINDS)},
        )

    def share(self, kind: str) -> float:
        """Of a kind, that were alarms."""
        return self.alarms[kind] / max(1, self.lines[kind])


def watched(folder: Path, logs: Mapping[str, Lines], *options: str) -> dict[str, set[int]]:
    """Watch all logs at once, as a user would; give the numbers of the lines that were alarms."""
    files = {name: folder / f"{name}.log" for name in logs}
    for name, file in files.items():
        file.write_text("".join(f"{line}\n" for line, _ in logs[name]), encoding="utf-8")
    states = [part for file in files.values() for part in ("--state", str(file.with_suffix(".state")))]
    told = rlstm(*map(str, files.values()), *states, *options)
    names = {str(file): name for name, file in files.items()}
    alarms: dict[str, set[int]] = {name: set() for name in logs}
    for line in map(json.loads, told.splitlines()):
        alarms[names[line["log"]]].add(line["number"])
    return alarms


def rlstm(*arguments: str, given: bytes = b"") -> str:
    """Run the command, and give what it tells."""
    command = [sys.executable, "-c", "from rlstm_client.cli import main; main()", "watch", *arguments]
    ran = subprocess.run(command, input=given, stdout=subprocess.PIPE, check=True)  # noqa: S603 - our own
    return ran.stdout.decode()


def explained_rate(state: Path, lines: Sequence[str], *options: str) -> float:
    """Lines a second of a log whose templates are all known, told by standard input."""
    text, seconds = "".join(f"{line}\n" for line in lines).encode() * 20, list[float]()
    for given in (text, b""):
        began = time.perf_counter()
        rlstm("-", "--state", str(state), *options, given=given)
        seconds.append(time.perf_counter() - began)
    return text.count(b"\n") / max(seconds[0] - seconds[1], 1e-9)


def rows(found: Mapping[str, Found]) -> Iterator[Sequence[str]]:
    """The table's."""
    for name, log in [*found.items(), ("all", Found.together([*found.values()]))]:
        counts = (f"{log.alarms[kind]}/{log.lines[kind]}" for kind in (USUAL, *KINDS))
        yield (name, f"{log.share(USUAL):.2%}", *counts)


@console.command()
@click.argument("model", default="bytes-small", help="Checkpoint folder, or the name of a shipped model.")
@click.option("--logs", type=inputs.FILE, help="Folder of *.log.xz; default: RLSTM_CORPORA/logs.")
@click.option("--only", multiple=True, help="Only this log; may be given often.")
@click.option("--lines", type=click.IntRange(WARM_UP), default=2_000, help="Of each log, at most.")
@click.option("--every", type=click.IntRange(1), default=25, help="A strange line after so many.")
@click.option("--adapt", default="memory", help="What learns the log: memory, weights or both.")
@click.option("--threshold", help="As of the command.")
@inputs.as_json
def watch(
    model: str,
    logs: Path | None,
    only: Sequence[str],
    lines: int,
    every: int,
    adapt: str,
    threshold: str | None,
    as_json: bool,
) -> None:
    """Watch logs with strange lines in them, and count what is found."""
    texts = read_logs(logs or corpora_folder() / "logs")
    given = {
        name: with_strange_lines(name, texts, lines=lines, every=every)
        for name in texts
        if name in (only or texts)
    }
    options = [
        "--local",
        "--model",
        model,
        "--adapt",
        adapt,
        *(("--threshold", threshold) if threshold else ()),
    ]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        alarms = watched(Path(folder), given, *options)
        seconds = time.perf_counter() - began
        first = next(iter(given))
        rate = explained_rate(Path(folder) / f"{first}.state", texts[first][:lines], *options)
    found = {name: Found.of(given[name], alarms[name]) for name in given}
    if as_json:
        told = {name: {"lines": log.lines, "alarms": log.alarms} for name, log in found.items()}
        show_json({"logs": told, "seconds": seconds, "explained_lines_per_second": rate})
        return
    headers = ("", "false", USUAL, *KINDS)
    show_table(headers, [*rows(found)])
    warn(f"{seconds:.0f} s; of known templates {rate:,.0f} lines/s")


if __name__ == "__main__":
    watch()
