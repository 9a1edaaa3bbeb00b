"""Model cards: what hubs read and what made a model; and a run's best weights as a checkpoint."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import yaml

from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.checkpoint import CARD, load
from rlstm_model.network.dropout import DropoutRates
from rlstm_model.network.language_model import LanguageModel
from rlstm_training import cards
from rlstm_training.cards import (
    calibration_section,
    evaluation_section,
    export,
    model_card,
    rewrite_card,
    with_section,
    without_sections,
)
from rlstm_training.config import Averaging, Source
from rlstm_training.corpora.texts import prepare
from rlstm_training.evaluation.evaluation import Evaluation
from rlstm_training.evaluation.measurements import Setting
from rlstm_training.evaluation.monte_carlo import MonteCarlo
from rlstm_training.evaluation.procedure import Procedure, record
from rlstm_training.evaluation.search import Trial, Trials
from rlstm_training.loop import train
from rlstm_training.run import RunDirectory, RunError
from rlstm_training.trainer import Trainer


def front_matter(card):
    """The fields that hubs index."""
    return yaml.safe_load(card.split("---\n")[1])


def test_the_front_matter_is_what_hubs_read(corpora, toy_recipe):
    """The documented fields, each of its type; what is not known for sure is not claimed."""
    fields = front_matter(model_card(toy_recipe(), steps=1, valid={}))
    kinds = {name: type(value) for name, value in fields.items()}
    assert kinds == {
        "license": str,
        "library_name": str,
        "pipeline_tag": str,
        "tags": list,
        "datasets": list,
        "metrics": list,
    }
    assert fields["license"] == "unknown"
    hub = pytest.importorskip("huggingface_hub", reason="it comes with the extra harness")
    data = hub.ModelCard(model_card(toy_recipe(), steps=1, valid={})).data
    assert (data.library_name, data.pipeline_tag) == ("mogrifier-rlstm", "text-generation")


def test_the_shipped_card_is_what_hubs_read():
    """Its licence is that of its texts, and its language is named."""
    fields = front_matter(load("bytes-small").card)
    assert (fields["license"], fields["language"]) == ("cc-by-sa-3.0", "en")
    assert {"tags", "datasets", "metrics"} <= fields.keys()


@pytest.mark.parametrize(
    ("licences", "named"),
    [
        (["CC-BY-SA-3.0", "public domain"], "cc-by-sa-3.0"),
        (["CC BY-SA 3.0, the Wikipedia contributors"], "cc-by-sa-3.0"),
        (["CC-BY-SA-3.0", "the user's own text"], "unknown"),
        (["public domain"], "unknown"),
    ],
)
def test_a_licence_is_one_that_every_text_allows(licences, named, monkeypatch, toy_recipe):
    """Another, or none, is its owner's to choose."""
    found = dict(zip("abc", licences, strict=False))
    monkeypatch.setattr(cards, "locate", lambda name, split: SimpleNamespace(licence=found[name]))
    recipe = toy_recipe(sources=tuple(Source(corpus=name, rows=1) for name in found))
    assert front_matter(model_card(recipe, steps=1, valid={}))["license"] == named


def test_a_folder_of_any_name_leaves_the_front_matter_whole(tmp_path, own_folder, toy_recipe):
    """A colon, a quote or a line end in it is data."""
    odd = tmp_path / 'a: "b"\nlicense: mit'
    own_folder.rename(odd)
    card = model_card(toy_recipe(sources=(Source(corpus=str(odd), rows=1),)), steps=1, valid={})
    fields = front_matter(card)
    assert (fields["datasets"], fields["license"]) == ([odd.name], "unknown")


def test_the_card_names_what_made_the_model(corpora, toy_recipe):
    """Recipe, weights, every corpus with its forms and licence, and the results."""
    sources = (
        Source(corpus="three", rows=2),
        Source(corpus="three", rows=1, form="lf"),
        Source(corpus="one", rows=1),
    )
    recipe = toy_recipe(sources=sources)
    card = model_card(recipe, steps=40, valid={"three/lf": 2.3456})
    assert front_matter(card)["datasets"] == ["three", "one"]
    assert f"{recipe.model.num_parameters:,} weights" in card
    assert "Recipe `toy`: 40 steps of 32 tokens" in card
    assert "| three | 2 as_is, 1 lf | public domain |" in card
    assert "| three/lf | 2.346 |" in card


