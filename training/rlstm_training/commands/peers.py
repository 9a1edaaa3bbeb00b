"""``rlstm bench peers``: learning and scoring beside how others do it, on this machine."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console

from rlstm_model.adaptation.calibration import CalibrationSet
from rlstm_model.checkpoint import load
from rlstm_model.vocab import ByteVocab
from rlstm_training.bench import gpt2
from rlstm_training.bench.in_turn import Figures, Measured, measure
from rlstm_training.bench.peers import EAGER, Conditions, peers, ratios
from rlstm_training.bench.untrained import AXES, RANK, untrained
from rlstm_training.commands.choosing import calibrated_of, rule_named
from rlstm_training.commands.console import (
    AsJson,
    Device,
    Model,
    Room,
    Threads,
    command,
    prepare_crew,
    show_json,
    show_table,
    warn,
)

SHIPPED = "bytes-small"
HEADERS = ("", "weights", "threads", "tokens/s", "from", "to", "rows/s", "of sgemm", "ours is x")

Hidden = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=f"Instead of MODEL: untrained, two layers of so many units, mogrifier rank {RANK}, bytes; a "
        f"subspace within {AXES} axes of embedding and softmax.",
    ),
]
RuleName = Annotated[
    str | None,
    typer.Option(
        "--rule", metavar="KIND[:COORDINATES]", help="Our sessions learn by this (the model's default)."
    ),
]
Sessions = Annotated[int, typer.Option(min=1, help="Sessions that we read at once; rows of others.")]
Context = Annotated[int, typer.Option(min=1, help="Tokens that GPT-2 can look back on.")]
Rounds = Annotated[int, typer.Option(min=1, help="Each measures all once; medians count.")]
Seconds = Annotated[float, typer.Option(min=0, help="For each of them in a round, at least.")]


@command
def bench_peers(
    model: Model = SHIPPED,
    hidden: Hidden = None,
    rule: RuleName = None,
    sessions: Sessions = 256,
    context: Context = 64,
    rounds: Rounds = 5,
    seconds: Seconds = 0.5,
    threads: Threads = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure how fast learning and scoring are beside how others do it, as ratios taken in one run.

    Learning: many sessions together, of one expert, and of several with their static row; full weights one
    session at a time, by us and by plain automatic differentiation. Scoring: torch.nn.LSTM and, where
    transformers is installed, GPT-2, with as many weights. Ours run as in a server, on --threads that each
    have products of their own; those of others are split over --threads, or not, whichever is faster. The
    yardstick is one large matrix product, split; operations are multiply-adds with shared matrices.
    """
    if hidden is not None and model != SHIPPED:
        raise typer.BadParameter(f"it stands for a model: leave {model} out", param_hint="--hidden")
    if not gpt2.is_installed():
        warn(f"GPT-2 is left out: pip install 'mogrifier-rlstm[{gpt2.EXTRA}]'")
    with prepare_crew(device, threads) as room, Console(stderr=True).status("measuring"):
        subject = _subject(model, hidden, room.device)
        under = Conditions(sessions=sessions, context=context, threads=room.threads, device=room.device)
        measured = _measure(subject, rule, under, room, rounds, seconds)
    if as_json:
        show_json(_report(subject.name, under, measured))
    else:
        show_table(HEADERS, [_cells(row) for row in measured.figures()])
        for line in _lines(ratios(measured), sessions):
            typer.echo(line)


class _Subject(NamedTuple):
    """What is measured beside others."""

    name: str
    calibrated: CalibrationSet
    bos_id: int


def _subject(model: str, hidden: int | None, device: torch.device) -> _Subject:
    if hidden is not None:
        return _Subject(f"untrained, {hidden} units", untrained(hidden, device), ByteVocab().bos_id)
    checkpoint = load(model, device)
    return _Subject(checkpoint.name, calibrated_of(checkpoint), checkpoint.vocab.bos_id)


def _measure(
    subject: _Subject, rule: str | None, under: Conditions, room: Room, rounds: int, seconds: float
) -> Measured:
    calibrated = subject.calibrated
    config = calibrated.default if rule is None else rule_named(calibrated, rule)
    calibration = calibrated.choose(config.kind, config.num_fast_weights)
    cases = peers(calibrated, calibration, bos_id=subject.bos_id, under=under, thread_pool=room.thread_pool)
    return measure(cases, rounds=rounds, seconds=seconds, device=room.device)


def _report(name: str, under: Conditions, measured: Measured) -> dict[str, Any]:
    return {
        "model": name,
        "conditions": {**asdict(under), "device": str(under.device)},
        "rows": [{**asdict(row), "rows_per_second": _rows_per_second(row)} for row in measured.figures()],
        "ratios": ratios(measured),
    }


def _rows_per_second(row: Figures) -> float:
    """The tokens that all rows of a session read, a second."""
    return row.rows * row.tokens_per_second


def _cells(row: Figures) -> list[str]:
    speeds = (row.tokens_per_second, row.slowest, row.fastest, _rows_per_second(row))
    shares = (row.of_sgemm, row.ours)
    return [
        f"{row.task}, {row.name}",
        f"{row.weights:,}" if row.weights else "",
        str(row.threads),
        *(f"{value:,.0f}" for value in speeds),
        *(f"{value:.2f}" for value in shares),
    ]


def _lines(found: Mapping[str, float], sessions: int) -> list[str]:
    """The ratios, each with what it is of."""
    together = f"learning {sessions} sessions over"
    about = {
        "learning/peer": f"{together} one session at a time, {EAGER.partition(':')[0]}",
        "learning/static": f"{together} scoring {sessions} rows",
        "static/sgemm": f"scoring {sessions} rows, operations over those of the large matrix product",
    }
    return [f"{name:<16} {value:7.2f}   {about[name]}" for name, value in found.items()]
