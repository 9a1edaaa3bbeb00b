"""`rlstm complete`: what is typed is learned, and what the model proposes only if it is kept.

Lines come from the keyboard or through a pipe. Proposals go to standard output, all else to standard error.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from rlstm_client import AsyncClient, AsyncSession, texts
from rlstm_client.cli import inputs, output
from rlstm_client.cli.kept import USUAL, Kept, kept
from rlstm_client.cli.sources import pumped

ASK: Final = "? "


@dataclass
class Desk:
    """A session and its user: every line that is kept is learned.

    max_tokens  of a proposal
    seed        of the next one
    """

    kept: Kept
    session: AsyncSession
    proposals: int
    max_tokens: int
    temperature: float
    seed: int
    bytes: int = 0
    static_bits: float = 0.0
    adapted_bits: float = 0.0

    async def keep(self, line: str) -> None:
        """Append a line of the user's, and learn it."""
        answer = await self.session.append(line + "\n", scores="totals", unit="bits")
        await self.kept.save(self.session)
        if answer.totals is not None and answer.totals.static_logprob is not None:
            self.bytes += answer.totals.bytes
            self.static_bits -= answer.totals.static_logprob
            self.adapted_bits -= answer.totals.logprob

    async def propose(self, beginning: str) -> list[str]:
        """Return different ways to go on; the session stays as it is, since a copy of it is asked."""
        copy = await self.session.fork()
        try:
            if beginning:
                await copy.append(beginning, learn=False, scores="none")
            ways = [
                await copy.generate(
                    max_tokens=self.max_tokens,
                    temperature=self.temperature,
                    seed=self.seed + number,
                    stop="\n",
                )
                for number in range(self.proposals)
            ]
        finally:
            await copy.delete()
        self.seed += self.proposals
        return list(dict.fromkeys(way.text for way in ways))

    async def talk(self, lines: AsyncIterator[str]) -> None:
        """Learn line after line; answer those that ask, and keep the proposal that is chosen."""
        async for line in lines:
            if not line.startswith(ASK):
                if line:
                    await self.keep(line)
                continue
            beginning = line.removeprefix(ASK)
            ways = await self.propose(beginning)
            for number, way in enumerate(ways, 1):
                output.write(f"{number}: {beginning}{way}\n")
            answer = (await anext(lines, "")).strip()
            if answer.isdecimal() and 1 <= int(answer) <= len(ways):
                await self.keep(beginning + ways[int(answer) - 1])

    def summary(self) -> str:
        """Say what learning saved on the lines that were kept."""
        if not self.bytes:
            return "nothing was learned"
        static, adapted = self.static_bits / self.bytes, self.adapted_bits / self.bytes
        return f"{self.bytes:,} bytes learned: static {static:.3f}, adapted {adapted:.3f} bits per byte"


@click.command()
@click.option("--proposals", type=click.IntRange(1, 9), default=3, help="How many at a time.")
@click.option("--max-tokens", "-n", default=80, help="At most so many new tokens.")
@click.option("--temperature", "-t", default=0.7, help="0 is greedy.")
@click.option("--seed", default=1, help="The same seed gives the same proposals.")
@kept
@inputs.how
def complete(kept: Kept, how: inputs.How, **asked: Any) -> None:
    """Learn each line that is typed; "? Begin" asks how one that begins so may go on, and 1, 2 or 3 keeps it.

    Example: rlstm complete --name diary
    """

    async def run(client: AsyncClient) -> None:
        async with kept.session(client, USUAL) as session:
            desk = Desk(kept, session, **asked)
            try:
                await desk.talk(_typed(how))
            finally:
                click.echo(desk.summary(), err=True)

    kept.run(run, USUAL)


async def _typed(how: inputs.How) -> AsyncIterator[str]:
    """Yield lines, without their ends, as they are typed or piped."""
    async with aclosing(pumped(texts.lines(how.read(Path("-"))))) as lines:
        while True:
            if sys.stdin.isatty():
                click.echo("> ", nl=False, err=True)
            if (line := await anext(lines, None)) is None:
                return
            yield line.removesuffix("\n")
