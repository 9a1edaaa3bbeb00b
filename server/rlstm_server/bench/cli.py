"""``rlstm bench speed``: how fast a model is on this machine."""

import json
from dataclasses import asdict
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from rlstm_model.adaptation.adapter import Adapter
from rlstm_model.adaptation.calibration_file import CalibrationError, load_calibration
from rlstm_model.checkpoint import CheckpointError, load
from rlstm_server.bench.speed import SpeedRow, measure_speed


def bench(
    model: Annotated[
        str, typer.Argument(help="A shipped model's name or a checkpoint folder.")
    ] = "bytes-small",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the median counts.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Threads for matrix products.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Measure scoring and learning speed, each against the machine's matrix-product rate."""
    torch.set_num_threads(threads)
    try:
        checkpoint = load(model)
        if checkpoint.adaptation_file is None:
            raise CheckpointError(f"{checkpoint.folder} is not calibrated: run `rlstm calibrate` first")
        calibration = load_calibration(checkpoint.adaptation_file, checkpoint.model).choose()
    except (CheckpointError, CalibrationError) as error:
        Console(stderr=True).print(f"[red]error:[/red] {error}", highlight=False)
        raise typer.Exit(1) from error
    adapter = Adapter(checkpoint.model, calibration, bos_id=checkpoint.vocab.bos_id)
    rows = measure_speed(checkpoint.model, adapter, rounds=rounds)
    if as_json:
        print(json.dumps({"model": checkpoint.name, "threads": threads, "rows": [asdict(r) for r in rows]}))  # noqa: T201
    else:
        Console().print(_table(checkpoint.name, threads, rows))


def _table(name: str, threads: int, rows: list[SpeedRow]) -> Table:
    table = Table("", "tokens/s", "of sgemm", title=f"{name}, {threads} thread(s)")
    for row in rows:
        share = "" if row.flops_share is None else f"{row.flops_share:.2f}"
        table.add_row(row.name, f"{row.tokens_per_second:,.0f}", share)
    return table
