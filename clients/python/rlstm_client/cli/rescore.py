"""`rlstm rescore`: n-best lists, ranked by a session that learns from each winner before the next list.

A candidate's score is its recogniser's own, and alpha times its log-probability (nats) to what was learned,
and static-alpha times that to the model as loaded, and beta for each of its words.
"""

import json
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from rlstm_client import AsyncClient
from rlstm_client.cli import inputs, nbest, output, wer
from rlstm_client.cli.commands import DISTRIBUTION
from rlstm_client.cli.exits import CommandError, Exit
from rlstm_client.cli.kept import USUAL, Kept, kept
from rlstm_client.cli.nbest import Format, NBest
from rlstm_client.cli.wer import Costs, Errors, Weights


@dataclass(frozen=True)
class Ranked:
    """A list, what its candidates cost before the winner was read, and their errors where those are known."""

    nbest: NBest
    candidates: Sequence[Costs]
    errors: Sequence[Errors]
    weights: Weights

    @cached_property
    def order(self) -> Sequence[int]:
        """The candidates, the best first."""
        return wer.order(self.candidates, self.weights)

    @cached_property
    def static_order(self) -> Sequence[int]:
        """The same by the model as loaded, after the same winners."""
        return wer.order([costs.static() for costs in self.candidates], self.weights)

    @property
    def text(self) -> str:
        """The winner."""
        return self.nbest.texts[self.order[0]]

    @property
    def static_text(self) -> str:
        """The winner without learning."""
        return self.nbest.texts[self.static_order[0]]

    def row(self) -> Mapping[str, Any]:
        """What is written of it, as JSON."""
        candidates = [
            {
                "text": self.nbest.texts[index],
                "given": costs.given,
                "logprob": costs.logprob,
                "static_logprob": costs.static_logprob,
                "score": costs.score(self.weights),
                "static_score": costs.static().score(self.weights),
                "rank": self.order.index(index) + 1,
                "static_rank": self.static_order.index(index) + 1,
            }
            for index, costs in enumerate(self.candidates)
        ]
        return {
            "id": self.nbest.id,
            "text": self.text,
            "static_text": self.static_text,
            "candidates": candidates,
        }


