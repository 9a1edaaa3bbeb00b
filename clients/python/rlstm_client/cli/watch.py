"""`rlstm watch`: a line that its session did not expect is an alarm, every other line is learned.

What the watch knows is the note of its session, and is committed with the line that it comes of: a watch that
is stopped, or killed, goes on behind the line that was committed last.
"""

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise, repeat, zip_longest
from pathlib import Path
from typing import Any, Final, get_args

import click

from rlstm_client import AsyncClient, AsyncSession
from rlstm_client.cli import inputs, output
from rlstm_client.cli.alarms import Counts, alertmanager, metrics
from rlstm_client.cli.exits import CommandError
from rlstm_client.cli.feeds import Collector, Journal
from rlstm_client.cli.judging import (
    THRESHOLD,
    WARM_UP,
    Judge,
    Reason,
    Seen,
    Verdict,
    read_note,
    spans_of_words,
)
from rlstm_client.cli.kept import LASTING, Kept, Service, service
from rlstm_client.cli.sources import File, Line, StandardInput
from rlstm_client.models import Adapt
from rlstm_client.options import ChangeOptions

READ: Final = 1_000
"""Characters of a line that are judged, learned and shown: its beginning."""

DEAREST: Final = 3
"""Words of an alarm that are told: those that cost most."""

SAVE_LINES: Final = 1_000
"""What is known of so many lines is committed at the latest."""


Source = File | StandardInput | Journal | Collector
Tell = Callable[[Mapping[str, Any]], Awaitable[None]]


@dataclass
class Watch:
    """One log, the session that learns it, and what its lines are held against.

    version  of the session, which nobody else may change meanwhile
    place    where in the log its session was left
    """

    log: Source
    judge: Judge
    kept: Kept
    session: AsyncSession = field(init=False)
    version: int = 0
    place: Mapping[str, Any] = field(default_factory=dict)
    alarms: Counter[str] = field(default_factory=Counter)
    unsaved: int = 0

    @asynccontextmanager
    async def opened(self, client: AsyncClient, lasting: AsyncClient) -> AsyncIterator["Watch"]:
        """Go on where the session was left; one that is not kept ends with the watch.

        Raises:
            CommandError: the session cannot be watched.
        """
        async with self.kept.session(client) as session:
            self.session = lasting.sessions.get(session.id)
            try:
                found = await self.session.note()
                self.version, self.place = found.version, read_note(found.note, self.judge).get("place", {})
                await self._bits("\n")
                yield self
            finally:
                await self.kept.save(self.session)
                sys.stderr.write(
                    f"{self.log.name}: {self.judge.lines:,} lines, {self.alarms.total():,} alarms\n"
                )

    async def run(self, tell: Tell, *, every: bool) -> None:
        """Judge each line, tell of alarms or of `every` line, and learn what is not alarming.

        An alarm is told before it is committed: killed in between, the watch tells it again.
        """
        async with aclosing(self.log.lines(self.place)) as lines:
            async for line in lines:
                text = line.text[:READ] + "\n"
                seen = self.judge.compare(text)
                bits = await self._bits(text) if seen.new else None
                verdict = self.judge.judge(seen, bits)
                self.unsaved += 1
                if every or verdict.reason:
                    await tell(await self._told(line, seen, verdict, bits))
                due = verdict.reason is not None or self.judge.lines % SAVE_LINES == 0
                if verdict.learn:
                    await self._commit(text)
                elif due:
                    await self._commit()
                if due:
                    await self.kept.save(self.session)
                if verdict.reason is not None:
                    self.alarms[verdict.reason] += 1
        if self.unsaved:
            await self._commit()

    async def _bits(self, text: str) -> tuple[float, float]:
        """Say what a text would cost next, to what was learned and to the model as loaded."""
        best = (await self.session.score([text], unit="bits")).best
        if best.static_logprob is None:
            raise CommandError("the session cannot be watched: it has no frozen baseline to compare with")
        return -best.logprob, -best.static_logprob

    async def _commit(self, text: str | None = None) -> None:
        """Commit what is known of the lines so far, with the last one where it is learned."""
        given: ChangeOptions = {"if_match": self.version}
        note = self.judge.note(place=self.log.place)
        if text is None:
            self.version = (await self.session.update(note=note, **given)).version
        else:
            self.version = (await self.session.append(text, note=note, scores="none", **given)).version
        self.unsaved = 0

    async def _told(
        self, line: Line, seen: Seen, verdict: Verdict, bits: tuple[float, float] | None
    ) -> Mapping[str, Any]:
        told: dict[str, Any] = {"log": self.log.name, "number": self.judge.lines, "reason": verdict.reason}
        if bits is not None:
            told |= {"score": verdict.score, "bits": bits[0], "static_bits": bits[1]}
        text = line.text[:READ]
        told |= {"bytes": line.size, "text": text}
        if line.labels:
            told["labels"] = line.labels
        if verdict.reason is None:
            return told
        spans = [{"start": start, "end": end} for start, end in seen.spans]
        if verdict.reason == "score":
            spans = await self._dearest(text)
        count = self.judge.alike[f"{seen.name} {verdict.reason}"]
        return told | {"template": seen.name, "count": count, "spans": spans}

    async def _dearest(self, text: str) -> list[Any]:
        """Give the words that cost most bits: each the more that a beginning costs with it."""
        words = spans_of_words(text)
        ranking = await self.session.score([text[:end] for _, end in words], unit="bits")
        costs = [-each.logprob for each in ranking.candidates]
        bits = [now - before for before, now in pairwise([0.0, *costs])]
        dearest = sorted(sorted(range(len(words)), key=lambda at: -bits[at])[:DEAREST])
        return [{"start": words[at][0], "end": words[at][1], "bits": round(bits[at], 2)} for at in dearest]


