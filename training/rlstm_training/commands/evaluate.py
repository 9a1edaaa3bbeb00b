"""``rlstm evaluate``: score texts exactly, as published numbers are."""

from typing import Annotated

import typer

from rlstm_model.checkpoint import load
from rlstm_training.commands.console import (
    AsJson,
    Decays,
    Device,
    Epsilons,
    Experts,
    Heads,
    HeadSegments,
    Model,
    Rates,
    RecipeName,
    Segments,
    SplitName,
    Threads,
    command,
)

Corpora = Annotated[list[str] | None, typer.Option("--corpus", help="A corpus by name, or a folder.")]
Streams = Annotated[list[str] | None, typer.Option("--stream", help="A stream, read in one session.")]

_Files = Annotated[list[str] | None, typer.Argument(help="Text files; - is standard input.")]
_Split = Annotated[list[SplitName] | None, typer.Option(help="Of the corpora (default: test).")]
_Prefix = Annotated[int | None, typer.Option(min=1, help="Only the first bytes of each text or segment.")]
_Encoding = Annotated[str | None, typer.Option(help="Of the files; else a mark tells, or it is UTF-8.")]
_Temperature = Annotated[
    str, typer.Option(help="Multiplies the logits; 'search' chooses it on validation text.")
]
_Dynamic = Annotated[bool, typer.Option("--dynamic", help="Learn while reading, as a session.")]
_RateScale = Annotated[float, typer.Option(min=0, help="Multiplies the calibrated rate.")]
_Search = Annotated[
    bool, typer.Option("--search", help="Learn as is best on validation text, not as calibrated.")
]
_SearchTokens = Annotated[int, typer.Option(min=1, help="Of validation text, for --search.")]
_Rule = Annotated[
    str | None,
    typer.Option(metavar="KIND[:SIZE]", help="A rule of the checkpoint, for --dynamic (its default)."),
]
_TrainedOn = Annotated[
    str | None, typer.Option(help="Instead of the recipe's: the corpus whose training text is read.")
]
_Keep = Annotated[bool, typer.Option("--keep", help="Keep what --search finds as calibration.")]
_MonteCarlo = Annotated[int, typer.Option(min=0, help="Dropout samples; 0 drops nothing.")]
_Dropout = Annotated[
    str | None, typer.Option(help="As input=.2,cell=.1,state=.1,output=.2 (default: the recipe's).")
]
_DropoutScale = Annotated[float, typer.Option(min=0, help="Multiplies the rates of dropout.")]
_Geometric = Annotated[bool, typer.Option("--geometric", help="Mean of logits, not probabilities.")]
_Seed = Annotated[int, typer.Option(help="Of the dropout samples.")]
_Save = Annotated[bool, typer.Option("--save", help="Write evaluation.json and the model card.")]


@command
def evaluate(
    model: Model,
    files: _Files = None,
    corpus: Corpora = None,
    split: _Split = None,
    stream: Streams = None,
    prefix: _Prefix = None,
    encoding: _Encoding = None,
    temperature: _Temperature = "1",
    dynamic: _Dynamic = False,
    rate_scale: _RateScale = 1.0,
    search: _Search = False,
    search_tokens: _SearchTokens = 10_000,
    rate: Rates = None,
    decay: Decays = None,
    epsilon: Epsilons = None,
    segment: Segments = None,
    rule: _Rule = None,
    experts: Experts = 1,
    recipe: RecipeName = None,
    trained_on: _TrainedOn = None,
    heads: Heads = 16,
    segments: HeadSegments = 60,
    keep: _Keep = False,
    monte_carlo: _MonteCarlo = 0,
    dropout: _Dropout = None,
    dropout_scale: _DropoutScale = 0.8,
    geometric: _Geometric = False,
    seed: _Seed = 1,
    save: _Save = False,
    threads: Threads = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Score texts exactly, token after token: static, and with --dynamic or --search learning.

    All that is searched for is chosen on the validation text of the corpora named, or of the recipe.
    """
    from rlstm_training.commands import evaluating  # torch, which no help text needs
    from rlstm_training.commands.given import prepare_device

    if keep and not search:
        raise typer.BadParameter("there is nothing to keep without --search", param_hint="--keep")
    origin = evaluating.Origin(
        load(model), prepare_device(device, threads), recipe, trained_on, tuple(corpus or ())
    )
    checkpoint = origin.checkpoint
    texts = evaluating.texts_given(
        checkpoint.vocab, files or (), corpus or (), split or [SplitName.TEST], stream or (), prefix, encoding
    )
    tried = origin.temperatures() if temperature == "search" else []
    chosen = min(tried, key=lambda pair: pair[1])[0] if tried else evaluating.temperature_of(temperature)
    values = {"rates": rate, "decays": decay, "epsilons": epsilon, "segments": segment}
    choice = origin.rule(values, heads, segments, search_tokens, experts, chosen) if search else None
    calibration = choice.calibration if choice else origin.calibration(rule) if dynamic else None
    sampling = origin.monte_carlo(monte_carlo, dropout, dropout_scale, geometric, seed)
    settings = {"temperature": chosen, "experts": experts, "rate_scale": rate_scale}
    procedure = origin.procedure(calibration, sampling, settings)
    read = evaluating.read(texts, procedure)
    evaluating.tell(checkpoint, read, procedure.settings(prefix), tried, choice, keep, save, as_json)
