"""The commands ``train``, ``calibrate`` and ``evaluate`` of ``rlstm``."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer

from rlstm_model.adaptation.adapter import Adapter
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.checkpoint import ADAPTATION, CARD, Checkpoint, load
from rlstm_training import calibrate as calibration
from rlstm_training.cards import calibration_section, with_section
from rlstm_training.config import Recipe
from rlstm_training.console import (
    AsJson,
    Device,
    Threads,
    command,
    fail,
    prepare_device,
    progress_bar,
    show_json,
    show_table,
)
from rlstm_training.corpora import CorpusError, load_corpus
from rlstm_training.evaluation import DynamicReading, Evaluation, Reading, StaticReading, static_loss, total
from rlstm_training.export import export
from rlstm_training.loop import train as run_recipe
from rlstm_training.recipes import RECIPES
from rlstm_training.reporting import JsonLines, ProgressBar, Reporter, Several
from rlstm_training.run import RunDirectory
from rlstm_training.streams import held_out, load_stream
from rlstm_training.tensorboard import TensorBoard
from rlstm_training.texts import Passage, excerpt, on_corpus, passage, prepare

ON = ("wikitext-2", "tinyshakespeare", "canterbury/alice29")

Model = Annotated[str, typer.Argument(help="A checkpoint folder, or the name of a shipped model.")]
OwnCorpus = Annotated[
    str | None, typer.Option(help="Read this corpus instead: a name, or a folder with train.txt, valid.txt.")
]


@command
def train(
    recipe: Annotated[str, typer.Argument(help=f"One of {', '.join(RECIPES)}.")],
    run: Annotated[Path | None, typer.Option(help="Run directory (default: runs/RECIPE).")] = None,
    out: Annotated[Path | None, typer.Option(help="Checkpoint to write (default: RUN/RECIPE).")] = None,
    corpus: OwnCorpus = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, masks and resets.")] = None,
    half: Annotated[bool, typer.Option("--half/--full", help="Write float16 weights, or float32.")] = True,
    threads: Threads = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Train a model by a recipe; the same command goes on after an interruption."""
    chosen = _recipe(recipe, corpus, steps, seed)
    target = prepare_device(device, threads)
    folder = run or Path("runs") / recipe
    texts, vocab = prepare(chosen)
    with RunDirectory.open(folder, chosen) as directory:
        steps_before = directory.newest_step()
        with _reporter(directory, as_json) as reporter:
            run_recipe(chosen, texts, directory, reporter, device=target)
        out = out or folder / chosen.name
        if steps_before < chosen.steps or not out.is_dir():
            export(directory, out, vocab, dtype=torch.float16 if half else torch.float32)
    if as_json:
        show_json({"run": str(folder), "model": str(out)})
    else:
        typer.echo(f"model: {out}\nnext:  rlstm calibrate {out} --recipe {recipe}")


@command
def calibrate(
    model: Model,
    recipe: Annotated[
        str | None, typer.Option(help="The recipe it was trained by (default: the model's name).")
    ] = None,
    corpus: OwnCorpus = None,
    on: Annotated[
        list[str] | None, typer.Option(help=f"Held-out texts besides the recipe's (default: {', '.join(ON)}).")
    ] = None,
    length: Annotated[int, typer.Option(min=100, help="Bytes of each held-out text.")] = 4000,
    rate: Annotated[list[float] | None, typer.Option(min=0, help="A rate to try.")] = None,
    decay: Annotated[list[float] | None, typer.Option(min=0, help="A decay to try; the first with all.")] = None,
    heads: Annotated[int, typer.Option(min=1, help="Read heads of the statistics.")] = 16,
    segments: Annotated[int, typer.Option(min=1, help="Segments that each of them reads.")] = 60,
    segment: Annotated[int, typer.Option(min=1, help="Tokens of a segment.")] = 20,
    threads: Threads = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure a model's gradient statistics and choose its learning rate; writes adaptation.safetensors."""
    target = prepare_device(device, threads)
    checkpoint = load(model, target)
    chosen = _recipe(recipe or checkpoint.name, corpus, None, None)
    sources = prepare(chosen)[0].train
    passages = _held_out(checkpoint, chosen, ON if on is None else on, length)
    statistics = calibration.Statistics(heads=heads, segments=segments, segment=segment)
    try:
        measured = calibration.measure(
            checkpoint.model, sources, bos_id=checkpoint.vocab.bos_id, statistics=statistics
        )
    except ValueError as error:
        raise CorpusError(str(error)) from error
    rates, decays = rate or calibration.RATES, decay or calibration.DECAYS
    trials = _search(checkpoint, measured, passages, rates, decays)
    best = calibration.best(trials)
    static = _static(checkpoint, passages)
    measured.with_rate(best.rate, best.decay).save(checkpoint.folder / ADAPTATION, checkpoint.model)
    card = with_section(checkpoint.card, "Adaptation", calibration_section(trials, best, static))
    (checkpoint.folder / CARD).write_text(card, "utf-8")
    if as_json:
        tried = [trial.to_json() for trial in trials]
        show_json({"chosen": best.to_json(), "static": static, "trials": tried})
    else:
        _show_trials(trials, best, static)


@command
def evaluate(
    model: Model,
    files: Annotated[list[str] | None, typer.Argument(help="Text files; - is standard input.")] = None,
    corpus: Annotated[list[str] | None, typer.Option(help="A corpus by name, or a folder.")] = None,
    split: Annotated[str, typer.Option(help="Of the corpora: train, valid or test.")] = "test",
    stream: Annotated[list[str] | None, typer.Option(help="A stream, read in one session.")] = None,
    prefix: Annotated[
        int | None, typer.Option(min=1, help="Only the first bytes of each text or segment.")
    ] = None,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Learn while reading, as a session does.")] = False,
    rate_scale: Annotated[float, typer.Option(min=0, help="Multiplies the calibrated rate.")] = 1.0,
    threads: Threads = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Score texts exactly: one after the other token by token, static or learning."""
    target = prepare_device(device, threads)
    if split not in ("train", "valid", "test"):
        raise typer.BadParameter("must be train, valid or test", param_hint="--split")
    checkpoint = load(model, target)
    texts = _texts(checkpoint, files or [], corpus or [], split, stream or [], prefix)
    adapter = _adapter(checkpoint) if dynamic else None
    results = []
    for name, passages in texts:
        reading: Reading = StaticReading(checkpoint.model, bos_id=checkpoint.vocab.bos_id)
        if adapter is not None:
            reading = DynamicReading(adapter, rate_scale=rate_scale)
        with progress_bar(name, sum(len(part.ids) for part in passages)) as advance:
            results.append((name, [reading.read(part, advance) for part in passages]))
    if as_json:
        show_json({"model": checkpoint.name, "fingerprint": checkpoint.fingerprint, "texts": _as_json(results)})
    else:
        _show_results(results)
