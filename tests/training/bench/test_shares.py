"""Yardsticks: their arithmetic by hand, and that figures of something else are never compared with."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_training.bench.adaptation import Outcome
from rlstm_training.bench.shares import (
    SINGLES,
    Mixed,
    Reference,
    ReferenceMismatch,
    Texts,
    digest,
    finite,
    least,
    load_reference,
    mean,
    methods_of_mixture,
    methods_of_reference,
    mixed,
    share,
    shares,
)
from rlstm_training.corpora.texts import Passage

RULE = AdaptationConfig(
    kind="full",
    num_fast_weights=100,
    rule="rms",
    rate=1e-3,
    segment=20,
    reduction="mean",
    statistics_batch=1,
    statistics_segments=10,
)
REFERENCE = Reference(
    rule=RULE,
    bytes=400,
    bits={1 / 3: {"sea": 2.5, "log": 4.0}, 1.0: {"sea": 2.0, "log": 3.5}, 3.0: {"sea": math.nan, "log": 3.0}},
)
TEXTS = Texts(model="m", rule="r", digests={"sea": "1", "log": "2"})


def test_a_share_is_what_is_saved_of_what_full_saves():
    """Of 4 bits full saves 2 at its best rate for the text; 3 saves half, 1 one and a half, 5 loses."""
    assert [share(4.0, 2.0, own) for own in (3.0, 1.0, 2.0, 5.0)] == [0.5, 1.5, 1.0, -0.5]
    assert shares({"sea": 3.0, "log": 5.0}, REFERENCE, {"sea": 2.5, "log": 2.0}) == {"sea": 0.5, "log": 1.5}


@pytest.mark.parametrize(
    "own", [(1.0, 1.0, 0.5), (1.0, 2.0, 0.5), (math.nan, 1.0, 0.5), (2.0, 1.0, math.nan)]
)
def test_there_is_no_share_of_no_gain(own):
    """Where full saves nothing, or something is no number, there is nothing to divide."""
    assert share(*own) is None
    assert share(2.0, math.inf, 1.0) is None


@given(*[st.floats(0.1, 10)] * 3, st.floats(0.01, 100))
def test_a_share_has_no_unit(static, full, own, unit):
    """Nats of a whole text give the share that bits a byte give."""
    told, again = share(static, full, own), share(unit * static, unit * full, unit * own)
    if static - full > 1e-6:
        assert again == pytest.approx(told, rel=1e-6, abs=1e-6)


def test_a_mean_lacks_nothing():
    """Of the streams' shares, each counting the same; a missing one is not passed over."""
    assert mean([0.5, 1.0, 1.5]) == 1.0
    assert mean([0.5, None]) is None
    assert mean([]) is None


def test_the_best_rate_is_each_texts_own():
    """In hindsight, of those that gave a number."""
    assert [REFERENCE.best(text) for text in ("sea", "log")] == [2.0, 3.0]
    assert math.isnan(least([math.nan, math.inf]))


def test_json_has_no_word_for_what_is_not_finite():
    """It becomes null."""
    assert finite({"a": 1.0, "b": math.nan, "c": math.inf}) == {"a": 1.0, "b": None, "c": None}


def test_single_rates_are_the_mixtures_own_and_ten_times_more_and_less():
    """Nine, among them the calibrated rate itself, as exactly that."""
    assert len(set(SINGLES)) == 9
    assert tuple(sorted(SINGLES)) == SINGLES
    assert 1.0 in SINGLES
    assert SINGLES[0] == pytest.approx(1 / 30)
    assert SINGLES[-1] == pytest.approx(30)
    assert set(methods_of_reference(RULE)) < set(methods_of_mixture(RULE))


def test_a_mixture_is_held_against_the_best_single_rate():
    """The static model is one of them; the excess is relative, and negative where the mixture is better."""
    outcomes = {
        method: Outcome(method=method, bytes=1, bits={"a": cost, "b": cost + 1}, guards={})
        for method, cost in zip(methods_of_mixture(RULE), [1.8, *(2.0 + k for k in range(9))], strict=True)
    }
    a, b = mixed(RULE, {"a": 9.0, "b": 2.5}, outcomes)
    assert (a.text, a.mixture, a.best, a.best_scale) == ("a", 1.8, 2.0, SINGLES[0])
    assert a.excess == pytest.approx(-0.1)
    assert (b.best, b.best_scale) == (2.5, 0.0)
    assert b.excess == pytest.approx(0.12)
    told = Mixed(text="a", mixture=math.nan, singles={0.0: math.inf}).to_json()
    assert (told["mixture"], told["best"], told["excess"], told["best_scale"]) == (None,) * 4


def _file(tmp_path, **changes):
    data = {"texts": TEXTS.to_json(), "full": REFERENCE.to_json(), **changes}
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(data))
    return path


def test_a_reference_is_read_back(tmp_path):
    """Every figure, to the last bit; what was no number is none again."""
    back = load_reference(_file(tmp_path), TEXTS)
    assert (back.rule, back.bytes) == (RULE, 400)
    assert repr(back.bits) == repr(REFERENCE.bits)
    fewer = Texts(model="m", rule=None, digests={"log": "2"})
    assert load_reference(_file(tmp_path), fewer).best("log") == 3.0


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (Texts(model="other", rule="r", digests={}), "of another model"),
        (Texts(model="m", rule="other", digests={}), "another calibration"),
        (Texts(model="m", rule="r", digests={"sea": "3"}), "not read the same sea"),
        (Texts(model="m", rule="r", digests={"tree": "1"}), "not read the same tree"),
    ],
)
def test_figures_of_something_else_are_refused(tmp_path, texts, message):
    """Another model, calibration or text."""
    with pytest.raises(ReferenceMismatch, match=message):
        load_reference(_file(tmp_path), texts)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"full": None}, "no figures of full"),
        ({"full": {}}, "no result of rlstm bench adapt"),
        ({"full": {**REFERENCE.to_json(), "rates": []}}, "lacks figures"),
        ({"full": {**REFERENCE.to_json(), "rates": 7}}, "no result of rlstm bench adapt"),
        ({"full": {**REFERENCE.to_json(), "rule": {"kind": "full"}}}, "no result of rlstm bench adapt"),
        (
            {"full": {**REFERENCE.to_json(), "rates": [{"rate_scale": 1, "bits_per_byte": {"sea": 1}}]}},
            "lacks figures",
        ),
        ({"texts": []}, "no result of rlstm bench adapt"),
    ],
)
def test_a_file_that_lacks_something_is_refused(tmp_path, changes, message):
    """The message names the file."""
    path = _file(tmp_path, **changes)
    with pytest.raises(ReferenceMismatch, match=message) as refused:
        load_reference(path, TEXTS)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"null"])
def test_what_is_no_json_object_is_refused(tmp_path, content):
    """So is a file that is not there."""
    path = tmp_path / "earlier.json"
    with pytest.raises(ReferenceMismatch, match="cannot be read"):
        load_reference(path, TEXTS)
    path.write_bytes(content)
    with pytest.raises(ReferenceMismatch, match="no result"):
        load_reference(path, TEXTS)


def test_texts_are_known_by_their_tokens():
    """Not by their names, and not by how their digits follow each other."""
    first, same, other = (
        Passage(name=name, ids=ids, bytes=3) for name, ids in (("a", [1, 23]), ("b", [1, 23]), ("a", [12, 3]))
    )
    assert digest(first) == digest(same) != digest(other)
