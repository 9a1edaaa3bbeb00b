"""Procedures against the readings that they are made of; and results, kept beside a checkpoint."""

import json
import math
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.checkpoint import EVALUATION, CheckpointError
from rlstm_model.network.dropout import DropoutRates
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.evaluation import Evaluation, evaluator_of, static_loss, total
from rlstm_training.evaluation.monte_carlo import MonteCarlo
from rlstm_training.evaluation.procedure import Procedure, load_results, record, save_results

BOS = 10


@pytest.fixture(scope="module")
def model(random_model):
    return random_model()


@pytest.fixture(scope="module")
def calibration(model, measure_rule):
    return measure_rule(model, 100, segment=7, rate=2e-2, decay=1e-3)


@pytest.fixture(scope="module")
def parts(words):
    text = list(words(16, 3))
    return [Passage(name=str(n), ids=part, bytes=len(part)) for n, part in enumerate((text[:30], text[30:]))]


@pytest.mark.parametrize("temperature", [1.0, 0.9])
def test_pitfall_23_the_temperature_is_in_the_loss_that_is_learned_from(
    model, calibration, parts, temperature
):
    """Static and adapted numbers are those of an evaluator that scores and learns at the temperature."""
    procedure = Procedure(model=model, bos_id=BOS, temperature=temperature, calibration=calibration)
    read: list[int] = []
    result = total("both", procedure.read(parts, read.append))
    evaluator = evaluator_of(model, calibration, bos_id=BOS, temperature=temperature)
    ids = [token for part in parts for token in part.ids]
    adapted = static = 0.0
    for observed in evaluator.observe(evaluator.start(), ids):
        adapted -= observed.scores.total
        static -= float(observed.static_logprobs.sum(dtype=float))
    assert result.adapted_nats == pytest.approx(adapted, abs=1e-5 * len(ids))
    assert result.static_nats == pytest.approx(static, abs=1e-5 * len(ids))
    assert result.updates == len(ids) // 7
    assert sum(read) == procedure.readings * len(ids) == 2 * len(ids)


def test_pitfall_31_nothing_leaks_from_one_text_into_the_next(model, calibration, parts):
    """A test text costs the same whether validation was read before it or not, to the last bit."""
    procedure = Procedure(model=model, bos_id=BOS, calibration=calibration)
    alone = procedure.read(parts[1:])[0]
    procedure.read(parts[:1])
    assert procedure.read(parts[1:])[0] == alone
    assert alone.adapted_nats != alone.static_nats


@pytest.mark.parametrize("averaging", ["arithmetic", "geometric"])
def test_sampled_parts_are_one_text(model, parts, averaging):
    """With nothing dropped a sampled text and its parts cost what they cost statically."""
    sampling = MonteCarlo(samples=2, rates=DropoutRates(), averaging=averaging)
    procedure = Procedure(model=model, bos_id=BOS, monte_carlo=sampling)
    plain = Procedure(model=model, bos_id=BOS).read(parts)
    read: list[int] = []
    for result, expected in zip(procedure.read(parts, read.append), plain, strict=True):
        assert result.static_nats == pytest.approx(expected.static_nats, abs=1e-4)
        assert (result.text, result.tokens, result.adapted_nats) == (expected.text, expected.tokens, None)
    assert sum(read) == procedure.readings * sum(len(part.ids) for part in parts)


def test_sampled_learning_without_dropout_is_learning(model, calibration, parts):
    """Samples that drop nothing are the same dynamic evaluation each time."""
    sampling = MonteCarlo(samples=2, rates=DropoutRates())
    procedure = Procedure(model=model, bos_id=BOS, calibration=calibration, monte_carlo=sampling)
    plain = Procedure(model=model, bos_id=BOS, calibration=calibration).read(parts)
    read: list[int] = []
    for result, expected in zip(procedure.read(parts, read.append), plain, strict=True):
        assert result.adapted_nats == pytest.approx(expected.adapted_nats, abs=1e-3)
    assert sum(read) == procedure.readings * sum(len(part.ids) for part in parts)


def test_what_cannot_be_is_refused(model, calibration):
    """No temperature of zero; no learning where samples share one state."""
    with pytest.raises(ValueError, match="temperature"):
        Procedure(model=model, bos_id=BOS, temperature=0.0)
    sampling = MonteCarlo(samples=2, rates=DropoutRates(), averaging="geometric")
    with pytest.raises(ValueError, match="geometric"):
        Procedure(model=model, bos_id=BOS, calibration=calibration, monte_carlo=sampling)


def test_pitfall_24_each_vocabulary_has_its_measure(model):
    """Perplexity for words; bits for a character or for a byte, which differ where UTF-8 needs two."""
    passage = Passage(name="text", ids=[1, 2, 3, 4], bytes=6)
    result = static_loss(model, passage, bos_id=BOS)
    nats = 4 * math.log(8)
    published = {kind: result.published(kind, nats) for kind in ("words", "characters", "bytes", "subwords")}
    assert published == pytest.approx({"words": 8.0, "characters": 3.0, "bytes": 2.0, "subwords": 2.0})


@pytest.fixture
def checkpoint(tmp_path):
    return SimpleNamespace(folder=tmp_path, fingerprint="aaaa")


@pytest.fixture
def result(model):
    """A record of a text that cost so much, by a procedure of such settings."""

    def make(text="t", nats=8.0, **settings):
        cost = Evaluation(text=text, tokens=4, bytes=16, unknown=1, static_nats=nats, adapted_nats=6.0)
        procedure, now = (
            Procedure(model=model, bos_id=BOS, **settings),
            datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        )
        return record(cost, procedure.settings(), "words", now=now)

    return make


def test_a_record_says_what_made_it(result, calibration):
    """Counts, measures of both kinds, settings whole, the published measure and when it was."""
    sampling = MonteCarlo(samples=3, rates=DropoutRates(cell=0.1))
    kept = json.loads(json.dumps(result(temperature=0.96, calibration=calibration, monte_carlo=sampling)))
    assert (kept["tokens"], kept["bytes"], kept["unknown"], kept["published"]) == (4, 16, 1, "perplexity")
    assert (kept["static"]["nats"], kept["adapted"]["nats"]) == (8.0, 6.0)
    assert kept["date"] == "2026-01-02T03:04:05+00:00"
    settings = kept["settings"]
    assert AdaptationConfig.from_json(settings["adaptation"]) == calibration.config
    assert (settings["temperature"], settings["monte_carlo"]["rates"]["cell"]) == (0.96, 0.1)


def test_a_result_replaces_its_predecessor_alone(checkpoint, result):
    """One for the same text under the same settings; those of other weights are dropped."""
    save_results(checkpoint, [result("b"), result("a")])
    kept = save_results(checkpoint, [result("b", nats=7.0), result("b", temperature=0.9)])
    told = [(r["text"], r["static"]["nats"], r["settings"]["temperature"]) for r in kept]
    assert told == [("a", 8.0, 1.0), ("b", 7.0, 1.0), ("b", 8.0, 0.9)]
    assert load_results(checkpoint) == kept
    other = SimpleNamespace(folder=checkpoint.folder, fingerprint="bbbb")
    assert load_results(other) == []
    assert [each["text"] for each in save_results(other, [result("c")])] == ["c"]


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"format_version": 2}', '{"format_version": 1, "results": 3}']
)
def test_a_damaged_file_is_named_and_left(checkpoint, result, content):
    """What cannot be read is not written over."""
    path = checkpoint.folder / EVALUATION
    path.write_text(content)
    with pytest.raises(CheckpointError, match=EVALUATION):
        save_results(checkpoint, [result()])
    assert path.read_text() == content
