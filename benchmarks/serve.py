"""`python -m benchmarks.serve`: what a server does for many sessions at once, and how long they wait."""

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any, Final

import click
from pydantic import ValidationError

from benchmarks.serving.capacity import WARM, Resident, measure_resident
from benchmarks.serving.load import Plan
from benchmarks.serving.measure import Conditions, Figures, run, through_engine, through_http
from benchmarks.serving.process import NoServer, running
from benchmarks.serving.targets import RequestFailed
from rlstm_client.cli import inputs
from rlstm_client.cli.exits import CommandError, Exit
from rlstm_model import native
from rlstm_model.checkpoint import load
from rlstm_server.engine.engine import CACHE_BYTES
from rlstm_server.engine.models import ServedModel
from rlstm_server.engine.scheduler import SHARE
from rlstm_server.engine.worker import ROWS
from rlstm_server.errors import InvalidField, ServerError
from rlstm_server.schemas.text import (
    AdaptationRequest,
    ScoreDetail,
)
from rlstm_server.settings import Limits
from rlstm_training.commands import console
from rlstm_training.commands.choosing import rule_named
from rlstm_training.commands.console import show_json, show_table

SESSIONS: Final = (1, 16, 64, 256, 1_024)

SPARE: Final = 2
"""Room for sessions, in multiples of what they take: newer copies are made while older ones are there."""


class Command(console.Command):
    """What fails of a server, too, ends with one line."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        try:
            return super().invoke(ctx)
        except (NoServer, RequestFailed, ServerError) as error:
            raise CommandError(str(error), Exit.REFUSED) from error


@console.command(cls=Command)
@console.model(default="bytes-small")
@click.option(
    "--sessions",
    type=click.IntRange(1, 100_000),
    multiple=True,
    help="Sessions at once; may be repeated (1, 16, 64, 256, 1,024).",
)
@click.option("text_bytes", "--bytes", type=click.IntRange(1, 65_536), default=2_000, help="Of each append.")
@click.option("--rule", metavar="KIND[:SIZE]", help="Sessions learn by this (the default).")
@click.option("--experts", type=int, help="Learning rates of a session that are mixed.")
@click.option("--static/--no-static", default=True, help="Whether sessions carry the frozen baseline.")
@click.option(
    "--scores", type=click.Choice(("tokens", "totals")), default="tokens", help="What answers hold."
)
@click.option("--rows", type=click.IntRange(1, 65_536), default=ROWS, help="Rows of a batch step.")
@click.option(
    "--seconds", type=click.FloatRange(0), default=10.0, help="Each is measured for so long at least."
)
@click.option("--threads", type=click.IntRange(1), help="CPU threads (default: torch's own choice).")
@click.option("--http/--no-http", default=True, help="Whether to measure through HTTP too.")
@click.option(
    "--resident",
    type=click.IntRange(0),
    default=0,
    help="So many sessions are made and kept: what each takes in memory.",
)
@inputs.as_json
def serve(
    model: str,
    sessions: Sequence[int],
    text_bytes: int,
    rule: str | None,
    experts: int | None,
    static: bool,
    scores: ScoreDetail,
    rows: int,
    seconds: float,
    threads: int | None,
    http: bool,
    resident: int,
    as_json: bool,
) -> None:
    """Measure throughput and latency of many sessions that append at once, through the engine and HTTP.

    Each session appends, waits for the answer, and appends again. Meanwhile another tenant appends 20 bytes
    at a time: its wait is told in batch steps. All sessions stay in memory. The engine and its store are in
    this process; the server is rlstm serve in a process of its own, and this one is its client. With
    --resident alone nothing but memory is measured.
    """
    counts = sessions or ([] if resident else SESSIONS)
    served = ServedModel.of(load(model))
    asked = _asked(served, rule, experts, static=static)
    most = max(counts, default=0)
    _check_memory(served, asked, max(most, resident))
    under = Conditions(
        asked=asked,
        scores=scores,
        rows=rows,
        threads=threads or native.pool().threads,
        # One job of each session, all of them one tenant's.
        queued_jobs=max(Limits().queued_jobs, int(most / SHARE) + 1),
        cache_bytes=_cache_bytes(served, asked, most),
    )
    settings = {"model": model, "device": "cpu", "rows": rows, "threads": under.threads}
    plans = [Plan(sessions=count, text_bytes=text_bytes, seconds=seconds) for count in counts]
    found = _figures(served, under, plans, settings if http else None)
    kept = _resident(served, under, resident, settings) if resident else None
    conditions = {
        "adaptation": asdict(served.choose(asked)),
        "bytes": text_bytes,
        **{name: getattr(under, name) for name in ("scores", "rows", "threads")},
    }
    if as_json:
        figures = [asdict(one) for one in found]
        memory = None if kept is None else kept.to_json()
        show_json({"model": served.name, "conditions": conditions, "rows": figures, "resident": memory})
    else:
        _show(served, conditions, found, kept)


def _asked(served: ServedModel, rule: str | None, experts: int | None, *, static: bool) -> AdaptationRequest:
    """How sessions learn: by the rule that is named, or the model's default. Wrong usage else."""
    named: dict[str, Any] = {}
    if rule is not None and served.calibrated is not None:
        chosen = rule_named(served.calibrated, rule)
        named = {"kind": chosen.kind, "num_fast_weights": chosen.num_fast_weights}
    try:
        asked = AdaptationRequest(experts=experts, static=static, **named)
        served.choose(asked)
    except ValidationError as error:
        raise click.BadParameter(error.errors()[0]["msg"], param_hint="--experts") from error
    except InvalidField as error:
        raise click.BadParameter(error.detail, param_hint="--experts") from error
    return asked


