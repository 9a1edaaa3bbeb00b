"""``rlstm bench train``: how fast training is on this machine."""

from dataclasses import asdict
from typing import Annotated

import torch
import typer
from rich.console import Console

from rlstm_model.config import ConfigError
from rlstm_training.bench.speed import Row, Workload, measure
from rlstm_training.commands.console import (
    AsJson,
    Device,
    Threads,
    command,
    prepare_device,
    show_json,
    show_table,
)
from rlstm_training.config import Precision

HEADERS = ("", "weights", "tokens/s", "from", "to", "of sgemm", "of our LSTM", "of torch's")


@command
def bench_train(
    hidden: Annotated[int, typer.Option(min=1, help="Units a layer of the RLSTM.")] = 256,
    layers: Annotated[int, typer.Option(min=1, help="Layers of every model.")] = 2,
    rounds: Annotated[int, typer.Option(min=0, help="Mogrifier rounds.")] = 4,
    rank: Annotated[int, typer.Option(min=0, help="Rank of the rounds' matrices; 0: full.")] = 40,
    vocab: Annotated[int, typer.Option(min=1, help="Symbols of the vocabulary.")] = 256,
    batch: Annotated[int, typer.Option(min=1, help="Rows.")] = 128,
    window: Annotated[int, typer.Option(min=1, help="Tokens a row and step.")] = 40,
    precision: Annotated[Precision, typer.Option(help="Of the inputs of our matrix products.")] = "float32",
    seconds: Annotated[float, typer.Option(min=0, help="How long to measure, about.")] = 30.0,
    threads: Threads = 1,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure how fast models train, as ratios taken in one run.

    RLSTM, LSTM and torch.nn.LSTM with equally many weights read the same windows in turn, beside the
    machine's rate for one large matrix product.
    """
    chosen = prepare_device(device, threads)
    workload = Workload(
        hidden=hidden,
        layers=layers,
        rounds=rounds,
        rank=rank,
        vocabulary=vocab,
        batch=batch,
        window=window,
        precision=torch.bfloat16 if precision == "bfloat16" else torch.float32,
    )
    console = Console(stderr=True)
    try:
        with console.status("measuring"):
            rows = measure(workload, seconds, device=chosen)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    if as_json:
        told = {**asdict(workload), "precision": precision}
        show_json(
            {"workload": told, "threads": threads, "device": device, "rows": [asdict(row) for row in rows]}
        )
    else:
        show_table(HEADERS, [_cells(row) for row in rows])


def _cells(row: Row) -> list[str]:
    speeds = [f"{value:,.0f}" for value in (row.parameters, row.tokens_per_second, row.slowest, row.fastest)]
    ratios = ["" if value is None else f"{value:.2f}" for value in (row.sgemm, row.our_lstm, row.torch_lstm)]
    return [row.name, *speeds, *ratios]
