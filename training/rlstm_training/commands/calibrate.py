"""``rlstm calibrate``: measure a model's gradient statistics and choose how it learns."""

from collections.abc import Sequence
from typing import Annotated, get_args

import typer

from rlstm_model.adaptation.config import Kind
from rlstm_model.checkpoint import Checkpoint, load
from rlstm_model.language_model import LanguageModel
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
SERVED_RANK = 128
KINDS: tuple[Kind, ...] = ("subspace", "full", "sparse", "output_bias")

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
        help="A size of subspaces, the default first. Usual are the embedding and the softmax within "
        f"{SERVED_RANK} axes, and 1/{', 1/'.join(map(str, SHARES))} of the bytes of full fast weights.",
    ),
]
Axes = Annotated[
    int | None, typer.Option("--axes", min=1, help="Leading axes of a side that subspaces may use (all).")
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
    axes: Axes = None,
    rank: Annotated[int, typer.Option(min=1, help="Axes a side of a cell's matrix, at most.")] = 160,
    embedding_rank: Annotated[
        int, typer.Option(min=1, help="Axes a side of the embedding and the softmax, at most.")
    ] = 256,
    units: Annotated[
        int, typer.Option(min=1, help="Hidden units of a layer that may add to each other, at most.")
    ] = 64,
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

    With --corpus, only that corpus's validation text and those of --on are read.
    """
    checkpoint = load(model, prepare_device(device, threads))
    statistics = Statistics(
        heads=heads,
        segments=segments,
        rank=rank,
        embedding_rank=embedding_rank,
        units=units if "sparse" in (kind or KINDS) else 0,
    )
    forms = _forms(kind or KINDS, _subspaces(checkpoint.model, coordinates, axes, statistics))
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
    keep_choices(checkpoint, choices, known, first=first)
    if as_json:
        show_json({"rules": [choice.to_json() for choice in choices]})
    else:
        for choice in choices:
            show_trials(choice.config, choice.trials, choice.static)


def _subspaces(
    model: LanguageModel, sizes: Sequence[int] | None, axes: int | None, statistics: Statistics
) -> list[Form]:
    """Subspaces of the sizes asked for, or the usual ones."""
    most = most_coordinates(model, statistics, axes or 0)
    if sizes is None and axes is None:
        served = most_coordinates(model, statistics, SERVED_RANK, cells=False)
        usual = [min(most, 16 * max(1, model.config.num_parameters // (8 * share))) for share in SHARES]
        return [Form("subspace", served, SERVED_RANK), *(Form("subspace", size) for size in usual)]
    wanted = sizes or [most_coordinates(model, statistics, axes or 0, cells=False)]
    if max(wanted) > most:
        message = f"the axes make a subspace of {most:,} coordinates at most, not {max(wanted):,}"
        raise typer.BadParameter(message, param_hint="--coordinates")
    return [Form("subspace", size, axes or 0) for size in wanted]


def _forms(kinds: Sequence[str], subspaces: Sequence[Form]) -> list[Form]:
    """Each kind once, a subspace once in each size, in the order that was asked for."""
    known: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    forms: list[Form] = []
    for name in kinds:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint="--kind")
        forms += subspaces if name == "subspace" else [Form(known[name])]
    return list({(form.kind, form.coordinates): form for form in forms}.values())


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