@dataclass(frozen=True)
class Job:
    """What is to be ranked, and by what session; `said` are the references that there are, by lists' ids."""

    lists: Sequence[NBest]
    said: Mapping[str, str]
    known: str
    fold_case: bool
    kept: Kept

    def as_read(self, text: str) -> str:
        """The text that the model reads, and errors are counted of."""
        return text.lower() if self.fold_case else text

    async def ranked(self, client: AsyncClient, weights: Weights) -> AsyncGenerator[Ranked, None]:
        """Rank the lists one after the other; the session learns what is known, and each winner.

        Raises:
            CommandError: the session has no frozen baseline.
        """
        async with self.kept.session(client, USUAL) as session:
            if self.known:
                await session.append(self.as_read(self.known).removesuffix("\n") + "\n", scores="none")
            for one in self.lists:
                read = [*map(self.as_read, one.texts)]
                ranking = await session.score([text + "\n" for text in read], unit="nats")
                candidates = []
                for text, given, scored in zip(one.texts, one.given, ranking.candidates, strict=True):
                    if scored.static_logprob is None:
                        raise CommandError("the session cannot rescore: it has no frozen baseline")
                    costs = Costs(given, scored.logprob, scored.static_logprob, len(text.split()))
                    candidates.append(costs)
                said = self.said.get(one.id)
                errors = [] if said is None else wer.errors_of(read, self.as_read(said))
                ranked = Ranked(one, candidates, errors, weights)
                await session.append(self.as_read(ranked.text) + "\n", scores="none")
                yield ranked
            await self.kept.save(session)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is ranked, by what weights, and what is done with it.

    Raises:
        CommandError: a weight is no finite number.
    """

    lists: Path = inputs.argument("JSON lines, a folder of ESPnet's or Kaldi's, NeMo's .tsv; - is a pipe.")
    out: Path | None = inputs.option(
        "Write them in their own form, the best first, in place of JSON.", "--out", "-o"
    )
    prime: Path | None = inputs.option("A text to be read and learned first.")
    alpha: float = inputs.option("Weight of the log-probability, in nats.", default=1.0)
    static_alpha: float = inputs.option("Of that to the model as loaded.", default=0.0)
    beta: float = inputs.option("Added for each word.", default=0.0)
    fold_case: bool = inputs.option("Read all in lower case; what is written stays.", default=False)
    refs: Path | None = inputs.option("What was said: lines UTTERANCE TEXT, or JSON. Tells word errors.")
    dev: Path | None = inputs.option("Find the three weights by what was said; print them.", metavar="REFS")
    beam_size: int | None = inputs.option("Of a .tsv: lines an utterance.", type=click.IntRange(1))
    acoustic_scale: float = inputs.option("Of Kaldi's acoustic costs.", default=1.0)
    force: bool = inputs.option("Replace what is there; a folder never is.", default=False)

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (*self.weights, self.acoustic_scale))):
            raise CommandError("weights have to be finite numbers")

    @property
    def weights(self) -> Weights:
        """Those given."""
        return Weights(self.alpha, self.static_alpha, self.beta)


@click.command()
@inputs.given("asked", Asked)
@kept
@inputs.how
def rescore(asked: Asked, kept: Kept, how: inputs.How) -> None:
    """Rank n-best lists by a session that learns from each winner.

    Example: rlstm rescore decode/ --refs text --fold-case --out rescored/
    """
    lists, out, dev = asked.lists, asked.out, asked.dev
    if dev is not None and (kept.name or kept.state or asked.refs or out):
        raise CommandError("--dev finds weights: it keeps no session, and writes no lists")
    form = Format(lists, asked.beam_size, asked.acoustic_scale, how)
    if out is not None:
        form.check(out, force=asked.force)
    found = form.read()
    prefix = "".join(how.read(asked.prime)) if asked.prime else ""
    job = Job(found, _said(found, dev or asked.refs, how), prefix, asked.fold_case, kept)
    if not asked.fold_case and all(text.isupper() for one in found for text in one.texts if text):
        click.echo(f"{lists} is in capitals, which cost a model more: --fold-case folds them", err=True)

    async def run(client: AsyncClient) -> Sequence[Ranked]:
        return await (_tune(job, client) if dev else _rank(job, client, asked.weights, quiet=out is not None))

    ranked = kept.run(run, USUAL)
    if out is not None:
        form.write(out, found, [one.order for one in ranked], [one.row() for one in ranked])
    _report(ranked)


async def _rank(job: Job, client: AsyncClient, weights: Weights, *, quiet: bool) -> Sequence[Ranked]:
    """Rank the lists; each is written as soon as it is known, unless they are wanted in another form."""
    done = []
    async with aclosing(job.ranked(client, weights)) as ranked:
        async for one in ranked:
            done.append(one)
            if not quiet:
                output.write(json.dumps(one.row()) + "\n")
    return done


async def _tune(job: Job, client: AsyncClient) -> Sequence[Ranked]:
    """Find weights on the costs of a first pass, print them, and rank the lists anew by them."""
    ranked = await _rank(job, client, Weights(), quiet=True)
    weights = wer.tuned([(one.candidates, one.errors) for one in ranked])
    values = zip(("--alpha", "--static-alpha", "--beta"), weights, strict=True)
    output.write(" ".join(f"{option} {value:g}" for option, value in values) + "\n")
    return await _rank(job, client, weights, quiet=True)


def _said(lists: Sequence[NBest], file: Path | None, how: inputs.How) -> Mapping[str, str]:
    """The references of a file, or those that the lists have with them.

    Raises:
        CommandError: a list has none in the file, or jiwer is not there to count by.
    """
    own = {one.id: one.reference for one in lists if one.reference is not None}
    said = own if file is None else nbest.references(file, how)
    if missing := [one.id for one in lists if file is not None and one.id not in said]:
        raise CommandError(f"{file}: there is no reference of {missing[0]!r}")
    if said and find_spec("jiwer") is None:
        if file is None:
            return {}
        raise CommandError(
            f"word errors are counted by jiwer; install it with: pip install '{DISTRIBUTION}[rescore]'",
            Exit.MISSING,
        )
    return said


def _report(ranked: Sequence[Ranked]) -> None:
    """Say on standard error what learning changed, and how often each way to choose erred."""
    changed = sum(one.text != one.static_text for one in ranked)
    click.echo(f"{changed} of {len(ranked)} winners changed by learning", err=True)
    judged = [one for one in ranked if one.errors]
    if not judged:
        return
    chosen = {
        "first pass": [one.errors[one.nbest.first_pass] for one in judged],
        "static": [one.errors[one.static_order[0]] for one in judged],
        "adapted": [one.errors[one.order[0]] for one in judged],
    }
    chosen["adapted - static"] = [
        Errors(own.wrong - other.wrong, own.words)
        for own, other in zip(chosen["adapted"], chosen["static"], strict=True)
    ]
    rows = []
    for way, errors in chosen.items():
        rates = (wer.rate(errors), *wer.interval(errors))
        rows.append((way, *map(sum, zip(*errors, strict=True)), *(f"{100 * rate:.2f} %" for rate in rates)))
    names = ("chosen by", "word errors", "of words", "WER", "95 % from", "to")
    click.echo(output.table(dict(zip(names, zip(*rows, strict=True), strict=True))), err=True)
