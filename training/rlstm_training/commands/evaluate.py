"""``rlstm evaluate``: score texts exactly, as published numbers are."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.checkpoint import Checkpoint, load
from rlstm_training.cards import evaluation_section, rewrite_section
from rlstm_training.commands.choosing import (
    Choice,
    Decays,
    Epsilons,
    Experts,
    Heads,
    HeadSegments,
    Rates,
    RecipeName,
    Segments,
    Values,
    calibrated_of,
    keep_choices,
    rule_named,
)
from rlstm_training.commands.console import (
    AsJson,
    Device,
    Model,
    Threads,
    command,
    prepare_device,
    progress_bar,
    show_json,
)
from rlstm_training.commands.given import Corpora, Files, Prefix, SplitName, Splits, Streams, texts_given
from rlstm_training.commands.origin import Origin
from rlstm_training.commands.tables import show_results, show_temperatures, show_trials
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.calibrate import Grid
from rlstm_training.evaluation.evaluation import Evaluation, total
from rlstm_training.evaluation.measurements import Statistics
from rlstm_training.evaluation.monte_carlo import MonteCarlo
from rlstm_training.evaluation.procedure import Procedure
from rlstm_training.evaluation.results import record, save_results

Temperature = Annotated[
    str, typer.Option(help="Multiplies the logits; 'search' chooses it on validation text.")
]
Dynamic = Annotated[bool, typer.Option("--dynamic", help="Learn while reading, as a session.")]
Rule = Annotated[
    str | None,
    typer.Option(metavar="KIND[:COORDINATES]", help="A rule of the checkpoint, for --dynamic (its default)."),
]
RateScale = Annotated[float, typer.Option(min=0, help="Multiplies the calibrated rate.")]
Search = Annotated[
    bool, typer.Option("--search", help="Learn as is best on validation text, not as calibrated.")
]
SearchTokens = Annotated[int, typer.Option(min=1, help="Of validation text, for --search.")]
TrainedOn = Annotated[
    str | None, typer.Option(help="Instead of the recipe's: the corpus whose training text is read.")
]
Keep = Annotated[bool, typer.Option("--keep", help="Keep what --search finds as the calibration.")]
Samples = Annotated[int, typer.Option("--monte-carlo", min=0, help="Dropout samples; 0 drops nothing.")]
Dropout = Annotated[
    str | None, typer.Option(help="As input=.2,cell=.1,state=.1,output=.2 (default: the recipe's).")
]
DropoutScale = Annotated[float, typer.Option(min=0, help="Multiplies the rates of dropout.")]
Geometric = Annotated[bool, typer.Option("--geometric", help="Mean of logits, not probabilities.")]
Seed = Annotated[int, typer.Option(help="Of the dropout samples.")]
Save = Annotated[bool, typer.Option("--save", help="Write evaluation.json and the model card.")]

Texts = Sequence[tuple[str, list[Passage]]]
Results = Sequence[tuple[str, list[Evaluation]]]


@command
def evaluate(
    model: Model,
    files: Files = None,
    corpus: Corpora = None,
    split: Splits = None,
    stream: Streams = None,
    prefix: Prefix = None,
    temperature: Temperature = "1",
    dynamic: Dynamic = False,
    rate_scale: RateScale = 1.0,
    search: Search = False,
    search_tokens: SearchTokens = 10_000,
    rate: Rates = None,
    decay: Decays = None,
    epsilon: Epsilons = None,
    segment: Segments = None,
    rule: Rule = None,
    experts: Experts = 1,
    recipe: RecipeName = None,
    trained_on: TrainedOn = None,
    heads: Heads = 16,
    segments: HeadSegments = 60,
    keep: Keep = False,
    monte_carlo: Samples = 0,
    dropout: Dropout = None,
    dropout_scale: DropoutScale = 0.8,
    geometric: Geometric = False,
    seed: Seed = 1,
    save: Save = False,
    threads: Threads = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Score texts exactly, token after token: static, and with --dynamic or --search learning.

    All that is searched for is chosen on the validation text of the corpora named, or of the recipe.
    """
    if keep and not search:
        raise typer.BadParameter("there is nothing to keep without --search", param_hint="--keep")
    checkpoint = load(model, prepare_device(device, threads))
    splits = split or [SplitName.TEST]
    texts = texts_given(checkpoint.vocab, files or (), corpus or (), splits, stream or (), prefix)
    origin = Origin(checkpoint, recipe, trained_on, corpus or ())
    tried = origin.temperatures() if temperature == "search" else []
    chosen = min(tried, key=lambda pair: pair[1])[0] if tried else _temperature(temperature)
    choice = None
    if search:
        values = Values(rates=rate, decays=decay, epsilons=epsilon, segments=segment)
        grid = values.grid(Grid.usual(checkpoint.vocab.kind))
        statistics = Statistics(heads=heads, segments=segments)
        choice = origin.rule(grid, statistics, search_tokens, experts=experts, temperature=chosen)
    calibration = choice.calibration if choice else _calibration(checkpoint, rule) if dynamic else None
    sampling = origin.monte_carlo(monte_carlo, dropout, dropout_scale, geometric, seed)
    procedure = _procedure(checkpoint, chosen, calibration, experts, rate_scale, sampling)
    results = _read(texts, procedure)
    if keep and choice:
        keep_choices(checkpoint, [choice])
    if save:
        _save(checkpoint, results, procedure, prefix)
    if as_json:
        show_json(_report(checkpoint, results, procedure, prefix, tried, choice))
    else:
        _show(checkpoint, results, tried, choice)