def _cache_bytes(served: ServedModel, asked: AdaptationRequest, sessions: int) -> int:
    """Room for a copy of each session."""
    return max(CACHE_BYTES, SPARE * sessions * served.state_bytes(served.choose(asked)))


def _check_memory(served: ServedModel, asked: AdaptationRequest, sessions: int) -> None:
    """Whether the machine has memory for the sessions, and as much again for what is stored of them."""
    needed = 2 * sessions * served.state_bytes(served.choose(asked))
    present = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > present:
        raise click.BadParameter(
            f"{sessions:,} sessions and what is stored of them take {needed / 2**30:.1f} GiB by this rule;"
            f" this machine has {present / 2**30:.1f}: choose a smaller one with --rule, or fewer --sessions",
            param_hint="--sessions",
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
    room = _cache_bytes(served, under.asked, sessions + WARM)
    with running({**settings, "cache_bytes": room, "durability": "fsync"}) as server:
        return run(measure_resident(server, served, under.asked, sessions))


def _show(
    served: ServedModel, conditions: Mapping[str, Any], found: Sequence[Figures], kept: Resident | None
) -> None:
    """The conditions, a line for each number of sessions and way, and what a session takes in memory."""
    choice = conditions["adaptation"]
    click.echo(
        f"{served.name}, {choice['kind']} of {choice['num_fast_weights']:,}, experts: {choice['experts']}; "
        f"appends of {conditions['bytes']:,} bytes, batch steps of {conditions['rows']} rows, "
        f"threads: {conditions['threads']}"
    )
    if found:
        headers = ("sessions, through", "tokens/s", "of engine", "append p50", "p99", "batch step", "p99")
        show_table((*headers, "apart", "rows", "20 bytes p99", "in steps"), [_cells(one) for one in found])
    if kept is not None:
        click.echo(
            f"{kept.sessions:,} sessions in memory: {kept.measured:,.0f} bytes each, "
            f"{kept.ratio:.2f} of the predicted {kept.predicted:,}"
        )


def _cells(figures: Figures) -> list[str]:
    return [
        f"{figures.sessions:,} {figures.way}",
        f"{figures.tokens_per_second:,.0f}",
        "" if figures.of_engine is None else f"{100 * figures.of_engine:.1f} %",
        _ms(figures.append_p50),
        _ms(figures.append_p99),
        _ms(figures.round_mean),
        _ms(figures.round_p99),
        _ms(figures.round_apart),
        f"{figures.rows_a_round:.1f}",
        _ms(figures.short_p99),
        f"{figures.short_rounds:.2f}",
    ]


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:,.1f} ms"


if __name__ == "__main__":
    serve()
