"""What `python -m benchmarks.serve` is asked for, in the engine's words. What cannot be is wrong usage."""

import importlib.util
import os
from pathlib import Path
from typing import Final, get_args

import typer
from pydantic import ValidationError

from rlstm_model.adaptation.config import Kind
from rlstm_server.engine.engine import CACHE_BYTES
from rlstm_server.engine.models import ServedModel
from rlstm_server.engine.scheduler import SHARE
from rlstm_server.errors import InvalidField
from rlstm_server.schemas.text import AdaptationRequest, EngineLimits, ScoreDetail

SUFFIXES: Final = (".svg", ".png")

SPARE: Final = 2
"""Room for sessions, in multiples of what they take: newer copies are made while older ones are there."""

SCORES: Final[dict[str, ScoreDetail]] = {"tokens": "tokens", "totals": "totals"}


def asked_of(
    served: ServedModel, rule: str | None, experts: int | None, *, static: bool
) -> AdaptationRequest:
    """How sessions learn: by the rule ``KIND[:SIZE]``, or the model's default."""
    kind, size = _rule(rule) if rule is not None else (None, None)
    try:
        asked = AdaptationRequest(kind=kind, num_fast_weights=size, experts=experts, static=static)
    except ValidationError as error:
        raise typer.BadParameter(error.errors()[0]["msg"], param_hint="--experts") from error
    try:
        served.choose(asked)
    except InvalidField as error:
        hint = "--experts" if "experts" in error.detail.split(":")[0] else "--rule"
        raise typer.BadParameter(error.detail, param_hint=hint) from error
    return asked


def _rule(name: str) -> tuple[Kind, int | None]:
    kinds: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    kind, _, size = name.partition(":")
    if kind not in kinds or (size and not size.isdecimal()):
        raise typer.BadParameter(f"{name!r} is no KIND[:SIZE] of {', '.join(kinds)}", param_hint="--rule")
    return kinds[kind], int(size) if size else None


def scores_named(name: str) -> ScoreDetail:
    """What answers hold: the tokens are counted in them, so they hold something."""
    if name not in SCORES:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(SCORES)}", param_hint="--scores")
    return SCORES[name]


def queued_jobs(sessions: int) -> int:
    """Places for one job of each session, which all are one tenant's."""
    return max(EngineLimits().queued_jobs, int(sessions / SHARE) + 1)


def cache_bytes(served: ServedModel, asked: AdaptationRequest, sessions: int) -> int:
    """Room for a copy of each session."""
    return max(CACHE_BYTES, SPARE * sessions * served.state_bytes(served.choose(asked)))


def check_memory(served: ServedModel, asked: AdaptationRequest, sessions: int) -> None:
    """Whether the machine has memory for the sessions, and as much again for what is stored of them."""
    needed = 2 * sessions * served.state_bytes(served.choose(asked))
    present = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > present:
        raise typer.BadParameter(
            f"{sessions:,} sessions and what is stored of them take {needed / 2**30:.1f} GiB by this rule;"
            f" this machine has {present / 2**30:.1f}: choose a smaller one with --rule, or fewer --sessions",
            param_hint="--sessions",
        )


def check_plot(path: Path | None) -> None:
    """Before minutes of measuring: whether the plot can be drawn and kept."""
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise typer.BadParameter(f"{path} ends with none of {', '.join(SUFFIXES)}", param_hint="--plot")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"{path.parent} is no folder", param_hint="--plot")
    if importlib.util.find_spec("matplotlib") is None:
        raise typer.BadParameter("drawing needs matplotlib: pip install matplotlib", param_hint="--plot")
