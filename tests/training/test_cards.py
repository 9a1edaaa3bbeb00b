import math
from types import SimpleNamespace

import pytest
import yaml

from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.checkpoint import CARD, load
from rlstm_model.network.dropout import DropoutRates
from rlstm_training import cards
from rlstm_training.cards import (
    calibration_section,
    evaluation_section,
    model_card,
    rewrite_section,
    with_section,
    without_sections,
)
from rlstm_training.config import Source
from rlstm_training.evaluation.calibrate import Trial, Trials
from rlstm_training.evaluation.evaluation import Evaluation
from rlstm_training.evaluation.measurements import Setting
from rlstm_training.evaluation.monte_carlo import MonteCarlo
from rlstm_training.evaluation.results import EvaluationSettings, record


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
    monkeypatch.setattr(cards, "locate", lambda name, split, folder: SimpleNamespace(licence=found[name]))
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
    return record(evaluation, EvaluationSettings(**settings), kind)


def test_the_results_table_has_the_published_measure(tmp_path):
    """Perplexity of words, bits of bytes and of characters, with the settings that gave them."""
    config = _config()
    sampling = MonteCarlo(samples=20, rates=DropoutRates(input=0.1))
    results = [
        _result(
            "words", "w test", 1000 * math.log(90), 1000 * math.log(60), temperature=0.96, adaptation=config
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


def test_a_section_is_rewritten_in_the_card_as_it_is_now(tmp_path):
    """What others wrote into the card since it was loaded stays."""
    checkpoint = SimpleNamespace(folder=tmp_path, card="stale")
    rewrite_section(checkpoint, "One", "1")
    (tmp_path / CARD).write_text(with_section((tmp_path / CARD).read_text(), "Two", "2"))
    rewrite_section(checkpoint, "One", "new")
    assert (tmp_path / CARD).read_text() == "## One\n\nnew\n\n## Two\n\n2\n"
