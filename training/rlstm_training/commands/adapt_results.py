"""What ``rlstm bench adapt`` found: as JSON, as tables, and as a plot."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer

from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_training.atomic import replace_text
from rlstm_training.bench.adaptation import Bits, Outcome
from rlstm_training.bench.shares import Mixed, Reference, Texts, finite, mean, shares
from rlstm_training.commands.console import show_table
from rlstm_training.report.plots import Line, Plot, png, svg

SUFFIXES: Final = (".svg", ".png")
CLOSE: Final = 0.005


@dataclass(frozen=True, kw_only=True)
class Results:
    """All figures of one run.

    prefix     bytes read of each segment, None for all
    streams    which of the texts are streams
    reference  None where there are no full fast weights to compare with
    mixtures   by rule, of all texts
    """

    model: str
    prefix: int | None
    texts: Texts
    streams: Sequence[str]
    static: Bits
    reference: Reference | None
    outcomes: Sequence[Outcome]
    mixtures: Mapping[AdaptationConfig, Sequence[Mixed]]

    def shares(self, outcome: Outcome) -> dict[str, float | None]:
        """By text; None where there is nothing to take a share of."""
        if self.reference is None:
            return dict.fromkeys(self.static)
        return shares(self.static, self.reference, outcome.bits)

    def over_streams(self, outcome: Outcome) -> float | None:
        """The mean share of the streams."""
        own = self.shares(outcome)
        return mean([own[name] for name in self.streams])

    def over_all(self, outcome: Outcome) -> float | None:
        """The mean share of all texts."""
        return mean(list(self.shares(outcome).values()))

    def better_streams(self, mixtures: Sequence[Mixed]) -> int:
        """How many streams cost less by the mixture than by any single rate."""
        return sum(each.excess < 0 for each in mixtures if each.text in self.streams)

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all of it."""
        return {
            "model": self.model,
            "prefix": self.prefix,
            "texts": self.texts.to_json(),
            "static": finite(self.static),
            "full": None if self.reference is None else self.reference.to_json(),
            "rows": [self._row(outcome) for outcome in self.outcomes],
            "mixtures": [
                {
                    "rule": rule.to_json(),
                    "better_streams": self.better_streams(texts),
                    "texts": [text.to_json() for text in texts],
                }
                for rule, texts in self.mixtures.items()
            ],
        }

    def _row(self, outcome: Outcome) -> dict[str, Any]:
        return {
            "rule": outcome.method.rule.to_json(),
            "experts": outcome.method.experts,
            "bytes": outcome.bytes,
            "bits_per_byte": finite(outcome.bits),
            "guards": dict(outcome.guards),
            "share": self.shares(outcome),
            "share_of_streams": self.over_streams(outcome),
            "share_of_all": self.over_all(outcome),
        }


def name_of(rule: AdaptationConfig) -> str:
    """A rule, for people."""
    return rule.kind if rule.kind == "full" else f"{rule.kind} of {rule.num_fast_weights:,}"


def show(results: Results) -> None:
    """Tables on standard output."""
    _show_bits(results)
    if results.reference is not None and results.outcomes:
        typer.echo()
        _show_shares(results, results.reference)
    for rule, mixtures in results.mixtures.items():
        typer.echo()
        _show_mixtures(results, rule, mixtures)
    for outcome in results.outcomes:
        guarded = {name: count for name, count in outcome.guards.items() if count}
        if guarded:
            told = ", ".join(f"{name} {count}" for name, count in guarded.items())
            typer.echo(f"{_label(outcome)}: steps skipped, cut back or restarted: {told}")


def save_plot(results: Results, path: Path) -> None:
    """Write the plot. Raises typer.BadParameter when it cannot be written."""
    drawn = _plot(results)
    try:
        if path.suffix == ".svg":
            replace_text(path, svg(drawn))
        else:
            path.write_bytes(png(drawn))
    except OSError as error:
        raise typer.BadParameter(
            f"{path}: cannot be written ({error.strerror})", param_hint="--plot"
        ) from error


def _label(outcome: Outcome) -> str:
    count = outcome.method.experts
    return f"{name_of(outcome.method.rule)}, {count} expert{'s' if count > 1 else ''}"


def _show_bits(results: Results) -> None:
    rows = [("static", *map(_figure, results.static.values()))]
    if results.reference is not None:
        rows += [
            (f"full, rate x {scale:.3g}", *(_figure(bits[name]) for name in results.static))
            for scale, bits in results.reference.bits.items()
        ]
    rows += [(_label(outcome), *map(_figure, outcome.bits.values())) for outcome in results.outcomes]
    show_table(("bits per byte", *results.static), rows)


def _show_shares(results: Results, reference: Reference) -> None:
    rows = []
    for outcome in results.outcomes:
        own = [*results.shares(outcome).values(), results.over_streams(outcome), results.over_all(outcome)]
        bytes_of = f"1/{reference.bytes / outcome.bytes:.1f}"
        rows.append((_label(outcome), f"{outcome.bytes:,}", bytes_of, *map(_percent, own)))
    show_table(("share of full's gain", "bytes", "of full", *results.static, "streams", "all"), rows)


def _show_mixtures(results: Results, rule: AdaptationConfig, mixtures: Sequence[Mixed]) -> None:
    rows = [
        (
            each.text,
            _figure(each.mixture),
            _figure(each.best),
            "" if each.best_scale is None else f"{each.best_scale:.3g}",
            f"{100 * each.excess:+.2f} %" if math.isfinite(each.excess) else "not finite",
            "better" if each.excess < 0 else "close" if each.excess <= CLOSE else "worse",
        )
        for each in mixtures
    ]
    show_table((name_of(rule), "mixture of 4", "best single", "its rate x", "difference", ""), rows)
    better, count = results.better_streams(mixtures), len(results.streams)
    typer.echo(f"better than the best single rate in hindsight on {better} of {count} streams")


def _plot(results: Results) -> Plot:
    lines: dict[str, list[tuple[float, float]]] = {}
    for outcome in sorted(results.outcomes, key=lambda outcome: outcome.bytes):
        share = results.over_all(outcome)
        if share is not None:
            kind, count = outcome.method.rule.kind, outcome.method.experts
            label = f"{kind}, {count} expert{'s' if count > 1 else ''}"
            lines.setdefault(label, []).append((outcome.bytes, 100 * share))
    drawn = [
        Line(label=label, points=points, color=place, marked=True)
        for place, (label, points) in enumerate(lines.items())
    ]
    if results.reference is not None:
        whole = Line(label="full, best rate in hindsight", points=[(results.reference.bytes, 100.0)], color=7)
        drawn.append(whole)
    return Plot(
        name="adapt",
        title=f"{results.model}: what learning saves",
        x="bytes of a session's fast weights",
        y="% of what full fast weights save",
        lines=drawn,
        log_x=True,
    )


def _figure(bits: float) -> str:
    return f"{bits:.4f}" if math.isfinite(bits) else "not finite"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"
