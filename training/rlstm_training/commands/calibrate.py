"""``rlstm calibrate``: measure a model's gradient statistics and choose how it learns."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import click

from rlstm_client.cli import inputs
from rlstm_model.adaptation.calibration import CalibrationSet
from rlstm_model.adaptation.config import Kind
from rlstm_model.adaptation.state import EXPERT_RATES
from rlstm_model.checkpoint import Checkpoint, load
from rlstm_model.local import LocalModel
from rlstm_model.vocab import VocabKind
from rlstm_training.commands import console, given
from rlstm_training.commands.choosing import (
    EXPERTS,
    Choice,
    Tried,
    choose_rule,
    keep_choices,
    measurements_of,
)
from rlstm_training.commands.console import show_json
from rlstm_training.config import Source
from rlstm_training.corpora import CorpusError
from rlstm_training.corpora.reading import held_out
from rlstm_training.corpora.texts import Passage, excerpt
from rlstm_training.evaluation.measurements import Form, Measurements, Statistics, cores_of, most_fast_weights
from rlstm_training.evaluation.search import Grid

ON = ("wikitext-2", "tinyshakespeare", "canterbury/alice29", "domains/foldoc", "languages/bgwiki")
CHANGING, GOING_ON = "all in one session", "three times as long"
KINDS: tuple[Kind, ...] = ("subspace", "full")
SERVED_RANK = 128
AXES, EMBEDDING_AXES = 160, 256


@dataclass(frozen=True, kw_only=True)
class Asked(Tried):
    """What rules are chosen, and on what text."""

    recipe: str | None = inputs.option("It was trained by this (default: the model's name).")
    corpus: str | None = inputs.option(
        "Instead of the recipe's: a corpus, a folder with train.txt and valid.txt, or a file."
    )
    on: Sequence[str] = inputs.option(f"Held-out texts beside the recipe's (default: {', '.join(ON)}).")
    length: int = inputs.option("Bytes of each held-out text.", default=4_000, type=click.IntRange(100))
    kind: Sequence[Kind] = inputs.option(
        f"A kind of fast weights. The first is the default. Others than {KINDS[0]}, and with a recipe "
        f"{KINDS[1]}, are found only when asked for."
    )
    num_fast_weights: Sequence[int] = inputs.option(
        "A size of subspaces, the default first. Others than the usual, the embedding and the "
        f"softmax within {SERVED_RANK} axes, are found only when asked for.",
        "--fast-weights",
        type=click.IntRange(1),
    )
    experts: int = inputs.option(EXPERTS, default=2, type=click.Choice(EXPERT_RATES))
    rank: int | None = inputs.option(
        f"Axes a side of a cell's matrix, at most ({AXES}).", type=click.IntRange(1)
    )
    embedding_rank: int | None = inputs.option(
        f"Of the embedding and the softmax, at most ({EMBEDDING_AXES}).", type=click.IntRange(1)
    )
    add: bool = inputs.option("Keep the statistics and other rules that the model has.", default=False)
    first: bool = inputs.option("With --add: the last rule added becomes the default.", default=False)

    def __post_init__(self) -> None:
        if self.first and not self.add:
            raise click.BadParameter("the first form is the default without --add", param_hint="--first")
        for option, value in {"--rank": self.rank, "--embedding-rank": self.embedding_rank}.items():
            if self.add and value is not None:
                message = "--add goes by the statistics that the model has: they were measured before"
                raise click.BadParameter(message, param_hint=option)

    @property
    def statistics(self) -> Statistics:
        """How they are taken."""
        rank, embedding_rank = self.rank or AXES, self.embedding_rank or EMBEDDING_AXES
        return Statistics(heads=self.heads, segments=self.segments, rank=rank, embedding_rank=embedding_rank)

    def forms(self, checkpoint: Checkpoint, known: CalibrationSet | None) -> list[Form]:
        """Each kind in its order, a subspace once in each size; wrong usage where the axes do not suffice."""
        forms: list[Form] = []
        for kind in self.kind or (KINDS if self.corpus is None else KINDS[:1]):
            forms += self._subspaces(checkpoint, known) if kind == "subspace" else [Form(kind)]
        return list({(form.kind, form.num_fast_weights): form for form in forms}.values())

    def _subspaces(self, checkpoint: Checkpoint, known: CalibrationSet | None) -> list[Form]:
        try:
            stored = None if known is None else known.statistics
            cores = cores_of(checkpoint.parameters.config, self.statistics, stored)
        except ValueError as error:
            message = f"{error}: name other kinds, or calibrate without --add"
            raise click.BadParameter(message, param_hint="--kind") from error
        if not self.num_fast_weights:
            return [Form("subspace", most_fast_weights(cores, SERVED_RANK, cells=False), SERVED_RANK)]
        most, asked = most_fast_weights(cores), max(self.num_fast_weights)
        if asked > most:
            message = f"the axes make a subspace of {most:,} fast weights at most, not {asked:,}"
            raise click.BadParameter(message, param_hint="--fast-weights")
        return [Form("subspace", size) for size in self.num_fast_weights]

    def choose(
        self,
        measurements: Measurements,
        passages: Sequence[Passage],
        tokens: VocabKind,
        forms: Sequence[Form],
        segments: Sequence[int],
    ) -> list[Choice]:
        """A rule for each form."""
        choices: list[Choice] = []
        for form in forms:
            usual = Grid.usual(tokens, form.kind)
            grid = self.grid(replace(usual, epsilons=usual.epsilons[:1], segments=usual.segments[:1]))
            grid = replace(grid, segments=tuple(segments) or grid.segments)
            mixed = 1 if form.kind == "full" else self.experts
            choices.append(choose_rule(measurements, passages, grid, form, experts=mixed))
            # Statistics belong to a segment length, and a checkpoint has them once: the first form chooses.
            segments = [choices[0].config.segment]
        return choices

    def segments_of(self, known: CalibrationSet | None) -> Sequence[int]:
        """The segment lengths to try: statistics belong to one, so known ones leave no choice."""
        if known is None:
            return self.segment
        length = known.default.segment
        if {*self.segment} - {length}:
            message = f"the statistics that the model has are those of segments of {length} tokens"
            raise click.BadParameter(message, param_hint="--segment")
        return [length]


@console.command()
@console.model()
@inputs.given("asked", Asked, heads=32, segments=40)
@given.compute
@inputs.as_json
def calibrate(model: str, asked: Asked, compute: given.Compute, as_json: bool) -> None:
    """Choose how a model learns, on held-out text; writes adaptation.safetensors and the model card.

    The text is that of --corpus, or what the recipe reads, in tokens of the model's own vocabulary.
    Statistics are taken on its training part; rules are chosen on its validation part (the last tenth of a
    file) and on --on. A rule is for --experts that are mixed, as they are served; that of full fast weights,
    a yardstick, for a single one.
    """
    place, checkpoint = compute.prepare(), load(model)
    known = LocalModel(checkpoint).calibrated if asked.add else None
    forms, segments = asked.forms(checkpoint, known), asked.segments_of(known)
    sources = given.sources_of(asked.recipe or checkpoint.name, asked.corpus)
    others = asked.on or (() if asked.corpus else ON)
    passages = passages_held_out(checkpoint, sources, others, asked.length)
    measurements = measurements_of(checkpoint, place, sources, asked.statistics, known)
    choices = asked.choose(measurements, passages, checkpoint.vocab.kind, forms, segments)
    keep_choices(checkpoint, choices, known, first=asked.first)
    if as_json:
        show_json({"rules": [choice.to_json() for choice in choices]})
        return
    for choice in choices:
        choice.show()


def passages_held_out(
    checkpoint: Checkpoint, sources: Sequence[Source], others: Sequence[str], length: int
) -> list[Passage]:
    """An excerpt of each corpus's validation text, once whatever the forms it is trained in.

    And all of them in one session: how well a rule follows a text that changes, and what it forgets, shows in
    no text alone. Of a single corpus it is what goes on behind the excerpt, where the text is that long.
    """
    names = list(dict.fromkeys([*(source.corpus for source in sources), *others]))
    raw = {name: held_out(name, "valid", length) for name in names}
    if len(names) > 1:
        raw[CHANGING] = b"".join(raw.values())
    else:
        with suppress(CorpusError):
            raw[GOING_ON] = held_out(names[0], "valid", 3 * length)
    return [excerpt(checkpoint.vocab, text, name) for name, text in raw.items()]
