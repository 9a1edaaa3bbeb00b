"""Tables of trials and of results, for people."""

from collections.abc import Mapping, Sequence

import typer

from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.vocab import VocabKind
from rlstm_training.commands.console import show_table
from rlstm_training.evaluation.calibrate import Trials
from rlstm_training.evaluation.evaluation import PUBLISHED, Evaluation, total


def show_trials(config: AdaptationConfig, trials: Trials, experts: int) -> None:
    """The table of a search; says so when the best rate is the least or greatest of those tried."""
    mixed = f", {experts} experts" if experts > 1 else ""
    typer.echo(f"{config.kind}, {config.num_fast_weights:,} fast weights{mixed}")
    static, winner = trials.static, trials.best
    rows = [("static", "", "", "", *_trial_figures(trials, static))]
    for trial in trials.tried:
        setting, mark = trial.setting, " *" if trial is winner else ""
        chosen = (str(setting.segment), f"{setting.rate:g}", f"{setting.decay:g}", f"{setting.epsilon:g}")
        *figures, regret = _trial_figures(trials, trial.bits_per_byte)
        rows.append((*chosen, *figures, regret + mark))
    show_table(("segment", "rate", "decay", "epsilon", *static, "mean", "regret"), rows)
    rates = {trial.setting.rate for trial in trials.tried}
    if len(rates) > 1 and winner.setting.rate in (min(rates), max(rates)):
        typer.echo("The best rate is at the edge of those tried: try others with --rate.")


def _trial_figures(trials: Trials, bits_per_byte: Mapping[str, float]) -> list[str]:
    """Of each text, their mean, and the part of the possible gain that is missed."""
    bits = [bits_per_byte[name] for name in trials.static]
    return [f"{value:.4f}" for value in (*bits, sum(bits) / len(bits), trials.regret(bits_per_byte))]


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
