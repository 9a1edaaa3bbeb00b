"""Completions in your own style: what you type is learned, what the model proposes only if you keep it.

    python complete.py                    each line that you type is learned
    ? How a line beg                      asks how it may go on; 1, 2 or 3 keeps that line, all else none
    python complete.py --session ID       goes on where you were; the id is told at the end

For scripts the same lines come through a pipe. Proposals go to standard output, all else to standard error.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console

from rlstm_client import Client, Session
from rlstm_client.cli import inputs
from rlstm_client.cli.exits import CommandError, one_line_errors
from rlstm_client.cli.output import write

ASK = "? "


@dataclass
class Desk:
    """A session and its user: every line that is kept is learned."""

    session: Session
    proposals: int
    max_tokens: int
    temperature: float
    seed: int
    bytes: int = 0
    static_bits: float = 0.0
    adapted_bits: float = 0.0

    def keep(self, line: str) -> None:
        """Append a line of the user's, and learn it."""
        totals = self.session.append(line + "\n", scores="totals", unit="bits").totals
        if totals is not None and totals.static_logprob is not None:
            self.bytes += totals.bytes
            self.static_bits -= totals.static_logprob
            self.adapted_bits -= totals.logprob

    def propose(self, beginning: str) -> list[str]:
        """Return different ways to go on; the session stays as it is, since a copy of it is asked."""
        copy = self.session.fork()
        try:
            if beginning:
                copy.append(beginning, learn=False, scores="none")
            ways = [self._continued(copy, self.seed + number) for number in range(self.proposals)]
        finally:
            copy.delete()
        self.seed += self.proposals
        return list(dict.fromkeys(ways))

    def _continued(self, copy: Session, seed: int) -> str:
        generation = copy.generate(
            max_tokens=self.max_tokens, temperature=self.temperature, seed=seed, stop="\n"
        )
        return generation.text

    def summary(self) -> str:
        """Say what learning saved on the lines that were kept."""
        if not self.bytes:
            return "nothing was learned"
        static, adapted = self.static_bits / self.bytes, self.adapted_bits / self.bytes
        return f"{self.bytes:,} bytes learned: static {static:.3f}, adapted {adapted:.3f} bits per byte"


def typed(console: Console) -> Iterator[str]:
    """Yield lines as they are typed, or as they come from a pipe."""
    while True:
        if sys.stdin.isatty():
            console.print("> ", end="")
        line = sys.stdin.buffer.readline()
        if not line:
            return
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise CommandError("standard input is not UTF-8 text") from error


def talk(desk: Desk, lines: Iterator[str]) -> None:
    """Learn line after line; answer those that ask."""
    for line in lines:
        if not line.startswith(ASK):
            if line:
                desk.keep(line)
            continue
        beginning = line.removeprefix(ASK)
        ways = desk.propose(beginning)
        for number, way in enumerate(ways, 1):
            write(f"{number}: {beginning}{way}\n")
        answer = next(lines, "").strip()
        if answer.isdecimal() and 1 <= int(answer) <= len(ways):
            desk.keep(beginning + ways[int(answer) - 1])


def complete(
    *,
    session: Annotated[str | None, typer.Option(help="The id of a session to go on with.")] = None,
    proposals: Annotated[int, typer.Option(min=1, max=9, help="How many at a time.")] = 3,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="At most so many new tokens.")] = 80,
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy.")] = 0.7,
    seed: Annotated[int, typer.Option(help="The same seed gives the same proposals.")] = 1,
    url: inputs.Url = "http://127.0.0.1:8000",
    api_key: inputs.ApiKey = None,
) -> None:
    """Learn what is typed, and propose how it may go on."""
    console = Console(stderr=True, highlight=False)
    with Client(url, api_key=api_key) as client:
        kept = client.sessions.get(session) if session else client.sessions.create()
        kept.info()  # a session that is not there is told before anything is typed
        desk = Desk(kept, proposals, max_tokens, temperature, seed)
        try:
            talk(desk, typed(console))
        finally:
            console.print(f"{desk.summary()}; go on with --session {kept.id}", soft_wrap=True)


if __name__ == "__main__":
    with one_line_errors():
        typer.run(complete)
