"""``rlstm bench peers``: learning and scoring beside how others do it, on this machine."""

from dataclasses import asdict
from typing import Annotated

import torch
import typer
from rich.console import Console

from rlstm_model.checkpoint import load
from rlstm_training.bench import gpt2
from rlstm_training.bench.peers import Conditions, Figures, measure, peers
from rlstm_training.commands.adapt_choices import calibrated_of, rule_named
from rlstm_training.commands.console import (
    AsJson,
    Device,
    Model,
    Threads,
    command,
    prepare_device,
    show_json,
    show_table,
    warn,
)

HEADERS = ("", "weights", "tokens/s", "from", "to", "ours is x")


@command
def bench_peers(
    model: Model = "bytes-small",
    rule: Annotated[
        str | None,
        typer.Option(metavar="KIND[:COORDINATES]", help="Our sessions learn by this (the model's default)."),
    ] = None,
    sessions: Annotated[
        int, typer.Option(min=1, help="Sessions that we read at once; rows of others.")
    ] = 256,
    context: Annotated[int, typer.Option(min=1, help="Tokens that GPT-2 can look back on.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Each measures all once; medians count.")] = 5,
    seconds: Annotated[float, typer.Option(min=0, help="For each of them in a round, at least.")] = 0.5,
    threads: Threads = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure how fast learning and scoring are beside how others do it, as ratios taken in one run.

    Learning: full weights one session at a time, by us and by plain automatic differentiation (at one thread
    or --threads, whichever is faster). Scoring: torch.nn.LSTM and, where transformers is installed, GPT-2,
    with as many weights.
    """
    chosen = prepare_device(device, threads)
    checkpoint = load(model, chosen)
    calibrated = calibrated_of(checkpoint)
    config = calibrated.default if rule is None else rule_named(calibrated, rule)
    calibration = calibrated.choose(config.kind, config.coordinates)
    under = Conditions(
        sessions=sessions, context=context, threads=threads or torch.get_num_threads(), device=chosen
    )
    if not gpt2.is_installed():
        warn(f"GPT-2 is left out: pip install {gpt2.LIBRARY}")
    with Console(stderr=True).status("measuring"):
        found = peers(calibrated, calibration, bos_id=checkpoint.vocab.bos_id, under=under)
        told = measure(found, rounds=rounds, seconds=seconds, device=chosen)
    if as_json:
        conditions = {**asdict(under), "device": device}
        show_json({"model": checkpoint.name, "conditions": conditions, "rows": [asdict(row) for row in told]})
    else:
        show_table(HEADERS, [_cells(row) for row in told])


def _cells(row: Figures) -> list[str]:
    speeds = (row.weights, row.tokens_per_second, row.slowest, row.fastest)
    return [f"{row.task}, {row.name}", *(f"{value:,.0f}" for value in speeds), f"{row.ours:.2f}"]