def test_an_own_folder_is_named_without_its_place(own_folder, toy_recipe):
    """A card goes to other people: no path of this machine."""
    recipe = toy_recipe(sources=(Source(corpus=str(own_folder), rows=4),))
    card = model_card(recipe, steps=1, valid={f"{own_folder}/as_is": 1.0})
    assert "| own | 4 as_is | the user's own text |" in card
    assert "| own/as_is | 1.000 |" in card
    assert str(own_folder.parent) not in card


def test_sections_are_added_and_replaced():
    """A section stands once, wherever it is, and the others stay."""
    card = with_section(with_section("# m\n\ntext\n", "One", "1"), "Two", "2")
    assert card == "# m\n\ntext\n\n## One\n\n1\n\n## Two\n\n2\n"
    assert with_section(card, "One", "new") == card.replace("\n1\n", "\nnew\n")
    assert with_section(card, "Two", "new") == card.replace("\n2\n", "\nnew\n")
    assert with_section("", "One", "1") == "## One\n\n1\n"


def test_the_calibration_table_has_a_row_a_trial():
    """Static first, then every trial with its mean and its regret; the chosen one is named."""
    tried = [
        Trial(setting=Setting(rate=r, segment=20), bits_per_byte={"a": b, "b": 3.0})
        for r, b in ((1e-4, 2.0), (3e-4, 1.0))
    ]
    section = calibration_section(Trials(static={"a": 3.0, "b": 3.5}, tried=tuple(tried)), 2)
    assert section.startswith("Rate 0.0003, decay 0, epsilon 0.1, segments of 20")
    assert "sessions of 2 experts, one a text" in section
    assert section[section.index("|") :].splitlines() == [
        "| segment | rate | decay | epsilon | a | b | mean | regret |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| static |  |  |  | 3.0000 | 3.5000 | 3.2500 | 1.0000 |",
        "| 20 | 0.0001 | 0 | 0.1 | 2.0000 | 3.0000 | 2.5000 | 0.2500 |",
        "| 20 | 0.0003 | 0 | 0.1 | 1.0000 | 3.0000 | 2.0000 | 0.0000 |",
    ]


def _config(**changes):
    values = {"kind": "full", "num_fast_weights": 7, "rule": "rms", "rate": 2e-4, "segment": 10}
    statistics = {"reduction": "mean", "statistics_batch": 1, "statistics_segments": 9}
    return AdaptationConfig(**{**values, **statistics, **changes})


def _result(kind, text, nats, adapted=None, **settings):
    evaluation = Evaluation(
        text=text, tokens=1000, bytes=2000, unknown=0, static_nats=nats, adapted_nats=adapted
    )
    prefix = settings.pop("prefix", None)
    return record(evaluation, Procedure(model=None, bos_id=0, **settings).settings(prefix), kind)


def test_the_results_table_has_the_published_measure(tmp_path):
    """Perplexity of words, bits of bytes and of characters, with the settings that gave them."""
    config = _config()
    sampling = MonteCarlo(samples=20, rates=DropoutRates(input=0.1))
    results = [
        _result(
            "words",
            "w test",
            1000 * math.log(90),
            1000 * math.log(60),
            temperature=0.96,
            calibration=SimpleNamespace(config=config),
        ),
        _result("bytes", "b", 2000 * math.log(2), prefix=5000, monte_carlo=sampling),
        _result("characters", f"{tmp_path}/own test", 1500 * math.log(2)),
    ]
    rule = "full, segments of 10, rate 0.0002, decay 0, epsilon 0.1"
    assert evaluation_section(results).splitlines()[-3:] == [
        f"| w test | 1,000 | perplexity | 90.00 | 60.00 | 0.96 |  | {rule} |",
        "| b, first 5,000 bytes of each | 1,000 | bits per byte | 1.0000 |  | 1 | 20 (arithmetic) |  |",
        "| own test | 1,000 | bits per character | 1.5000 |  | 1 |  |  |",
    ]


def test_sections_are_removed_by_how_their_titles_begin():
    """All of a kind go, whatever follows in their titles; the others stay as they are."""
    card = "# m\n\n## A: one\n\n1\n\n## B\n\n2\n\n## A: two\n\n3\n"
    assert without_sections(card, "A") == "# m\n\n## B\n\n2\n\n"
    assert without_sections(card, "C") == card


