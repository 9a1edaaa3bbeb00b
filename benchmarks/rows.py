"""How much of a device's matrix-product rate so many rows get: ``python -m benchmarks.rows --device cuda``.

Frozen texts and sessions of one, two and four experts, by the backend of that device; ``--torch`` rehearses
the GPU's on a CPU.
"""

from collections.abc import Sequence

import click
import torch

from benchmarks.cases import (
    Case,
    backend_on,
    evaluator_of,
    measure,
    multiply_adds,
    product_case,
    scoring,
    sessions,
)
from benchmarks.models import Subject
from benchmarks.peers import learning_operations
from rlstm_client.cli import inputs
from rlstm_model.adaptation.backend import Backend
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.state import EXPERT_RATES
from rlstm_model.torch_backend.backend import TorchBackend
from rlstm_training.commands import console
from rlstm_training.commands.console import show_json, show_table
from rlstm_training.commands.given import Compute, compute

COUNTS = (256, 1_024, 4_096)


def cases(subject: Subject, counts: Sequence[int], device: torch.device, *, by_torch: bool) -> list[Case]:
    """One large product, and each task with so many texts or sessions."""
    config, rule = subject.parameters.config, subject.calibrated.choose()

    def backend(chosen: Calibration | None = None) -> Backend:
        if by_torch:
            return TorchBackend.of(subject.parameters, chosen, device=str(device))
        return backend_on(device, subject, chosen)

    frozen, evaluator = backend(), evaluator_of(backend(rule), subject, rule)
    threads = (torch.get_num_threads(),)
    found = [product_case(threads[0], device)]
    for count in counts:
        read = scoring(frozen, bos_id=subject.bos_id, length=rule.config.segment, count=count)
        name, operations = f"{count:,} frozen", multiply_adds(config)
        found.append(Case(name=name, task="static", work=read, operations=operations, threads=threads))
        for experts in EXPERT_RATES:
            learn = sessions(evaluator, count=count, experts=experts)
            name, operations = f"{count:,} sessions, experts: {experts}", learning_operations(config, experts)
            found.append(Case(name=name, task="learning", work=learn, operations=operations, threads=threads))
    return found


@console.command()
@console.model(default="bytes-small")
@click.option("--count", type=click.IntRange(1), multiple=True, help="Rows at once (256, 1,024, 4,096).")
@click.option("by_torch", "--torch", is_flag=True, help="The GPU's backend, on a CPU too.")
@click.option("--rounds", type=click.IntRange(1), default=3, help="Each measures all once; medians count.")
@click.option(
    "--seconds", type=click.FloatRange(0), default=0.5, help="For each of them in a round, at least."
)
@compute
@inputs.as_json
def rows(
    model: str,
    count: Sequence[int],
    by_torch: bool,
    rounds: int,
    seconds: float,
    compute: Compute,
    as_json: bool,
) -> None:
    """Measure tokens a second of many rows, and their share of one large matrix product's rate."""
    place, subject = compute.prepare(), Subject.load(model)
    found = cases(subject, count or [*COUNTS], place, by_torch=by_torch)
    figures = measure(found, rounds=rounds, seconds=seconds, device=place).figures()
    if as_json:
        show_json({"model": subject.name, "device": compute.device, "rows": figures})
        return
    cells = [(row["name"], f"{row['tokens_per_second']:,.0f}", f"{row['of_sgemm']:.2f}") for row in figures]
    show_table(("", "tokens/s", "of sgemm"), cells)


if __name__ == "__main__":
    rows()
