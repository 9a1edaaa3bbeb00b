"""``rlstm calibrate``: measure a model's gradient statistics and choose its learning rate."""

from collections.abc import Sequence
from typing import Annotated

import typer
from safetensors import SafetensorError

from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.checkpoint import ADAPTATION, CARD, Checkpoint, CheckpointError, load
from rlstm_training.calibrate import (
    DECAYS,
    RATES,
    Statistics,
    Trial,
    best,
    measure,
    most_trials,
    search,
    session_losses,
)
from rlstm_training.cards import calibration_section, with_section
from rlstm_training.commands.console import (
    AsJson,
    Device,
    Model,
    OwnCorpus,
    Threads,
    command,
    prepare_device,
    progress_bar,
    recipe_named,
    show_json,
    show_table,
)
from rlstm_training.config import Recipe
from rlstm_training.corpora import CorpusError
from rlstm_training.evaluation import static_loss
from rlstm_training.streams import held_out
from rlstm_training.texts import Passage, excerpt, prepare

ON = ("wikitext-2", "tinyshakespeare", "canterbury/alice29")


@command
def calibrate(
    model: Model,
    recipe: Annotated[
        str | None, typer.Option(help="It was trained by this (default: the model's name).")
    ] = None,
    corpus: OwnCorpus = None,
    on: Annotated[
        list[str] | None, typer.Option(help=f"Held-out texts beside the recipe's (default: {', '.join(ON)}).")
    ] = None,
    length: Annotated[int, typer.Option(min=100, help="Bytes of each held-out text.")] = 4000,
    rate: Annotated[list[float] | None, typer.Option(min=0, help="A rate to try.")] = None,
    decay: Annotated[list[float] | None, typer.Option(min=0, help="A decay to try.")] = None,
    heads: Annotated[int, typer.Option(min=1, help="Read heads of the statistics.")] = 16,
    segments: Annotated[int, typer.Option(min=1, help="Segments that each of them reads.")] = 60,
    segment: Annotated[int, typer.Option(min=1, help="Tokens of a segment.")] = 20,
    threads: Threads = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Choose a model's learning rate on held-out text; writes adaptation.safetensors and the model card.

    With --corpus, only that corpus's validation text and those of --on are read.
    """
    target = prepare_device(device, threads)
    checkpoint = load(model, target)
    trained = recipe_named(recipe or checkpoint.name, corpus)
    others = on if on is not None else () if corpus else ON
    passages = _held_out(checkpoint, trained, others, length)
    statistics = Statistics(heads=heads, segments=segments, segment=segment)
    measured = _measure(checkpoint, trained, statistics)
    static = {
        part.name: static_loss(checkpoint.model, part, bos_id=checkpoint.vocab.bos_id) for part in passages
    }
    bits = {name: result.bits_per_byte(result.static_nats or 0.0) for name, result in static.items()}
    trials = _search(checkpoint, measured, passages, rate or RATES, decay or DECAYS)
    winner = best(trials)
    measured = measured.with_rate(winner.rate, winner.decay)
    section = calibration_section(trials, winner, bits)
    try:
        measured.save(checkpoint.folder / ADAPTATION, checkpoint.model)
        card = with_section(checkpoint.card, "Adaptation", section)
        (checkpoint.folder / CARD).write_text(card, "utf-8")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{checkpoint.folder}: cannot be written ({error})") from error
    if as_json:
        tried = [trial.to_json() for trial in trials]
        show_json({"chosen": winner.to_json(), "static": bits, "trials": tried})
    else:
        _show(trials, winner, bits)


def _held_out(checkpoint: Checkpoint, recipe: Recipe, others: Sequence[str], length: int) -> list[Passage]:
    """An excerpt of each corpus's validation text, once whatever the forms it is trained in."""
    names = dict.fromkeys([*(source.corpus for source in recipe.sources), *others])
    return [excerpt(checkpoint.vocab, held_out(name, "valid", length), name) for name in names]


def _measure(checkpoint: Checkpoint, recipe: Recipe, statistics: Statistics) -> Calibration:
    texts, vocab = prepare(recipe)
    if vocab != checkpoint.vocab:
        raise CheckpointError(
            f"{checkpoint.folder}: its vocabulary is not that of recipe {recipe.name}'s training text"
        )
    try:
        return measure(checkpoint.model, texts.train, bos_id=vocab.bos_id, statistics=statistics)
    except ValueError as error:
        raise CorpusError(f"recipe {recipe.name}: {error}") from error


def _search(
    checkpoint: Checkpoint,
    measured: Calibration,
    passages: Sequence[Passage],
    rates: Sequence[float],
    decays: Sequence[float],
) -> list[Trial]:
    tokens = sum(len(part.ids) for part in passages) * most_trials(rates, decays)
    with progress_bar("search", tokens) as advance:
        losses = session_losses(
            checkpoint.model, measured, passages, bos_id=checkpoint.vocab.bos_id, advance=advance
        )
        return list(search(losses, rates, decays))


def _show(trials: Sequence[Trial], winner: Trial, static: dict[str, float]) -> None:
    mean = sum(static.values()) / len(static)
    rows = [("static", "", *(f"{bits:.4f}" for bits in static.values()), f"{mean:.4f}")]
    for trial in trials:
        bits = [f"{trial.bits_per_byte[name]:.4f}" for name in static]
        mark = " *" if trial is winner else ""
        rows.append((f"{trial.rate:g}", f"{trial.decay:g}", *bits, f"{trial.mean:.4f}{mark}"))
    show_table(("rate", "decay", *static, "mean"), rows)
    rates = [trial.rate for trial in trials]
    if len(set(rates)) > 1 and winner.rate in (min(rates), max(rates)):
        typer.echo("The best rate is at the edge of those tried: try others with --rate.")