def test_a_card_is_rewritten_as_it_is_now(tmp_path):
    """What others wrote into it since it was loaded stays."""
    checkpoint = SimpleNamespace(folder=tmp_path, card="stale")
    for title, body in (("One", "1"), ("Two", "2"), ("One", "new")):
        rewrite_card(checkpoint, lambda card, title=title, body=body: with_section(card, title, body))
    assert (tmp_path / CARD).read_text() == "## One\n\nnew\n\n## Two\n\n2\n"


KEPT = {"F32": torch.float32, "F16": torch.float16}


@pytest.mark.parametrize("dtype", KEPT)
def test_the_exported_model_is_the_trained_one(corpora, toy_recipe, tmp_path, dtype):
    """The checkpoint holds the best weights, rounded to its precision, and its card their results."""
    recipe = toy_recipe(steps=4)
    texts, vocab = prepare(recipe)
    with RunDirectory.open(tmp_path / "run", recipe) as run:
        model = train(recipe, texts, run)
        export(run, tmp_path / "model", vocab, dtype=dtype)
        valid = run.metrics()[-1]["valid"]
    checkpoint = load(tmp_path / "model")
    assert checkpoint.vocab == vocab
    for name, weight in LanguageModel.of(checkpoint.parameters).state_dict().items():
        assert torch.equal(weight, model.state_dict()[name].to(KEPT[dtype]).float())
    assert "4 steps" in checkpoint.card
    assert f"| three/as_is | {valid['three/as_is']:.3f} |" in checkpoint.card


def test_a_run_without_checkpoint_cannot_be_exported(corpora, toy_recipe, tmp_path):
    """There is no model yet, and no folder is made."""
    with (
        RunDirectory.open(tmp_path / "run", toy_recipe()) as run,
        pytest.raises(RunError, match="has no checkpoint yet"),
    ):
        export(run, tmp_path / "model", prepare(toy_recipe())[1])
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("kind", ["tail", "two_tailed"])
def test_pitfall_30_the_averaged_weights_are_exported_where_they_are_the_best(
    corpora, toy_recipe, tmp_path, kind
):
    """The model is the mean of the last iterates before the best evaluation, kept one by one in another run.

    Sessions and dynamic evaluation begin with these weights, not with the raw ones.
    """
    recipe = toy_recipe(
        steps=32,
        evaluate_every=4,
        checkpoint_every=9,
        averaging=Averaging(kind=kind, latest=6),
        optimizer="adam",
        beta1=0.0,
        learning_rate=0.2,
        decay="constant",
    )
    texts, vocab = prepare(recipe)
    with RunDirectory.open(tmp_path / "run", recipe) as run:
        train(recipe, texts, run)
        found = min((one for one in run.metrics() if "valid" in one), key=lambda one: one["nats"]["reported"])
        exported = export(run, tmp_path / "model", vocab).state_dict()
    assert found["lengths"]["reported"] > 1
    trainer, iterates = Trainer(replace(recipe, averaging=Averaging()), texts), []
    while trainer.step < found["step"]:
        trainer.advance()
        iterates.append({name: weight.double() for name, weight in trainer.model.state_dict().items()})
    tail = iterates[-found["lengths"]["reported"] :]
    for name, weight in LanguageModel.of(load(tmp_path / "model").parameters).state_dict().items():
        assert torch.equal(weight, exported[name])
        mean = torch.stack([iterate[name] for iterate in tail]).mean(0)
        torch.testing.assert_close(weight.double(), mean, rtol=1e-4, atol=1e-6)
        assert (weight - iterates[-1][name]).abs().max() > 1e-3


def test_the_raw_weights_are_exported_where_they_are_the_best(corpora, toy_recipe, tmp_path):
    """In a run whose loss falls fast its average lags behind; the newest checkpoint is not the best one."""
    recipe = toy_recipe(
        steps=16, evaluate_every=8, averaging=Averaging(kind="two_tailed"), learning_rate=1e-3
    )
    texts, vocab = prepare(recipe)
    with RunDirectory.open(tmp_path / "run", recipe) as run:
        model = train(recipe, texts, run)
        (*_, last) = (record for record in run.metrics() if "valid" in record)
        assert last["lengths"]["reported"] == 1
        assert last["nats"]["long"] > last["nats"]["raw"]
        exported = export(run, tmp_path / "model", vocab)
    for name, weight in exported.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name])
