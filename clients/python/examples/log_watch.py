"""Watch a log as it grows: a line that its session did not expect is an alarm, every other line is learned.

    tail -F app.log | python log_watch.py > alarms.jsonl

The score of a line is the share of its bits that learning does not save: its bits for the session that learns
the log, over its bits for the model as loaded after the same lines (and 8 more, so that a line of next to no
bits is no alarm). It is small for what the log is made of, and about 1 for a line of another system.

The session is asked before it reads a line, so each is judged by those before it alone. An alarm is appended
with learn=false: it teaches nothing. The threshold lies between the 98 % quantile of the last 500 scores that
were no alarm and 1, by default at 7 tenths of the way. The first lines, --warm-up, are never an alarm. After
3 alarms in a row the log itself has changed: what follows is learned, and soon is no alarm any more. If it
stays one for 20 lines in a row, the threshold begins anew, with another warm-up.
"""

import json
import statistics
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated

import typer

from rlstm_client import Client, Retries, Session
from rlstm_client.cli import inputs
from rlstm_client.cli.exits import CommandError, one_line_errors

LONGEST = 4096  # characters of a line that are read
HISTORY = 500  # scores that the threshold remembers
PERCENT = 98  # the quantile of them that it starts from
MARGIN = 0.7
SPARE_BITS = 8.0  # what a byte costs of which nothing is known
WARM_UP = 50
LASTING = Retries(attempts=10)  # a server that starts again is waited for, 45 to 90 seconds
PATIENCE = 3  # alarms in a row that teach nothing
LONGEST_ALARM = 20  # alarms in a row after which the scores before them say nothing any more


@dataclass
class Threshold:
    """A limit for the next score, from earlier ones that were below theirs."""

    warm_up: int = WARM_UP
    margin: float = MARGIN
    scores: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    in_a_row: int = 0

    @property
    def limit(self) -> float | None:
        """The highest score that is no alarm; None while there is too little history."""
        if len(self.scores) < self.warm_up:
            return None
        usual = statistics.quantiles(self.scores, n=100, method="inclusive")[PERCENT - 1]
        return usual + self.margin * max(0.0, 1 - usual)

    def exceeded(self, score: float) -> bool:
        """Judge a score by those before it; one that is no alarm is remembered."""
        limit = self.limit
        if limit is not None and score > limit:
            self.in_a_row += 1
            if self.in_a_row <= LONGEST_ALARM:
                return True
            self.scores.clear()
        self.in_a_row = 0
        self.scores.append(score)
        return False

    @property
    def teaches(self) -> bool:
        """Whether the line of the last score is learned: no alarm, or one too many for a passing one."""
        return not 1 <= self.in_a_row <= PATIENCE


@dataclass(frozen=True)
class Line:
    """A line of the log, what it cost, and the threshold that its score was held against."""

    number: int
    alarm: bool
    score: float
    threshold: float | None
    bits: float
    static_bits: float
    text: str


@dataclass(frozen=True)
class Watch:
    """A session that learns the log, and what its lines are held against."""

    session: Session
    threshold: Threshold

    def bits(self, text: str) -> tuple[float, float]:
        """Say what a text would cost next, to what was learned and to the model as loaded.

        Raises:
            CommandError: the session does not tell the second.
        """
        best = self.session.score([text], unit="bits").best
        if best.static_logprob is None:
            raise CommandError("the session cannot be watched: it has no frozen baseline to compare with")
        return -best.logprob, -best.static_logprob

    def lines(self, lines: Iterable[str]) -> Iterator[Line]:
        """Judge each line, then append it."""
        for number, line in enumerate(lines, 1):
            text, limit = line[:LONGEST] + "\n", self.threshold.limit
            bits, static_bits = self.bits(text)
            score = bits / (SPARE_BITS + static_bits)
            alarm = self.threshold.exceeded(score)
            self.session.append(text, learn=self.threshold.teaches, scores="none")
            yield Line(number, alarm, score, limit, bits, static_bits, line)


@contextmanager
def watching(client: Client, threshold: Threshold, session: str | None, *, keep: bool) -> Iterator[Watch]:
    """Open the session of a watch; one that was made and is not to be kept ends with it.

    Raises:
        CommandError: the session cannot be watched. That is told before there is a line.
    """
    learned = client.sessions.get(session) if session else client.sessions.create()
    try:
        watch = Watch(learned, threshold)
        watch.bits("\n")
        yield watch
    finally:
        if not (session or keep):
            learned.delete()


def lines_of_input() -> Iterator[str]:
    """Yield the lines of standard input as they come. Bytes that are no text are replaced: no log stops."""
    while line := sys.stdin.buffer.readline():
        yield line.decode("utf-8", "replace").rstrip("\r\n")


def log_watch(
    *,
    session: Annotated[
        str | None, typer.Option(help="The id of a session that knows the log already.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the session, and tell its id.")] = False,
    margin: Annotated[float, typer.Option(min=0, max=1, help="How far from the usual score to 1.")] = MARGIN,
    warm_up: Annotated[int, typer.Option(min=2, help="Lines before the first threshold.")] = WARM_UP,
    all_lines: Annotated[bool, typer.Option("--all", help="Write every line, not only alarms.")] = False,
    url: inputs.Url = "http://127.0.0.1:8000",
    api_key: inputs.ApiKey = None,
) -> None:
    """Write alarms as lines of JSON."""
    count = alarms = 0
    with (
        Client(url, api_key=api_key) as client,
        Client(url, api_key=api_key, retries=LASTING) as lasting,
        watching(client, Threshold(warm_up, margin), session, keep=keep) as opened,
    ):
        watch = replace(opened, session=lasting.sessions.get(opened.session.id))
        try:
            for line in watch.lines(lines_of_input()):
                count, alarms = line.number, alarms + line.alarm
                if line.alarm or all_lines:
                    sys.stdout.write(json.dumps(asdict(line)) + "\n")
                    sys.stdout.flush()
        finally:
            more = f"; go on with --session {watch.session.id}" if session or keep else ""
            sys.stderr.write(f"{count:,} lines, {alarms:,} alarms{more}\n")


if __name__ == "__main__":
    with one_line_errors():
        typer.run(log_watch)
