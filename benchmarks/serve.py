"""`python -m benchmarks.serve`: what a server does for many sessions at once, and how long they wait."""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final, ParamSpec

import typer
from rich.console import Console

from benchmarks.serving.capacity import WARM, Resident, measure_resident
from benchmarks.serving.choices import (
    asked_of,
    cache_bytes,
    check_memory,
    check_plot,
    queued_jobs,
    scores_named,
)
from benchmarks.serving.load import Plan
from benchmarks.serving.measure import Conditions, Figures, run, through_engine, through_http
from benchmarks.serving.process import NoServer, running
from benchmarks.serving.results import Results
from benchmarks.serving.targets import RequestFailed
from rlstm_model import native
from rlstm_model.adaptation.calibration_file import CalibrationError
from rlstm_model.checkpoint import CheckpointError, load
from rlstm_server.engine.models import ServedModel
from rlstm_server.engine.worker import ROWS
from rlstm_server.errors import ServerError
from rlstm_server.schemas.text import AdaptationRequest

P = ParamSpec("P")

FAILED, WRONG_INPUT = 1, 2
SESSIONS: Final = (1, 16, 64, 256, 1_024)

Model = Annotated[str, typer.Argument(help="A shipped model's name or a checkpoint folder.")]
Sessions = Annotated[
    list[int] | None,
    typer.Option(min=1, max=100_000, help="Sessions at once; may be repeated (1, 16, 64, 256, 1,024)."),
]
TextBytes = Annotated[int, typer.Option("--bytes", min=1, max=65_536, help="Of each append.")]
Rule = Annotated[
    str | None,
    typer.Option(metavar="KIND[:COORDINATES]", help="Sessions learn by this (the model's default)."),
]
Experts = Annotated[int | None, typer.Option(help="Learning rates of a session that are mixed.")]
Static = Annotated[bool, typer.Option(help="Whether sessions carry the static row.")]
Scores = Annotated[str, typer.Option(help="What answers hold: tokens, totals.")]
Rows = Annotated[int, typer.Option(min=1, max=65_536, help="Rows of a round.")]
Seconds = Annotated[float, typer.Option(min=0, help="Each is measured for so long at least.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads (default: one for each core).")]
Http = Annotated[bool, typer.Option(help="Whether to measure through HTTP too.")]
ResidentCount = Annotated[
    int,
    typer.Option("--resident", min=0, help="So many sessions are made and kept: what each takes in memory."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
PlotFile = Annotated[Path | None, typer.Option("--plot", help="Draw it, as .svg or .png.")]


def command(function: Callable[P, None]) -> Callable[P, None]:
    """A command that ends with one line and an exit code at every error that can be foreseen."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except (CheckpointError, CalibrationError) as error:
            _leave(error, WRONG_INPUT)
        except (NoServer, RequestFailed, ServerError) as error:
            _leave(error, FAILED)

    return wrapped


def _leave(error: Exception, code: int) -> None:
    typer.echo(f"rlstm: {error}", err=True)
    raise typer.Exit(code) from error


@command
def serve(
    model: Model = "bytes-small",
    sessions: Sessions = None,
    text_bytes: TextBytes = 2_000,
    rule: Rule = None,
    experts: Experts = None,
    static: Static = True,
    scores: Scores = "tokens",
    rows: Rows = ROWS,
    seconds: Seconds = 10.0,
    threads: Threads = None,
    http: Http = True,
    resident: ResidentCount = 0,
    as_json: AsJson = False,
    plot: PlotFile = None,
) -> None:
    """Measure throughput and latency of many sessions that append at once, through the engine and HTTP.

    Each session appends, waits for the answer, and appends again. Meanwhile another tenant appends 20 bytes
    at a time: its wait is told in rounds of the device. All sessions stay in memory. The engine and its store
    are in this process; the server is rlstm serve in a process of its own, and this one is its client.
    With --resident alone nothing but memory is measured.
    """
    check_plot(plot)
    counts = sessions or ([] if resident else SESSIONS)
    served = ServedModel.of(load(model))
    room = _Room(rows=rows, threads=threads or native.pool().threads)
    under = _conditions(served, asked_of(served, rule, experts, static=static), counts, scores, room)
    check_memory(served, under.asked, max([*counts, resident]))
    settings = {"model": model, "device": "cpu", **asdict(room)}
    with Console(stderr=True).status("measuring"):
        plans = [Plan(sessions=count, text_bytes=text_bytes, seconds=seconds) for count in counts]
        found = _figures(served, under, plans, settings if http else None)
        kept = _resident(served, under, resident, settings) if resident else None
    results = Results.of(served, under, text_bytes=text_bytes, found=found, resident=kept)
    results.show(as_json=as_json)
    if plot is not None:
        results.save_plot(plot)


@dataclass(frozen=True, kw_only=True)
class _Room:
    """What a server is given to compute with."""

    rows: int
    threads: int


def _conditions(
    served: ServedModel, asked: AdaptationRequest, counts: Sequence[int], scores: str, room: _Room
) -> Conditions:
    most = max(counts, default=0)
    return Conditions(
        asked=asked,
        scores=scores_named(scores),
        rows=room.rows,
        threads=room.threads,
        queued_jobs=queued_jobs(most),
        cache_bytes=cache_bytes(served, asked, most),
    )


def _figures(
    served: ServedModel, under: Conditions, plans: Sequence[Plan], settings: Mapping[str, object] | None
) -> list[Figures]:
    """Those of the engine, and beside each, where there are ``settings``, those of a server with them."""
    room = {
        "cache_bytes": under.cache_bytes,
        "limits__queued_jobs": under.queued_jobs,
        "durability": "memory",
    }
    found = []
    with nullcontext() if settings is None or not plans else running({**settings, **room}) as server:
        for plan in plans:
            found.append(through_engine(served, under, plan))
            if server is not None:
                found.append(through_http(server, under, plan).beside(found[-1]))
    return found


def _resident(
    served: ServedModel, under: Conditions, sessions: int, settings: Mapping[str, object]
) -> Resident:
    """Of a server whose store is a process of its own, as it usually is: its memory is no session's."""
    room = cache_bytes(served, under.asked, sessions + WARM)
    with running({**settings, "cache_bytes": room, "durability": "fsync"}) as server:
        return run(measure_resident(server, served, under.asked, sessions))


if __name__ == "__main__":
    typer.run(serve)
