"""``rlstm calibrate``: measure a model's gradient statistics and choose how it learns."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from rlstm_model.adaptation.calibration import CalibrationSet
from rlstm_model.adaptation.config import Kind
from rlstm_model.adaptation.thread_pool import ThreadPool
from rlstm_model.checkpoint import Checkpoint, load
from rlstm_model.vocab import VocabKind
from rlstm_training.commands.calibrate_choices import (
    ON,
    Axes,
    EmbeddingRank,
    Kinds,
    Measured,
    NumFastWeights,
    On,
    Rank,
    Units,
    forms_chosen,
    kinds_chosen,
    passages_held_out,
    subspaces_chosen,
)
from rlstm_training.commands.choosing import (
    Choice,
    Decays,
    Epsilons,
    Experts,
    Heads,
    HeadSegments,
    Rates,
    RecipeName,
    Segments,
    Values,
    calibrated_of,
    choose_rule,
    keep_choices,
    measurements_of,
)
from rlstm_training.commands.console import (
    AsJson,
    Device,
    Model,
    OwnCorpus,
    Threads,
    command,
    prepare_crew,
    recipe_named,
    show_json,
)
from rlstm_training.commands.tables import show_trials
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.calibrate import Grid
from rlstm_training.evaluation.measurements import Form, Measurements, Statistics, cores_of


@command
def calibrate(
    model: Model,
    recipe: RecipeName = None,
    corpus: OwnCorpus = None,
    on: On = None,
    length: Annotated[int, typer.Option(min=100, help="Bytes of each held-out text.")] = 4000,
    kind: Kinds = None,
    num_fast_weights: NumFastWeights = None,
    axes: Axes = None,
    experts: Experts = 2,
    rank: Rank = None,
    embedding_rank: EmbeddingRank = None,
    units: Units = None,
    rate: Rates = None,
    decay: Decays = None,
    epsilon: Epsilons = None,
    segment: Segments = None,
    heads: Heads = 32,
    segments: HeadSegments = 40,
    add: Annotated[
        bool, typer.Option("--add", help="Keep the statistics and other rules that the model has.")
    ] = False,
    first: Annotated[
        bool, typer.Option("--first", help="With --add: the last rule added becomes the default.")
    ] = False,
    threads: Threads = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Choose how a model learns, on held-out text; writes adaptation.safetensors and the model card.

    With --corpus, only that corpus's validation text and those of --on are read. A rule is chosen for
    --experts that are mixed, as they are served; that of full fast weights, the yardstick, for a single one.
    """
    if first and not add:
        raise typer.BadParameter("the first form is the default without --add", param_hint="--first")
    with prepare_crew(device, threads) as room:
        checkpoint = load(model, room.device)
        known = calibrated_of(checkpoint) if add else None
        kinds, measured = kinds_chosen(kind), Measured(rank=rank, embedding_rank=embedding_rank, units=units)
        measured.check(kinds, known)
        statistics = measured.statistics(kinds, heads=heads, segments=segments)
        forms = _forms(checkpoint, kinds, num_fast_weights, axes, statistics, known)
        values = Values(rates=rate, decays=decay, epsilons=epsilon, segments=_segments(segment, known))
        trained = recipe_named(recipe or checkpoint.name, corpus)
        others = on if on is not None else () if corpus else ON
        passages = passages_held_out(checkpoint, trained, others, length)
        measurements = measurements_of(checkpoint, trained, statistics, known)
        choices = _choose(
            measurements,
            passages,
            checkpoint.vocab.kind,
            forms,
            values,
            experts=experts,
            thread_pool=room.thread_pool,
        )
    keep_choices(checkpoint, choices, known, first=first)
    if as_json:
        show_json({"rules": [choice.to_json() for choice in choices]})
    else:
        for choice in choices:
            show_trials(choice.config, choice.trials, choice.experts)


def _forms(
    checkpoint: Checkpoint,
    kinds: Sequence[Kind],
    sizes: Sequence[int] | None,
    axes: int | None,
    statistics: Statistics,
    known: CalibrationSet | None,
) -> list[Form]:
    """The forms of the kinds. Wrong usage where the axes that are known do not suffice."""
    if "subspace" not in kinds:
        return forms_chosen(kinds, ())
    try:
        cores = cores_of(checkpoint.model, statistics, known.statistics if known else None)
    except ValueError as error:
        message = f"{error}: name other kinds, or calibrate without --add"
        raise typer.BadParameter(message, param_hint="--kind") from error
    return forms_chosen(kinds, subspaces_chosen(cores, sizes, axes))


def _segments(given: Sequence[int] | None, known: CalibrationSet | None) -> Sequence[int] | None:
    """The segment lengths to try: statistics belong to one, so known ones leave no choice."""
    if known is None:
        return given
    length = known.default.segment
    if given and set(given) != {length}:
        message = f"the statistics that the model has are those of segments of {length} tokens"
        raise typer.BadParameter(message, param_hint="--segment")
    return [length]


def _choose(
    measurements: Measurements,
    passages: Sequence[Passage],
    tokens: VocabKind,
    forms: Sequence[Form],
    values: Values,
    *,
    experts: int,
    thread_pool: ThreadPool | None,
) -> list[Choice]:
    """A rule for each form."""
    choices: list[Choice] = []
    for form in forms:
        usual = Grid.usual(tokens, form.kind)
        grid = values.grid(replace(usual, epsilons=usual.epsilons[:1], segments=usual.segments[:1]))
        mixed = 1 if form.kind == "full" else experts
        choices.append(
            choose_rule(measurements, passages, grid, form, experts=mixed, thread_pool=thread_pool)
        )
        # Statistics belong to a segment length, and a checkpoint has them once: the first form chooses it.
        values = replace(values, segments=[choices[0].winner.setting.segment])
    return choices
