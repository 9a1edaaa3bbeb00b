"""``rlstm calibrate``: measure a model's gradient statistics and choose how it learns."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, get_args

import typer

from rlstm_model.adaptation.calibration import CalibrationSet
from rlstm_model.adaptation.config import Kind
from rlstm_model.checkpoint import Checkpoint, load
from rlstm_model.local import LocalModel
from rlstm_model.vocab import VocabKind
from rlstm_training.commands.choosing import (
    Choice,
    choose_rule,
    grid_of,
    keep_choices,
    measurements_of,
)
from rlstm_training.commands.console import (
    AsJson,
    Decays,
    Device,
    Epsilons,
    Experts,
    Heads,
    HeadSegments,
    Model,
    OwnCorpus,
    Rates,
    RecipeName,
    Segments,
    Threads,
    command,
    show_json,
)
from rlstm_training.commands.given import prepare_device, sources_of
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


_On = Annotated[
    list[str] | None, typer.Option(help=f"Held-out texts beside the recipe's (default: {', '.join(ON)}).")
]
_Length = Annotated[int, typer.Option(min=100, help="Bytes of each held-out text.")]
_Kind = Annotated[
    list[str] | None,
    typer.Option(
        help=f"A kind of fast weights: {', '.join(get_args(Kind))}. The first is the default. "
        f"Others than {KINDS[0]}, and with a recipe {KINDS[1]}, are found only when asked for."
    ),
]
_NumFastWeights = Annotated[
    list[int] | None,
    typer.Option(
        "--fast-weights",
        min=1,
        help="A size of subspaces, the default first. Others than the usual, the embedding and the "
        f"softmax within {SERVED_RANK} axes, are found only when asked for.",
    ),
]
_Axes = Annotated[
    int | None, typer.Option(min=1, help="Leading axes of a side that subspaces may use (all).")
]
_Rank = Annotated[int | None, typer.Option(min=1, help=f"Axes a side of a cell's matrix, at most ({AXES}).")]
_EmbeddingRank = Annotated[
    int | None, typer.Option(min=1, help=f"Of the embedding and the softmax, at most ({EMBEDDING_AXES}).")
]
_Add = Annotated[bool, typer.Option("--add", help="Keep the statistics and other rules that the model has.")]
_First = Annotated[bool, typer.Option("--first", help="With --add: the last rule added becomes the default.")]


@command
def calibrate(
    model: Model,
    recipe: RecipeName = None,
    corpus: OwnCorpus = None,
    on: _On = None,
    length: _Length = 4000,
    kind: _Kind = None,
    num_fast_weights: _NumFastWeights = None,
    axes: _Axes = None,
    experts: Experts = 2,
    rank: _Rank = None,
    embedding_rank: _EmbeddingRank = None,
    rate: Rates = None,
    decay: Decays = None,
    epsilon: Epsilons = None,
    segment: Segments = None,
    heads: Heads = 32,
    segments: HeadSegments = 40,
    add: _Add = False,
    first: _First = False,
    threads: Threads = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Choose how a model learns, on held-out text; writes adaptation.safetensors and the model card.

    The text is that of --corpus, or what the recipe reads, in tokens of the model's own vocabulary.
    Statistics are taken on its training part; rules are chosen on its validation part (the last tenth of a
    file) and on --on. A rule is for --experts that are mixed, as they are served; that of full fast weights,
    a yardstick, for a single one.
    """
    if first and not add:
        raise typer.BadParameter("the first form is the default without --add", param_hint="--first")
    place, checkpoint = prepare_device(device, threads), load(model)
    usual = KINDS if corpus is None else KINDS[:1]
    known, kinds = LocalModel(checkpoint).calibrated if add else None, kinds_chosen(kind, usual)
    _check_sizes({"--rank": rank, "--embedding-rank": embedding_rank}, known)
    statistics = Statistics(
        heads=heads,
        segments=segments,
        rank=rank or AXES,
        embedding_rank=embedding_rank or EMBEDDING_AXES,
    )
    forms = forms_chosen(checkpoint, kinds, num_fast_weights, axes, statistics, known)
    sources = sources_of(recipe or checkpoint.name, corpus)
    others = on if on is not None else () if corpus else ON
    passages = passages_held_out(checkpoint, sources, others, length)
    measurements = measurements_of(checkpoint, place, sources, statistics, known)
    given = {"rates": rate, "decays": decay, "epsilons": epsilon, "segments": _segments(segment, known)}
    choices = _choose(measurements, passages, checkpoint.vocab.kind, forms, given, experts=experts)
    keep_choices(checkpoint, choices, known, first=first)
    _tell(choices, as_json)


def _tell(choices: Sequence[Choice], as_json: bool) -> None:
    if as_json:
        show_json({"rules": [choice.to_json() for choice in choices]})
        return
    for choice in choices:
        choice.show()


def _check_sizes(sizes: Mapping[str, int | None], known: CalibrationSet | None) -> None:
    """Wrong usage where the statistics are those that are known."""
    for option, value in sizes.items():
        if known is not None and value is not None:
            message = "--add goes by the statistics that the model has: they were measured before"
            raise typer.BadParameter(message, param_hint=option)


def kinds_chosen(named: Sequence[str] | None, usual: Sequence[Kind]) -> list[Kind]:
    """The kinds named, each once, or the ``usual`` ones."""
    known: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    for name in named or ():
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint="--kind")
    return [known[name] for name in dict.fromkeys(named or usual)]


def forms_chosen(
    checkpoint: Checkpoint,
    kinds: Sequence[Kind],
    sizes: Sequence[int] | None,
    axes: int | None,
    statistics: Statistics,
    known: CalibrationSet | None,
) -> list[Form]:
    """Each kind in its order, a subspace once in each size; wrong usage where the axes do not suffice."""
    forms: list[Form] = []
    for kind in kinds:
        if kind != "subspace":
            forms.append(Form(kind))
            continue
        try:
            cores = cores_of(checkpoint.parameters.config, statistics, known.statistics if known else None)
        except ValueError as error:
            message = f"{error}: name other kinds, or calibrate without --add"
            raise typer.BadParameter(message, param_hint="--kind") from error
        if sizes is None and axes is None:
            served = most_fast_weights(cores, SERVED_RANK, cells=False)
            forms.append(Form("subspace", served, SERVED_RANK))
            continue
        most = most_fast_weights(cores, axes or 0)
        wanted = sizes or [most_fast_weights(cores, axes or 0, cells=False)]
        if max(wanted) > most:
            message = f"the axes make a subspace of {most:,} fast weights at most, not {max(wanted):,}"
            raise typer.BadParameter(message, param_hint="--fast-weights")
        forms += [Form("subspace", size, axes or 0) for size in wanted]
    return list({(form.kind, form.num_fast_weights): form for form in forms}.values())


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
    given: Mapping[str, Sequence[float] | None],
    *,
    experts: int,
) -> list[Choice]:
    """A rule for each form."""
    choices: list[Choice] = []
    for form in forms:
        usual = Grid.usual(tokens, form.kind)
        grid = grid_of(replace(usual, epsilons=usual.epsilons[:1], segments=usual.segments[:1]), **given)
        mixed = 1 if form.kind == "full" else experts
        choices.append(choose_rule(measurements, passages, grid, form, experts=mixed))
        # Statistics belong to a segment length, and a checkpoint has them once: the first form chooses it.
        given = {**given, "segments": [choices[0].config.segment]}
    return choices
