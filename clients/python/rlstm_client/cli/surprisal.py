"""`rlstm surprisal`: what each word of texts costs, frozen and adapted, as a table for a reading study."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

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

RESET: Final = "When what was learned is forgotten."


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


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is read and how, and what is written.

    Raises:
        CommandError: options do not go together.
    """

    file: Path = inputs.argument("Text, or a table (.csv, .tsv); - is standard input.")
    form: items.Form | None = inputs.option("What the file is, where its name does not tell.", "--from")
    column: str | None = inputs.option("Of a table [sentence, text, or word: a word a row].")
    mark: str | None = inputs.option("What parts regions, such as |.", "--regions")
    by: By = inputs.option("What has a row.", default="word")
    to: To = inputs.option("What is written.", default="csv")
    unit: Unit | None = inputs.option("Of costs and entropies [bits].")
    adapt: Adapts = inputs.option("What adapts: nothing, weights, a memory, or both.", default="both")
    reset: Reset = inputs.option(RESET, default="item")
    adapt_on: Path | None = inputs.option("A text that is learned before all.")
    freeze: bool = inputs.option("Learn nothing after --adapt-on.", "--then-freeze", default=False)
    kenlm: Costs | None = inputs.option("Write these costs of lines as KenLM's query does, in log10.")
    space: Space | None = inputs.option("Of --kenlm: the word that a space counts in.")

    def __post_init__(self) -> None:
        of_tables = {
            "--from": self.form,
            "--column": self.column,
            "--regions": self.mark,
            "--by": self.by != "word",
            "--to": self.to != "csv",
            "--unit": self.unit not in (None, "log10"),
        }
        given = [name for name, is_given in of_tables.items() if is_given]
        if self.kenlm and given:
            raise CommandError(f"--kenlm reads lines and writes log10: {', '.join(given)} is of tables")
        if self.space and not self.kenlm:
            raise CommandError("--space goes with --kenlm: a table has both conventions")
        if self.freeze and not self.adapt_on:
            raise CommandError("--then-freeze goes with --adapt-on")
        if "frozen" in (self.adapt, self.kenlm) and (self.adapt_on or self.kenlm == "adapted"):
            learns = "--adapt-on and --kenlm adapted do not go with it"
            raise CommandError(f"--adapt frozen learns nothing: {learns}")

    def read(self, how: inputs.How) -> items.Read:
        """Read the texts. Raises as `read_items`, and CommandError for what a file has not."""
        form = "sentences" if self.kenlm else self.form
        read = items.read_items(self.file, how, form, column=self.column, mark=self.mark)
        if self.by == "region" and not read.items[0].regions:
            missing = "no regions: give --regions, or a table of words with a column region"
            raise CommandError(f"{self.file} has {missing}")
        if self.reset == "condition" and "condition" not in read.header:
            raise CommandError(f"{self.file} has no column condition")
        return read

    def reader(self, client: AsyncClient, unit: Unit, model: str | None, learn_first: str) -> Reader:
        """Return what reads them."""
        adapt = "frozen" if self.kenlm == "frozen" else self.adapt
        return Reader(client, unit, model, adapt, self.reset, learn_first, self.freeze)


@click.command()
@inputs.given("asked", Asked)
@service
@inputs.how
def surprisal(asked: Asked, service: Service, how: inputs.How) -> None:
    """Write what each word of a text costs, frozen and adapted, as a table with a row a word.

    Example: rlstm surprisal --local story.txt > words.csv
    """
    learn_first = _text(asked.adapt_on, how) if asked.adapt_on else ""
    read = asked.read(how)
    out = (
        KenLM(asked.kenlm, asked.space or "leading")
        if asked.kenlm
        else Table(read, asked.by, asked.to, asked.unit or "bits")
    )

    async def run(client: AsyncClient) -> None:
        model = await service.named(client, USUAL)
        async for reading in asked.reader(client, out.unit, model, learn_first).read(read.items):
            out.write(reading)

    service.run(run, USUAL)
    out.close()


def _text(file: Path, how: inputs.How) -> str:
    text = "".join(texts.lines(how.read(file))).rstrip()
    if not text:
        raise CommandError(f"{file} holds no word")
    return text + "\n"
