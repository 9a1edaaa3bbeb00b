"""Model cards: what a checkpoint is, was trained on, and reaches; and how a run becomes a checkpoint."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from rlstm_model.checkpoint import CARD, CARD_FIELDS, Checkpoint, CheckpointError, StoredDtype, save
from rlstm_model.files import replace_file
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.vocab import Vocab
from rlstm_training.config import Recipe
from rlstm_training.corpora.published import PUBLISHED
from rlstm_training.corpora.reading import locate
from rlstm_training.evaluation.search import Trials
from rlstm_training.run import RunDirectory, RunError

_SHARE_ALIKE: Final = "CC-BY-SA-3.0"
_ENGLISH: Final = {
    *(*PUBLISHED, "dickens", "enwiki6", "enwiki6-text8", "novels", "tinyshakespeare"),
    *("novels-plain", "novels-wrapped", "dickens-crlf", "wiki-plain", "wiki-markup", "wikitext-tokens"),
}


def export(run: RunDirectory, folder: Path, vocab: Vocab, *, dtype: StoredDtype = "F32") -> LanguageModel:
    """Write the model of the run's best evaluation to ``folder``, with its card; returns it.

    These are the weights that were reported there: raw, or their average. A run that has not evaluated yet
    gives its newest weights. The run may be going on in another process. Raises RunError without a
    checkpoint, CheckpointError when ``folder`` cannot be written.
    """
    saved = run.best()
    if saved is None:
        raise RunError(f"{run.folder}: has no checkpoint yet")
    recipe = run.recipe()
    model = LanguageModel(recipe.model)
    prefix = "average.long." if saved.header["reported"]["weights"] == "long" else "model."
    weights = {n.removeprefix(prefix): t for n, t in saved.tensors.items() if n.startswith(prefix)}
    model.load_state_dict(weights)
    valid = [each["valid"] for each in run.metrics() if "valid" in each and each["step"] <= saved.step]
    new_texts = saved.header.get("new_texts", ())
    card = model_card(recipe, steps=saved.step, valid=valid[-1] if valid else {}, new_texts=new_texts)
    save(folder, model.parameter_arrays, vocab, dtype=dtype, card=card)
    return model


def model_card(
    recipe: Recipe,
    *,
    steps: int,
    valid: Mapping[str, float],
    new_texts: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The card of a model trained by ``recipe``, in the form that model hubs read (YAML, then Markdown).

    ``valid`` holds bits per token by text, read in stripes; ``new_texts`` says from which step on which texts
    were no longer what they had been. Raises CorpusError for a corpus that is gone.
    """
    licences = {corpus: locate(corpus, "train").licence for corpus in recipe.corpora}
    return _page(
        "card",
        recipe=recipe,
        steps=steps,
        valid=valid,
        new_texts=new_texts,
        licences=licences,
        licence=_licence(licences.values()),
        english=_ENGLISH.issuperset(licences),
        fields=CARD_FIELDS,
    )


def _page(name: str, **given: Any) -> str:
    """A template, filled in."""
    environment = Environment(
        loader=PackageLoader("rlstm_training"),
        autoescape=False,  # noqa: S701 -- it is Markdown
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"name": lambda corpus: Path(corpus).name, "short": _short}
    return environment.get_template(f"{name}.md.j2").render(given)


def _licence(licences: Iterable[str]) -> str:
    """The hubs' word for a licence that all texts allow: those in the public domain allow any."""
    bound = [licence for licence in licences if not licence.startswith("public domain")]
    share_alike = [licence.replace(" ", "-").upper().startswith(_SHARE_ALIKE) for licence in bound]
    return _SHARE_ALIKE.lower() if bound and all(share_alike) else "unknown"


def with_section(card: str, title: str, body: str) -> str:
    """The card with the section ``title`` replaced, or added at the end."""
    section = f"## {title}\n\n{body.strip()}\n"
    pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if pattern.search(card):
        return pattern.sub(lambda match: section + ("\n" if match.end() < len(card) else ""), card, count=1)
    return f"{card.rstrip()}\n\n{section}" if card.strip() else section


def without_sections(card: str, title: str) -> str:
    """The card without the sections whose titles begin with ``title``."""
    pattern = re.compile(rf"^## {re.escape(title)}.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    return pattern.sub("", card)


def rewrite_card(checkpoint: Checkpoint, change: Callable[[str], str]) -> None:
    """Change the card beside a checkpoint as it is now: what others wrote since it was loaded stays.

    Raises CheckpointError.
    """
    path = checkpoint.folder / CARD
    try:
        card = path.read_text("utf-8", errors="replace") if path.is_file() else ""
        replace_file(path, change(card))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written ({error})") from error


def calibration_section(trials: Trials, experts: int) -> str:
    """The table of a rule's search: bits per byte of each held-out text, in a session of so many experts."""
    return _page("calibration", best=trials.best.setting, experts=experts, table=trials.table())


def evaluation_section(results: Sequence[Mapping[str, Any]]) -> str:
    """The table of results kept beside a checkpoint, in the measure that is published for its tokens."""
    return _page("evaluation", rows=map(_result_row, results))


def _result_row(result: Mapping[str, Any]) -> tuple[str, ...]:
    settings, prefix = result["settings"], result["settings"]["prefix"]
    sampling = settings["monte_carlo"]
    return (
        Path(result["text"]).name + ("" if prefix is None else f", first {prefix:,} bytes of each"),
        f"{result['tokens']:,}",
        result["published"],
        _published(result, "static"),
        _published(result, "adapted"),
        f"{settings['temperature']:g}",
        "" if sampling is None else f"{sampling['samples']} ({sampling['averaging']})",
        "" if settings["adaptation"] is None else _rule(settings),
    )


def _published(result: Mapping[str, Any], weights: str) -> str:
    if result[weights] is None:
        return ""
    if result["published"] == "perplexity":
        return f"{result[weights]['perplexity']:.2f}"
    measure = "bits_per_token" if result["published"] == "bits per character" else "bits_per_byte"
    return f"{result[weights][measure]:.4f}"


def _rule(settings: Mapping[str, Any]) -> str:
    config, experts = settings["adaptation"], settings.get("experts", 1)
    size = f" of {config['num_fast_weights']:,}" if config["kind"] == "subspace" else ""
    return (
        f"{config['kind']}{size}, {f'{experts} experts, ' if experts > 1 else ''}segments of "
        f"{config['segment']}, rate {config['rate'] * settings['rate_scale']:g}, decay {config['decay']:g}, "
        f"epsilon {config['epsilon']:g}"
    )


def _short(label: str) -> str:
    corpus, _, form = label.rpartition("/")
    return f"{Path(corpus).name}/{form}"
