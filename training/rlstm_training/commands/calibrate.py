"""``rlstm calibrate``: measure a model's gradient statistics and choose how it learns."""

from collections.abc import Sequence
from typing import Annotated

import typer

from rlstm_model.checkpoint import Checkpoint, load
from rlstm_training.commands.choosing import (
    Decays,
    Epsilons,
    Heads,
    HeadSegments,
    Rates,
    RecipeName,
    Segments,
    choose_rule,
    grid_of,
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
from rlstm_training.evaluation.calibrate import Grid, Statistics

ON = ("wikitext-2", "tinyshakespeare", "canterbury/alice29")
CHANGING = "all in one session"


@command
def calibrate(
    model: Model,
    recipe: RecipeName = None,
    corpus: OwnCorpus = None,
    on: Annotated[
        list[str] | None, typer.Option(help=f"Held-out texts beside the recipe's (default: {', '.join(ON)}).")
    ] = None,
    length: Annotated[int, typer.Option(min=100, help="Bytes of each held-out text.")] = 4000,
    rate: Rates = None,
    decay: Decays = None,
    epsilon: Epsilons = None,
    segment: Segments = None,
    heads: Heads = 16,
    segments: HeadSegments = 60,
    threads: Threads = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Choose how a model learns, on held-out text; writes adaptation.safetensors and the model card.

    With --corpus, only that corpus's validation text and those of --on are read.
    """
    checkpoint = load(model, prepare_device(device, threads))
    trained = recipe_named(recipe or checkpoint.name, corpus)
    others = on if on is not None else () if corpus else ON
    usual = Grid.usual(checkpoint.vocab.kind)
    choice = choose_rule(
        checkpoint,
        trained,
        _held_out(checkpoint, trained, others, length),
        grid_of(usual, rate, decay, epsilon or usual.epsilons[:1], segment or usual.segments[:1]),
        Statistics(heads=heads, segments=segments),
    )
    choice.keep(checkpoint)
    if as_json:
        show_json(choice.to_json())
    else:
        show_trials(choice.trials, choice.static)


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
