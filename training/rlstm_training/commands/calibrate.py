"""``rlstm calibrate``: measure a model's gradient statistics and choose how it learns."""

from collections.abc import Sequence
from typing import Annotated, get_args

import typer

from rlstm_model.adaptation.config import Kind
from rlstm_model.checkpoint import Checkpoint, load
from rlstm_training.commands.choosing import (
    Choice,
    Decays,
    Epsilons,
    Heads,
    HeadSegments,
    Rates,
    RecipeName,
    Segments,
    calibrated_of,
    choose_rule,
    grid_of,
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
    prepare_device,
    recipe_named,
    show_json,
)
from rlstm_training.commands.tables import show_trials
from rlstm_training.config import Recipe
from rlstm_training.corpora.streams import held_out
from rlstm_training.corpora.texts import Passage, excerpt
from rlstm_training.evaluation.calibrate import Grid
from rlstm_training.evaluation.measurements import Form, Statistics, most_coordinates

ON = ("wikitext-2", "tinyshakespeare", "canterbury/alice29", "domains/foldoc", "languages/bgwiki")
CHANGING = "all in one session"
SHARES = (70, 24, 12)
KINDS: tuple[Kind, ...] = ("subspace", "full", "output_bias")

Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--kind", help=f"A kind of fast weights; the first is the default (all: {', '.join(KINDS)})."
    ),
]
Coordinates = Annotated[
    list[int] | None,
    typer.Option(
        "--coordinates",
        min=1,
        help="A size of subspaces; the first is the default. Usual are "
        f"{', '.join(f'1/{share}' for share in SHARES)} of the bytes of full fast weights.",
    ),
]


@command
def calibrate(
    model: Model,
    recipe: RecipeName = None,
    corpus: OwnCorpus = None,
    on: Annotated[
        list[str] | None, typer.Option(help=f"Held-out texts beside the recipe's (default: {', '.join(ON)}).")
    ] = None,
    length: Annotated[int, typer.Option(min=100, help="Bytes of each held-out text.")] = 4000,
    kind: Kinds = None,
    coordinates: Coordinates = None,
    rank: Annotated[int, typer.Option(min=1, help="Axes a side of a cell's matrix, at most.")] = 160,
    embedding_rank: Annotated[
        int, typer.Option(min=1, help="Axes a side of the embedding and the softmax, at most.")
    ] = 256,
    rate: Rates = None,
    decay: Decays = None,
    epsilon: Epsilons = None,
    segment: Segments = None,
    heads: Heads = 32,
    segments: HeadSegments = 40,
    add: Annotated[
        bool, typer.Option("--add", help="Keep the statistics and other rules that the model has.")
    ] = False,
    threads: Threads = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Choose how a model learns, on held-out text; writes adaptation.safetensors and the model card.

    With --corpus, only that corpus's validation text and those of --on are read.
    """
    checkpoint = load(model, prepare_device(device, threads))
    statistics = Statistics(
        heads=heads,
        segments=segments,
        rank=rank,
        embedding_rank=embedding_rank,
    )
    forms = _forms(checkpoint, kind or KINDS, coordinates, statistics)
    trained = recipe_named(recipe or checkpoint.name, corpus)
    passages = _held_out(checkpoint, trained, on if on is not None else () if corpus else ON, length)
    known = calibrated_of(checkpoint) if add else None
    if known is not None:
        segment = [known.default.segment]
    measurements = measurements_of(checkpoint, trained, statistics, known)
    choices: list[Choice] = []
    for form in forms:
        # Statistics belong to a segment length, and a checkpoint has them once: the first form chooses it.
        lengths = [choices[0].winner.setting.segment] if choices else segment
        usual = Grid.usual(checkpoint.vocab.kind, form.kind)
        epsilons = usual.epsilons if form.kind == "subspace" else usual.epsilons[:1]
        grid = grid_of(usual, rate, decay, epsilon or epsilons, lengths or usual.segments[:1])
        choices.append(choose_rule(measurements, passages, grid, form))
    keep_choices(checkpoint, choices, known)
    if as_json:
        show_json({"rules": [choice.to_json() for choice in choices]})
    else:
        for choice in choices:
            show_trials(choice.config, choice.trials, choice.static)


def _forms(
    checkpoint: Checkpoint, kinds: Sequence[str], coordinates: Sequence[int] | None, statistics: Statistics
) -> list[Form]:
    """Each kind once, a subspace once in each size, in the order that was asked for."""
    weights, most = checkpoint.model.config.num_parameters, most_coordinates(checkpoint.model, statistics)
    sizes = coordinates or [min(most, max(1, 2 * weights // share)) for share in SHARES]
    if "subspace" in kinds and max(sizes) > most:
        message = f"the axes make a subspace of {most:,} coordinates at most, not {max(sizes):,}"
        raise typer.BadParameter(message, param_hint="--coordinates")
    known: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    forms = []
    for name in kinds:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint="--kind")
        kind = known[name]
        forms += [Form(kind=kind, coordinates=size) for size in (sizes if kind == "subspace" else (0,))]
    return list(dict.fromkeys(forms))


def _held_out(checkpoint: Checkpoint, recipe: Recipe, others: Sequence[str], length: int) -> list[Passage]:
    """An excerpt of each corpus's validation text, once whatever the forms it is trained in.

    And all of them in one session, where there are several: how well a rule follows a text that changes, and
    what it forgets, shows in no text alone.
    """
    names = list(dict.fromkeys([*(source.corpus for source in recipe.sources), *others]))
    raw = {name: held_out(name, "valid", length) for name in names}
    if len(raw) > 1:
        raw[CHANGING] = b"".join(raw.values())
    return [excerpt(checkpoint.vocab, text, name) for name, text in raw.items()]
