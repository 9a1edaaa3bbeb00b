"""`rlstm watch`: a line that its session did not expect is an alarm, every other line is learned.

What the watch knows is the note of its session, and is committed with the line that it comes of: a watch that
is stopped, or killed, goes on behind the line that was committed last.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from rlstm_client import AsyncClient, AsyncSession, Retries
from rlstm_client._http import DEFAULT_URL
from rlstm_client.cli import inputs, kept, output
from rlstm_client.cli.exits import CommandError
from rlstm_client.cli.judging import THRESHOLD, WARM_UP, Judge, Verdict, read_note
from rlstm_client.cli.kept import KeptSession
from rlstm_client.cli.sources import File, Line, StandardInput
from rlstm_client.models import Adapt
from rlstm_client.options import ChangeOptions, CreateOptions

app = typer.Typer(add_completion=False, rich_markup_mode=None)

READ: Final = 1_000
"""Characters of a line that are judged, learned and shown: its beginning."""

SAVE_LINES: Final = 1_000
"""What is known of so many lines is committed at the latest."""

_LASTING: Final = Retries(attempts=10)
"""A server that starts again is waited for, 45 to 90 seconds."""

Tell = Callable[[Mapping[str, Any]], None]


@dataclass
class Watch:
    """One log, the session that learns it, and what its lines are held against.

    version  of the session, which nobody else may change meanwhile
    place    where in the log its session was left
    """

    log: File | StandardInput
    judge: Judge
    kept: KeptSession = field(init=False)
    session: AsyncSession = field(init=False)
    version: int = 0
    place: Mapping[str, Any] = field(default_factory=dict)
    alarms: int = 0
    unsaved: int = 0

    @asynccontextmanager
    async def opened(
        self, client: AsyncClient, lasting: AsyncClient, wanted: CreateOptions, state: Path | None = None
    ) -> AsyncIterator["Watch"]:
        """Go on where the session was left; one that is not kept ends with the watch.

        Raises:
            CommandError: the session cannot be watched.
        """
        async with kept.opened(client, wanted, state) as self.kept:
            self.session = lasting.sessions.get(self.kept.session.id)
            try:
                found = await self.session.note()
                self.version, self.place = found.version, read_note(found.note, self.judge).get("place", {})
                await self._bits("\n")
                yield self
            finally:
                await self.kept.save()
                sys.stderr.write(f"{self.log.name}: {self.judge.lines:,} lines, {self.alarms:,} alarms\n")

    async def run(self, tell: Tell, *, every: bool) -> None:
        """Judge each line, tell of alarms or of `every` line, and learn what is not alarming.

        An alarm is told before it is committed: killed in between, the watch tells it again.
        """
        async for line in self.log.lines(self.place):
            text = line.text[:READ] + "\n"
            seen = self.judge.compare(text)
            bits = await self._bits(text) if seen.new else None
            verdict = self.judge.judge(seen, bits)
            self.unsaved += 1
            if every or verdict.reason:
                tell(self._told(line, verdict, bits))
            due = verdict.reason is not None or self.judge.lines % SAVE_LINES == 0
            if verdict.learn:
                await self._commit(text)
            elif due:
                await self._commit()
            if due:
                await self.kept.save()
            self.alarms += verdict.reason is not None
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

    def _told(self, line: Line, verdict: Verdict, bits: tuple[float, float] | None) -> Mapping[str, Any]:
        told = {"log": self.log.name, "number": self.judge.lines, "reason": verdict.reason}
        if bits is not None:
            told |= {"score": verdict.score, "bits": bits[0], "static_bits": bits[1]}
        return told | {"bytes": line.size, "text": line.text[:READ]}


@app.command()
def watch(
    logs: Annotated[
        list[Path] | None, typer.Argument(help="The logs. Without one, or -: standard input.")
    ] = None,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-F", help="Read on as the files grow and rotate.")
    ] = False,
    name: Annotated[
        list[str] | None,
        typer.Option(help="Keep the session under this name, and go on with it; one for each log."),
    ] = None,
    local: inputs.Local = False,
    model: inputs.Model = None,
    state: Annotated[
        list[Path] | None, typer.Option(help="With --local: keep the session in this file; one for each log.")
    ] = None,
    adapt: Annotated[Adapt, typer.Option(help="What learns the log, of a new session.")] = "memory",
    threshold: Annotated[
        float, typer.Option(min=0, help="The highest score, of about 1, that is no alarm.")
    ] = THRESHOLD,
    warm_up: Annotated[int, typer.Option(min=2, help="Lines before the first alarm.")] = WARM_UP,
    encoding: inputs.Encoding = None,
    invalid: inputs.Invalid = "replace",
    every: Annotated[bool, typer.Option("--all", help="Write every line, not only alarms.")] = False,
    url: inputs.Url = DEFAULT_URL,
    api_key: inputs.ApiKey = None,
) -> None:
    """Write the strange lines of a log as JSON; what is usual is learned as it is read.

    Example: tail -F app.log | rlstm watch --name app >> alarms.jsonl
    """
    kept.check(local=local, names=name or (), states=state or ())
    if not logs and inputs.nothing_piped():
        raise CommandError("give a log, or pipe one in")
    paths = logs or [Path("-")]
    if len({*paths}) < len(paths):
        raise CommandError("give each log once")
    for option, given in (("--name", name), ("--state", state)):
        if given and (len(given) != len(paths) or len({*given}) < len(given)):
            raise CommandError(f"give as many different {option} as logs: {len(paths)}, not {len(given)}")
    reading: Any = {"encoding": encoding, "invalid": invalid}
    sources = [
        StandardInput(**reading) if str(path) == "-" else File(path, follow=follow, **reading)
        for path in paths
    ]

    wanted: CreateOptions = {"adapt": adapt}
    if model and not local:
        wanted["model"] = model

    async def run() -> None:
        async with AsyncExitStack() as stack:
            client, lasting = await stack.enter_async_context(_clients(url, api_key, local, model))
            watches = []
            for index, log in enumerate(sources):
                one = Watch(log, Judge(threshold, warm_up))
                own: CreateOptions = {**wanted, "name": name[index]} if name else wanted
                opening = one.opened(client, lasting, own, state[index] if state else None)
                watches.append(await stack.enter_async_context(opening))
            await _together(one.run(_tell, every=every) for one in watches)

    asyncio.run(run())


@asynccontextmanager
async def _clients(
    url: str, api_key: str | None, local: bool, model: str | None
) -> AsyncIterator[tuple[AsyncClient, AsyncClient]]:
    """Open a client that soon gives up, to begin with, and one that waits for a server that starts again."""
    async with kept.served(url, api_key, local, model) as client:
        if local:
            yield client, client
            return
        async with AsyncClient(url, api_key=api_key, retries=_LASTING) as lasting:
            yield client, lasting


async def _together(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do all at once; where one fails the others are ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _tell(line: Mapping[str, Any]) -> None:
    output.write(json.dumps(line) + "\n")