def _procedure(
    checkpoint: Checkpoint,
    temperature: float,
    calibration: Calibration | None,
    experts: int,
    rate_scale: float,
    sampling: MonteCarlo | None,
) -> Procedure:
    try:
        return Procedure(
            model=checkpoint.model,
            bos_id=checkpoint.vocab.bos_id,
            temperature=temperature,
            calibration=calibration,
            experts=experts,
            rate_scale=rate_scale,
            monte_carlo=sampling,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _calibration(checkpoint: Checkpoint, rule: str | None) -> Calibration:
    calibrated = calibrated_of(checkpoint)
    chosen = calibrated.default if rule is None else rule_named(calibrated, rule)
    return calibrated.choose(chosen.kind, chosen.num_fast_weights)


def _temperature(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number, nor 'search'", param_hint="--temperature") from None


def _read(texts: Texts, procedure: Procedure) -> Results:
    results = []
    for name, passages in texts:
        tokens = sum(len(part.ids) for part in passages) * procedure.readings
        with progress_bar(name, tokens) as advance:
            results.append((name, procedure.read(passages, advance)))
    return results


def _save(
    checkpoint: Checkpoint,
    results: Results,
    procedure: Procedure,
    prefix: int | None,
) -> None:
    settings, kind = procedure.settings(prefix), checkpoint.vocab.kind
    kept = save_results(checkpoint, [record(total(name, parts), settings, kind) for name, parts in results])
    rewrite_section(checkpoint, "Evaluation", evaluation_section(kept))


def _report(
    checkpoint: Checkpoint,
    results: Results,
    procedure: Procedure,
    prefix: int | None,
    temperatures: Sequence[tuple[float, float]],
    choice: Choice | None,
) -> dict[str, Any]:
    settings, kind = procedure.settings(prefix), checkpoint.vocab.kind
    texts = [
        {**record(total(name, parts), settings, kind), "segments": [part.to_json() for part in parts]}
        for name, parts in results
    ]
    return {
        "model": checkpoint.name,
        "fingerprint": checkpoint.fingerprint,
        "temperatures": [{"temperature": t, "nats_per_token": loss} for t, loss in temperatures],
        "search": None if choice is None else choice.to_json(),
        "texts": texts,
    }


def _show(
    checkpoint: Checkpoint,
    results: Results,
    temperatures: Sequence[tuple[float, float]],
    choice: Choice | None,
) -> None:
    if temperatures:
        show_temperatures(temperatures)
    if choice:
        show_trials(choice.config, choice.trials, choice.experts)
    show_results(results, checkpoint.vocab.kind)
