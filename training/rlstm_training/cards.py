"""Model cards: what a checkpoint is, what it was trained on, and what it reaches."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlstm_training.calibrate import Trial
from rlstm_training.config import Recipe
from rlstm_training.corpora import locate


def model_card(recipe: Recipe, *, steps: int, valid: Mapping[str, float], folder: Path | None = None) -> str:
    """The card of a model trained by ``recipe``, in the form that model hubs read (YAML, then Markdown).

    ``valid`` holds bits per token by text, read in stripes. Raises CorpusError for a corpus that is gone.
    """
    model, corpora = recipe.model, list(dict.fromkeys(source.corpus for source in recipe.sources))
    datasets = "".join(f"- {Path(corpus).name}\n" for corpus in corpora)
    data = "".join(_data_row(recipe, corpus, folder) for corpus in corpora)
    results = "".join(f"| {_short(name)} | {bits:.3f} |\n" for name, bits in valid.items())
    mogrifier = f"{model.mogrifier_rounds} mogrifier rounds of rank {model.mogrifier_rank or 'full'}"
    return f"""---
library_name: mogrifier-rlstm
pipeline_tag: text-generation
tags:
- rlstm
- language-model
datasets:
{datasets}---

# {recipe.name}

A recurrent language model over {recipe.vocab}: {model.num_parameters:,} weights, {model.num_layers}
{model.cell.upper()} layers of {model.hidden_size} units, {mogrifier}.

## Training

Recipe `{recipe.name}`: {steps:,} steps of {recipe.tokens_per_step:,} tokens ({recipe.rows} rows, window
{recipe.window}), learning rate {recipe.learning_rate:g} ({recipe.decay}), seed {recipe.seed}.

| text | rows by form | licence |
| --- | --- | --- |
{data}
## Results

Bits per token of the beginning of each validation text, read in stripes:

| text | bits |
| --- | --- |
{results}"""


def with_section(card: str, title: str, body: str) -> str:
    """The card with the section ``title`` replaced, or added at the end."""
    section = f"## {title}\n\n{body.strip()}\n"
    pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if pattern.search(card):
        return pattern.sub(lambda match: section + ("\n" if match.end() < len(card) else ""), card, count=1)
    return f"{card.rstrip()}\n\n{section}" if card.strip() else section


def calibration_section(trials: Sequence[Trial], chosen: Trial, static: Mapping[str, float]) -> str:
    """The table of a calibration's search: bits per byte of each held-out text, one session each."""
    names = list(static)
    rows = [("static", "", static, _mean(static))]
    rows += [(f"{t.rate:g}", f"{t.decay:g}", t.bits_per_byte, t.mean) for t in trials]
    lines = [
        f"Rate {chosen.rate:g}, decay {chosen.decay:g}: the best mean over held-out texts, one session each,",
        "in bits per byte.",
        "",
        f"| rate | decay | {' | '.join(names)} | mean |",
        f"| --- | --- | {' | '.join('---' for _ in names)} | --- |",
    ]
    for rate, decay, bits, mean in rows:
        lines.append(
            f"| {rate} | {decay} | {' | '.join(f'{bits[name]:.4f}' for name in names)} | {mean:.4f} |"
        )
    return "\n".join(lines)


def _mean(values: Mapping[str, float]) -> float:
    return sum(values.values()) / len(values)


def _data_row(recipe: Recipe, corpus: str, folder: Path | None) -> str:
    forms = [f"{source.rows} {source.form}" for source in recipe.sources if source.corpus == corpus]
    licence = locate(corpus, "train", folder=folder).licence
    return f"| {Path(corpus).name} | {', '.join(forms)} | {licence} |\n"


def _short(label: str) -> str:
    corpus, _, form = label.rpartition("/")
    return f"{Path(corpus).name}/{form}"
