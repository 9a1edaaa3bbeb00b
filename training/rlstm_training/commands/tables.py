"""Tables of trials and of results, for people."""

from collections.abc import Mapping, Sequence

import typer

from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.vocab import VocabKind
from rlstm_training.commands.console import show_table
from rlstm_training.evaluation.calibrate import Trial, best
from rlstm_training.evaluation.evaluation import PUBLISHED, Evaluation, total


def show_trials(config: AdaptationConfig, trials: Sequence[Trial], static: Mapping[str, float]) -> None:
    """The table of a search; says so when the best rate is the least or greatest of those tried."""
    typer.echo(f"{config.kind}, {config.coordinates:,} fast weights")
    winner = best(trials)
    mean = sum(static.values()) / len(static)
    rows = [("static", "", "", "", *(f"{bits:.4f}" for bits in static.values()), f"{mean:.4f}")]
    for trial in trials:
        setting, mark = trial.setting, " *" if trial is winner else ""
        figures = (f"{setting.rate:g}", f"{setting.decay:g}", f"{setting.epsilon:g}")
        bits = [f"{trial.bits_per_byte[name]:.4f}" for name in static]
        rows.append((str(setting.segment), *figures, *bits, f"{trial.mean:.4f}{mark}"))
    show_table(("segment", "rate", "decay", "epsilon", *static, "mean"), rows)
    rates = {trial.setting.rate for trial in trials}
    if len(rates) > 1 and winner.setting.rate in (min(rates), max(rates)):
        typer.echo("The best rate is at the edge of those tried: try others with --rate.")


def show_temperatures(tried: Sequence[tuple[float, float]]) -> None:
    """The table of a temperature search."""
    chosen = min(tried, key=lambda pair: pair[1])
    rows = [(f"{t:g}", f"{loss:.4f}{' *' if (t, loss) == chosen else ''}") for t, loss in tried]
    show_table(("temperature", "nats a token"), rows)


def show_results(results: Sequence[tuple[str, list[Evaluation]]], kind: VocabKind) -> None:
    """A row a text, and one for each of its parts where it has several."""
    rows = []
    for name, parts in results:
        if len(parts) > 1:
            rows += [_row(part, kind) for part in parts]
        rows.append(_row(total(name, parts), kind))
    show_table(("text", "tokens", "unknown", "perplexity", "static", "adapted", "gain"), rows)
    columns = "static and adapted" if kind == "words" else "static, adapted and gain"
    typer.echo(f"{columns} in {PUBLISHED[kind]}; perplexity per token")


def _row(result: Evaluation, kind: VocabKind) -> tuple[str, ...]:
    static, adapted = result.static_nats, result.adapted_nats
    reference = static if adapted is None else adapted
    return (
        result.text,
        f"{result.tokens:,}",
        f"{result.unknown:,}",
        "" if reference is None else f"{result.perplexity(reference):.3f}",
        "" if static is None else _figure(result, kind, static),
        "" if adapted is None else _figure(result, kind, adapted),
        "" if static is None or adapted is None else _gain(result, kind, static, adapted),
    )


def _figure(result: Evaluation, kind: VocabKind, nats: float) -> str:
    return f"{result.published(kind, nats):.{2 if kind == 'words' else 4}f}"


def _gain(result: Evaluation, kind: VocabKind, static: float, adapted: float) -> str:
    before, after = result.published(kind, static), result.published(kind, adapted)
    return f"{100 * (1 - after / before):+.2f} %" if kind == "words" else f"{before - after:+.4f}"
