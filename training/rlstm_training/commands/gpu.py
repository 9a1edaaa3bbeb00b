"""``rlstm bench gpu``: minutes on one GPU, in which an RLSTM and cuDNN's LSTM learn the same text."""

from dataclasses import asdict
from typing import Annotated, Any

import torch
import typer

from rlstm_training.bench.showcase import Deadline, Material, Reached, compare, recipe_for_minutes
from rlstm_training.commands.console import (
    AsJson,
    Device,
    OwnCorpus,
    Threads,
    command,
    prepare_device,
    recipe_named,
    show_json,
    show_table,
)
from rlstm_training.config import Recipe
from rlstm_training.corpora import in_form, load_corpus
from rlstm_training.corpora.texts import passage, prepare
from rlstm_training.evaluation.validation import validation_passages
from rlstm_training.run import Diverged

SEARCH_TOKENS = 1_000

Minutes = Annotated[float, typer.Option(min=0.01, help="For everything, from reading the corpus on.")]
DropoutScale = Annotated[
    float, typer.Option(min=0, help="Multiplies the recipe's dropout, which is made for days.")
]


@command
def bench_gpu(
    recipe: Annotated[str, typer.Option(help="The RLSTM to train.")] = "wikitext-2-35m-rlstm",
    corpus: OwnCorpus = None,
    minutes: Minutes = 8.5,
    dropout_scale: DropoutScale = 0.5,
    threads: Threads = None,
    device: Device = "cuda",
    as_json: AsJson = False,
) -> None:
    """Train a recipe as far as it gets, beside torch.nn.LSTM of equal size, and evaluate both.

    Perplexities of test text, static and learning, and tokens a second of training.
    """
    deadline = Deadline(60 * minutes)
    target = prepare_device(device, threads)
    if target.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        chosen = recipe_for_minutes(recipe_named(recipe, corpus), target, dropout_scale)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--dropout-scale") from error
    material = _material(chosen)
    try:
        reached = compare(chosen, material, target, deadline, lambda line: typer.echo(line, err=True))
    except FloatingPointError as error:
        raise Diverged(f"training diverged: {error}") from error
    if as_json:
        show_json(_report(chosen, target, minutes, reached))
    else:
        _show(reached)


def _material(recipe: Recipe) -> Material:
    """The recipe's texts, and validation and test text of its first source."""
    texts, vocab = prepare(recipe)
    source = recipe.sources[0]
    (valid,) = validation_passages(vocab, [source.corpus], SEARCH_TOKENS)
    test = passage(vocab, in_form(load_corpus(source.corpus, "test"), source.form), f"{source.corpus} test")
    return Material(texts=texts, bos_id=vocab.bos_id, valid=valid, test=test)


def _report(recipe: Recipe, device: torch.device, minutes: float, reached: list[Reached]) -> dict[str, Any]:
    on_gpu = device.type == "cuda"
    return {
        "recipe": recipe.to_json(),
        "minutes": minutes,
        "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "torch": torch.__version__,
        "models": [asdict(model) for model in reached],
    }


def _show(reached: list[Reached]) -> None:
    figures = [
        ("weights", "{:,}", "weights"),
        ("steps", "{:,}", "steps"),
        ("tokens/s in training", "{:,.0f}", "tokens_per_second"),
        ("iterates averaged", "{:,}", "averaged"),
        ("validation perplexity", "{:.1f}", "valid_perplexity"),
        ("test perplexity", "{:.1f}", "test_perplexity"),
        ("test tokens read one by one", "{:,}", "read_tokens"),
        ("  static perplexity", "{:.1f}", "static_perplexity"),
        ("  dynamic perplexity", "{:.1f}", "adapted_perplexity"),
    ]
    rows = [(label, *(form.format(getattr(each, name)) for each in reached)) for label, form, name in figures]
    show_table(("", *(each.model for each in reached)), rows)
