"""``rlstm evaluate``: score texts exactly, as published numbers are."""

from collections.abc import Sequence
from typing import get_args

import click

from rlstm_model.checkpoint import load
from rlstm_training.commands import console
from rlstm_training.corpora import Split


@console.command()
@console.model()
@click.argument("files", nargs=-1, help="Text files; - is standard input.")
@console.corpora
@click.option(
    "--split", type=click.Choice(get_args(Split)), multiple=True, default=["test"], help="Of the corpora."
)
@console.streams
@click.option("--prefix", type=click.IntRange(1), help="Only the first bytes of each text or segment.")
@click.option("--encoding", help="Of the files; else a mark tells, or it is UTF-8.")
@click.option(
    "--temperature", default="1", help="Multiplies the logits; 'search' chooses it on validation text."
)
@click.option("--dynamic", is_flag=True, help="Learn while reading, as a session.")
@click.option("--rate-scale", type=click.FloatRange(0), default=1.0, help="Multiplies the calibrated rate.")
@click.option("--search", is_flag=True, help="Learn as is best on validation text, not as calibrated.")
@click.option(
    "--search-tokens", type=click.IntRange(1), default=10_000, help="Of validation text, for --search."
)
@console.rates
@console.decays
@console.epsilons
@console.segment_lengths
@click.option("--rule", metavar="KIND[:SIZE]", help="A rule of the checkpoint, for --dynamic (its default).")
@console.experts(default=1)
@console.recipe_name
@click.option("--trained-on", help="Instead of the recipe's: the corpus whose training text is read.")
@console.heads(default=16)
@console.head_segments(default=60)
@click.option("--keep", is_flag=True, help="Keep what --search finds as calibration.")
@click.option("--monte-carlo", type=click.IntRange(0), default=0, help="Dropout samples; 0 drops nothing.")
@click.option("--dropout", help="As input=.2,cell=.1,state=.1,output=.2 (default: the recipe's).")
@click.option(
    "--dropout-scale", type=click.FloatRange(0), default=0.8, help="Multiplies the rates of dropout."
)
@click.option("--geometric", is_flag=True, help="Mean of logits, not probabilities.")
@click.option("--seed", default=1, help="Of the dropout samples.")
@click.option("--save", is_flag=True, help="Write evaluation.json and the model card.")
@console.threads()
@console.device()
@console.as_json
def evaluate(
    model: str,
    files: Sequence[str],
    corpus: Sequence[str],
    split: Sequence[Split],
    stream: Sequence[str],
    prefix: int | None,
    encoding: str | None,
    temperature: str,
    dynamic: bool,
    rate_scale: float,
    search: bool,
    search_tokens: int,
    rate: Sequence[float],
    decay: Sequence[float],
    epsilon: Sequence[float],
    segment: Sequence[int],
    rule: str | None,
    experts: int,
    recipe: str | None,
    trained_on: str | None,
    heads: int,
    segments: int,
    keep: bool,
    monte_carlo: int,
    dropout: str | None,
    dropout_scale: float,
    geometric: bool,
    seed: int,
    save: bool,
    threads: int | None,
    device: str,
    as_json: bool,
) -> None:
    """Score texts exactly, token after token: static, and with --dynamic or --search learning.

    All that is searched for is chosen on the validation text of the corpora named, or of the recipe.
    """
    from rlstm_training.commands import evaluating  # torch, which no help text needs
    from rlstm_training.commands.given import prepare_device

    if keep and not search:
        raise click.BadParameter("there is nothing to keep without --search", param_hint="--keep")
    origin = evaluating.Origin(load(model), prepare_device(device, threads), recipe, trained_on, corpus)
    checkpoint = origin.checkpoint
    texts = evaluating.texts_given(checkpoint.vocab, files, corpus, split, stream, prefix, encoding)
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
