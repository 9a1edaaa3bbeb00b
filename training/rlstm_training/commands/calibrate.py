"""``rlstm calibrate``: measure a model's gradient statistics and choose how it learns."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import get_args

import click

from rlstm_model.adaptation.calibration import CalibrationSet
from rlstm_model.adaptation.config import Kind
from rlstm_model.checkpoint import Checkpoint, load
from rlstm_model.local import LocalModel
from rlstm_model.vocab import VocabKind
from rlstm_training.commands import console
from rlstm_training.commands.choosing import Choice, choose_rule, grid_of, keep_choices, measurements_of
from rlstm_training.commands.console import show_json
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


@console.command()
@console.model()
@console.recipe_name
@console.own_corpus
@click.option("--on", multiple=True, help=f"Held-out texts beside the recipe's (default: {', '.join(ON)}).")
@click.option("--length", type=click.IntRange(100), default=4_000, help="Bytes of each held-out text.")
@click.option(
    "--kind",
    multiple=True,
    type=click.Choice(get_args(Kind)),
    help="A kind of fast weights. The first is the default. "
    f"Others than {KINDS[0]}, and with a recipe {KINDS[1]}, are found only when asked for.",
)
@click.option(
    "num_fast_weights",
    "--fast-weights",
    type=click.IntRange(1),
    multiple=True,
    help="A size of subspaces, the default first. Others than the usual, the embedding and the "
    f"softmax within {SERVED_RANK} axes, are found only when asked for.",
)
@console.experts(default=2)
@click.option("--rank", type=click.IntRange(1), help=f"Axes a side of a cell's matrix, at most ({AXES}).")
@click.option(
    "--embedding-rank",
    type=click.IntRange(1),
    help=f"Of the embedding and the softmax, at most ({EMBEDDING_AXES}).",
)
@console.rates
@console.decays
@console.epsilons
@console.segment_lengths
@console.heads(default=32)
@console.head_segments(default=40)
@click.option("--add", is_flag=True, help="Keep the statistics and other rules that the model has.")
@click.option("--first", is_flag=True, help="With --add: the last rule added becomes the default.")
@console.threads()
@console.device()
@console.as_json
def calibrate(
    model: str,
    recipe: str | None,
    corpus: str | None,
    on: Sequence[str],
    length: int,
    kind: Sequence[Kind],
    num_fast_weights: Sequence[int],
    experts: int,
    rank: int | None,
    embedding_rank: int | None,
    rate: Sequence[float],
    decay: Sequence[float],
    epsilon: Sequence[float],
    segment: Sequence[int],
    heads: int,
    segments: int,
    add: bool,
    first: bool,
    threads: int | None,
    device: str,
    as_json: bool,
) -> None:
    """Choose how a model learns, on held-out text; writes adaptation.safetensors and the model card.

    The text is that of --corpus, or what the recipe reads, in tokens of the model's own vocabulary.
    Statistics are taken on its training part; rules are chosen on its validation part (the last tenth of a
    file) and on --on. A rule is for --experts that are mixed, as they are served; that of full fast weights,
    a yardstick, for a single one.
    """
    if first and not add:
        raise click.BadParameter("the first form is the default without --add", param_hint="--first")
    place, checkpoint = prepare_device(device, threads), load(model)
    usual = KINDS if corpus is None else KINDS[:1]
    known, kinds = LocalModel(checkpoint).calibrated if add else None, list(dict.fromkeys(kind or usual))
    _check_sizes({"--rank": rank, "--embedding-rank": embedding_rank}, known)
    statistics = Statistics(
        heads=heads,
        segments=segments,
        rank=rank or AXES,
        embedding_rank=embedding_rank or EMBEDDING_AXES,
    )
    forms = forms_chosen(checkpoint, kinds, num_fast_weights, statistics, known)
    sources = sources_of(recipe or checkpoint.name, corpus)
    others = on or (() if corpus else ON)
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
            raise click.BadParameter(message, param_hint=option)


def forms_chosen(
    checkpoint: Checkpoint,
    kinds: Sequence[Kind],
    sizes: Sequence[int],
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
            raise click.BadParameter(message, param_hint="--kind") from error
        if not sizes:
            served = most_fast_weights(cores, SERVED_RANK, cells=False)
            forms.append(Form("subspace", served, SERVED_RANK))
            continue
        most = most_fast_weights(cores)
        if max(sizes) > most:
            message = f"the axes make a subspace of {most:,} fast weights at most, not {max(sizes):,}"
            raise click.BadParameter(message, param_hint="--fast-weights")
        forms += [Form("subspace", size) for size in sizes]
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
        raise click.BadParameter(message, param_hint="--segment")
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