@dataclass(frozen=True, kw_only=True)
class Alarms:
    """Where alarms go beside standard output."""

    alertmanager: str | None = inputs.option("Send alarms to this Alertmanager too.", metavar="URL")
    metrics: str | None = inputs.option("Serve metrics for Prometheus here.", metavar="[HOST:]PORT")

    @asynccontextmanager
    async def told(self, watches: Sequence[Watch]) -> AsyncIterator[Tell]:
        """Give what writes a line, and sends it where it is an alarm; what was counted is served."""

        def counted() -> list[Counts]:
            return [(one.log.name, one.judge.lines, one.alarms) for one in watches]

        async with AsyncExitStack() as stack:
            manager = None
            if self.metrics is not None:
                address = _address("--metrics", self.metrics)
                stack.enter_context(metrics(address, counted, get_args(Reason)))
            if self.alertmanager is not None:
                manager = await stack.enter_async_context(alertmanager(self.alertmanager))

            async def tell(told: Mapping[str, Any]) -> None:
                output.write(json.dumps(told) + "\n")
                if manager is not None and told["reason"]:
                    await manager.tell(told)

            yield tell


@dataclass(frozen=True, kw_only=True)
class Logs:
    """What is watched, what session learns each log, and what is said of its lines."""

    logs: Sequence[Path] = inputs.argument("The logs. Without one, or -: standard input.")
    journal: Sequence[str] = inputs.option(
        "What `journalctl -o json` wrote, or writes into standard input; or run it.",
        metavar="FILE|-|journalctl",
    )
    otlp: Sequence[str] = inputs.option("Take OTLP/HTTP logs from a collector here.", metavar="[HOST:]PORT")
    follow: bool = inputs.option("Read on as the files grow and rotate.", "--follow", "-F", default=False)
    name: Sequence[str] = inputs.option(
        "Keep the session under this name, and go on with it; one for each log."
    )
    state: Sequence[Path] = inputs.option("With --local: keep the session in this file; one for each log.")
    adapt: Adapt = inputs.option("What learns the log, of a new session.", default="memory")
    threshold: float = inputs.option(
        "The highest score, of about 1, that is no alarm.", default=THRESHOLD, type=click.FloatRange(0)
    )
    warm_up: int = inputs.option("Lines before the first alarm.", default=WARM_UP, type=click.IntRange(2))
    every: bool = inputs.option("Write every line, not only alarms.", "--all", default=False)

    def watches(self, service: Service, how: inputs.How) -> list["Watch"]:
        """Open what is to be watched, each with its session.

        Raises:
            CommandError: there is none, or one twice, or not as many sessions. Raises as `Kept`.
        """
        sources = self._sources(how)
        sessions = self._sessions(len(sources), service)
        pairs = zip(sources, sessions, strict=True)
        return [Watch(log, Judge(self.threshold, self.warm_up), kept) for log, kept in pairs]

    def _sources(self, how: inputs.How) -> list[Source]:
        """Logs, then journals, then what collectors send; or standard input."""
        places, logs = [*map(str, self.logs), *self.journal], self.logs
        if not places and not self.otlp:
            if inputs.nothing_piped():
                raise CommandError("give a log, or pipe one in")
            logs = [Path("-")]
        if len({*places}) < len(places):
            raise CommandError("give each log once")
        follow = self.follow
        return [
            *(StandardInput(how) if str(log) == "-" else File(log, follow=follow, how=how) for log in logs),
            *(Journal(place, follow=follow) for place in self.journal),
            *(Collector(_address("--otlp", given)) for given in self.otlp),
        ]

    def _sessions(self, count: int, service: Service) -> list[Kept]:
        for option, given in (("--name", self.name), ("--state", self.state)):
            if given and (len(given) != count or len({*given}) < count):
                raise CommandError(f"give as many different {option} as logs: {count}, not {len(given)}")
        kept_by = (
            zip_longest(self.name, self.state) if self.name or self.state else repeat((None, None), count)
        )
        return [Kept(name=name, state=state, adapt=self.adapt, **vars(service)) for name, state in kept_by]


@click.command()
@inputs.given("logs", Logs)
@service
@inputs.given("how", inputs.How, invalid="replace")
@inputs.given("alarms", Alarms)
def watch(logs: Logs, service: Service, how: inputs.How, alarms: Alarms) -> None:
    """Write the strange lines of a log as JSON; what is usual is learned as it is read.

    Example: tail -F app.log | rlstm watch --name app >> alarms.jsonl
    """
    watches = logs.watches(service, how)

    async def run(client: AsyncClient) -> None:
        async with AsyncExitStack() as stack:
            tell = await stack.enter_async_context(alarms.told(watches))
            lasting = client
            if not service.local:
                lasting = AsyncClient(service.url, api_key=service.api_key, retries=LASTING)
                await stack.enter_async_context(lasting)
            for one in watches:
                await stack.enter_async_context(one.opened(client, lasting))
            await _together(one.run(tell, every=logs.every) for one in watches)

    with _sigterm_as_sigint():
        service.run(run)


@contextmanager
def _sigterm_as_sigint() -> Iterator[None]:
    """End in order, as by Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _address(option: str, given: str) -> tuple[str, int]:
    host, _, port = given.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise CommandError(f"{option} takes [HOST:]PORT, not {given!r}")
    return host or "127.0.0.1", int(port)


async def _together(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do all at once; where one fails the others are ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in ended:
            task.result()
    finally:
        while left := [task for task in tasks if not task.done()]:
            for task in left:
                task.cancel()  # once more each second: what ends at the same moment may swallow it
            await asyncio.wait(left, timeout=1)
        await asyncio.gather(*tasks, return_exceptions=True)
