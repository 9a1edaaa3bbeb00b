"""`rlstm surprisal`: what each word of texts costs, frozen and adapted, as a table for a reading study."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

import click

from rlstm_client import AsyncClient, AsyncSession, texts
from rlstm_client.cli import inputs, items
from rlstm_client.cli.exits import CommandError
from rlstm_client.cli.items import Item
from rlstm_client.cli.kept import USUAL, Service, service
from rlstm_client.cli.words import By, Costs, KenLM, Reading, Space, Table, To
from rlstm_client.models import AppendResult, ScoredItem, Unit
from rlstm_client.options import CreateOptions

AT_ONCE: Final = 32  # texts in one request
CHARACTERS_AT_ONCE: Final = 100_000  # of several texts

Reset = Literal["item", "condition", "never"]
Adapts = Literal["frozen", "weights", "memory", "both"]

reset_option = click.option(
    "--reset", type=click.Choice(get_args(Reset)), default="item", help="When what was learned is forgotten."
)


@dataclass
class Reader:
    """What reads texts: a model, how it adapts, and when it forgets what it learned.

    learn_first  a text that is read and learned before all others, or no text
    freeze       whether nothing is learned after it
    """

    client: AsyncClient
    unit: Unit
    model: str | None = None
    adapt: Adapts = "both"
    reset: Reset = "item"
    learn_first: str = ""
    freeze: bool = False
    _name: str = field(default="", init=False)
    _unknown: int | None = field(default=None, init=False)

    async def read(self, given: Sequence[Item]) -> AsyncIterator[Reading]:
        """Read the texts in their order."""
        info = await self.client.info()
        self._name = str(self.model or info.model)
        told = next((one for one in info.models if one["model"] == self._name), {})
        self._unknown = told.get("vocabulary", {}).get("unknown_id")
        alone = self.reset == "item" and not self.learn_first
        async for reading in self._read_alone(given) if alone else self._read_on(given):
            yield reading

    async def _read_alone(self, given: Sequence[Item]) -> AsyncIterator[Reading]:
        """Score each text on its own: what is learned in it is forgotten after it."""
        options: dict[str, Any] = {} if self.adapt == "frozen" else {"adapt": self.adapt}
        if self.model is not None:
            options["model"] = self.model
        for some in batches(given):
            asked = [{"text": item.text + "\n"} for item in some]
            result = await self.client.score(items=asked, unit=self.unit, spaces=True, **options)
            for item, answer in zip(some, result.items, strict=True):
                yield self._reading(item, answer)

    async def _read_on(self, given: Sequence[Item]) -> AsyncIterator[Reading]:
        """Append each text to a session: what is learned in it helps in the next."""
        learn = self.adapt != "frozen" and not self.freeze
        characters: dict[str, int] = {}
        sessions: dict[str, AsyncSession] = {}
        async with AsyncExitStack() as stack:
            first = await self._learned_first(stack)
            for item in given:
                name = item.columns[0]["condition"] if self.reset == "condition" else ""
                if name not in sessions:
                    sessions[name] = await self._begin(first)
                    stack.push_async_callback(self._end, sessions, name)
                    characters[name] = len(self.learn_first)
                whole = item.text + "\n"
                answer = await sessions[name].append(
                    whole, final=True, learn=learn, unit=self.unit, scores="tokens", spaces=True
                )
                yield self._reading(item, answer, characters[name])
                characters[name] += len(whole)
                if self.reset == "item":
                    await self._end(sessions, name)

    async def _learned_first(self, stack: AsyncExitStack) -> AsyncSession | None:
        """A session that has read what is learned first, and forgot where it was in it."""
        if not self.learn_first:
            return None
        session = await self._begin(None)
        stack.push_async_callback(session.delete)
        await session.append(self.learn_first, final=True, scores="none")
        await session.reset(what="recurrent")
        return session

    async def _begin(self, first: AsyncSession | None) -> AsyncSession:
        if first is not None:
            return await first.fork()
        options: CreateOptions = {"adapt": "memory" if self.adapt == "frozen" else self.adapt}
        if self.model is not None:
            options["model"] = self.model
        return await self.client.sessions.create(**options)

    async def _end(self, sessions: dict[str, AsyncSession], name: str) -> None:
        if name in sessions:
            await sessions.pop(name).delete()

    def _reading(self, item: Item, answer: ScoredItem | AppendResult, offset: int = 0) -> Reading:
        """Take the columns of an answer; its spans count from ``offset`` before the text."""
        adapted = [-logprob for logprob in answer.logprobs]
        return Reading(
            item=item,
            model=self._name,
            starts=[start - offset for start in answer.starts],
            frozen=[-logprob for logprob in answer.static_logprobs] or adapted,
            adapted=None if self.adapt == "frozen" else adapted,
            frozen_space=[-logprob for logprob in answer.static_space_logprobs or answer.space_logprobs],
            adapted_space=[-logprob for logprob in answer.space_logprobs],
            entropies=answer.entropies,
            unknown=[token == self._unknown for token in answer.ids],
        )


def batches(given: Sequence[Item]) -> Iterator[list[Item]]:
    """Yield the texts in groups that make a request."""
    batch: list[Item] = []
    characters = 0
    for item in given:
        if batch and (len(batch) == AT_ONCE or characters + len(item.text) > CHARACTERS_AT_ONCE):
            yield batch
            batch, characters = [], 0
        batch.append(item)
        characters += len(item.text)
    yield batch


@click.command()
@click.argument("file", type=inputs.FILE, help="Text, or a table (.csv, .tsv); - is standard input.")
@click.option(
    "form",
    "--from",
    type=click.Choice(get_args(items.Form)),
    help="What the file is, where its name does not tell.",
)
@click.option("--column", help="Of a table [sentence, text, or word: a word a row].")
@click.option("mark", "--regions", help="What parts regions, such as |.")
@click.option("--by", type=click.Choice(get_args(By)), default="word", help="What has a row.")
@click.option("--to", type=click.Choice(get_args(To)), default="csv", help="What is written.")
@click.option("--unit", type=click.Choice(get_args(Unit)), help="Of costs and entropies [bits].")
@click.option(
    "--adapt",
    type=click.Choice(get_args(Adapts)),
    default="both",
    help="What adapts: nothing, weights, a memory, or both.",
)
@reset_option
@click.option("--adapt-on", type=inputs.FILE, help="A text that is learned before all.")
@click.option("freeze", "--then-freeze", is_flag=True, help="Learn nothing after --adapt-on.")
@click.option(
    "--kenlm",
    type=click.Choice(get_args(Costs)),
    help="Write these costs of lines as KenLM's query does, in log10.",
)
@click.option(
    "--space", type=click.Choice(get_args(Space)), help="Of --kenlm: the word that a space counts in."
)
@service
@inputs.how
def surprisal(
    service: Service,
    how: inputs.How,
    file: Path,
    form: items.Form | None,
    column: str | None,
    mark: str | None,
    by: By,
    to: To,
    unit: Unit | None,
    adapt: Adapts,
    reset: Reset,
    adapt_on: Path | None,
    freeze: bool,
    kenlm: Costs | None,
    space: Space | None,
) -> None:
    """Write what each word of a text costs, frozen and adapted, as a table with a row a word.

    Example: rlstm surprisal --local story.txt > words.csv
    """
    of_tables: Mapping[str, object] = {
        "--from": form,
        "--column": column,
        "--regions": mark,
        "--by": by != "word",
        "--to": to != "csv",
        "--unit": unit not in (None, "log10"),
    }
    adapt = "frozen" if kenlm == "frozen" else adapt
    _check([name for name, given in of_tables.items() if given], kenlm, space, adapt, adapt_on, freeze)
    learn_first = _text(adapt_on, how) if adapt_on else ""
    read = items.read_items(file, how, "sentences" if kenlm else form, column=column, mark=mark)
    _check_read(file, read, by, reset)
    out = KenLM(kenlm, space or "leading") if kenlm else Table(read, by, to, unit or "bits")

    async def run(client: AsyncClient) -> None:
        model = await service.named(client, USUAL)
        async for reading in Reader(client, out.unit, model, adapt, reset, learn_first, freeze).read(
            read.items
        ):
            out.write(reading)

    service.run(run, USUAL)
    out.close()


def _check(
    of_tables: Sequence[str],
    kenlm: Costs | None,
    space: Space | None,
    adapt: Adapts,
    adapt_on: Path | None,
    freeze: bool,
) -> None:
    """Refuse options that do not go together."""
    if kenlm and of_tables:
        raise CommandError(f"--kenlm reads lines and writes log10: {', '.join(of_tables)} is of tables")
    if space and not kenlm:
        raise CommandError("--space goes with --kenlm: a table has both conventions")
    if freeze and not adapt_on:
        raise CommandError("--then-freeze goes with --adapt-on")
    if adapt == "frozen" and (adapt_on or kenlm == "adapted"):
        raise CommandError("--adapt frozen learns nothing: --adapt-on and --kenlm adapted do not go with it")


def _check_read(file: Path, read: items.Read, by: By, reset: Reset) -> None:
    """Refuse what a file has not."""
    if by == "region" and not read.items[0].regions:
        raise CommandError(f"{file} has no regions: give --regions, or a table of words with a column region")
    if reset == "condition" and "condition" not in read.header:
        raise CommandError(f"{file} has no column condition")


def _text(file: Path, how: inputs.How) -> str:
    text = "".join(texts.lines(how.read(file))).rstrip()
    if not text:
        raise CommandError(f"{file} holds no word")
    return text + "\n"
