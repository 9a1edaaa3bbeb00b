"""Statistics of training text: whose gradients they are, and that they are those that will be read again."""

from dataclasses import replace

import numpy as np
import pytest

from rlstm_model.adaptation.calibration import CalibrationSet, GradientStatistics
from rlstm_model.adaptation.calibration_file import load_calibration, rounded, save_calibration
from rlstm_model.native.packed import Axes
from rlstm_model.torch_backend.bases import GradientAxes, GradientSquares, collect, measure_rms
from rlstm_model.torch_backend.factors import segment_gradients
from rlstm_training.evaluation.measurements import (
    FULL,
    Form,
    Measurements,
    Setting,
    Statistics,
    cores_of,
    most_fast_weights,
    read_heads,
)

RANK, EMBEDDING_RANK = 3, 2
SUBSPACE, BIAS = Form(kind="subspace", num_fast_weights=90), Form(kind="output_bias")


def taken(rank):
    """Statistics of three heads over four segments, with so many axes of a matrix, and two of embeddings."""
    return Statistics(heads=3, segments=4, rank=rank, embedding_rank=EMBEDDING_RANK)


def _setting(rate=0.0, segment=6):
    return Setting(rate=rate, segment=segment)


def test_heads_are_shared_out_by_rows():
    """Three rows of four read the first source: so do twelve heads of sixteen, at equal distances."""
    first, second = np.arange(1000), np.arange(5000, 5400)
    texts = read_heads([(first, 3), (second, 1)], 16, 50)
    starts = [text[0] for text in texts]
    assert starts == [i * 1000 // 12 for i in range(12)] + [5000, 5100, 5200, 5300]
    assert all(text == list(range(text[0], text[0] + 50)) for text in texts[:11])


def test_heads_run_on_over_the_end():
    """A head near the end of its source goes on at its beginning; a short source is read once."""
    assert read_heads([(np.arange(5), 1)], 2, 4) == [[0, 1, 2, 3], [2, 3, 4, 0]]
    assert read_heads([(np.arange(3), 1)], 1, 9) == [[0, 1, 2]]


@pytest.fixture(scope="module")
def model(random_model):
    return random_model(vocab_size=128)


@pytest.fixture(scope="module")
def sources(words):
    return [(np.frombuffer(words(200, 1), dtype=np.uint8), 1)]


@pytest.fixture(scope="module")
def make(model, sources):
    """Makes measurements of three heads over four segments, with axes or without."""

    def measurements(rank=0):
        return Measurements(model, sources, bos_id=10, statistics=taken(rank))

    return measurements


@pytest.fixture(scope="module")
def plain(make):
    return make()


@pytest.fixture(scope="module")
def with_axes(make):
    return make(RANK)


def test_statistics_say_what_they_are(plain):
    """The config records segment, reduction, batch and number of gradients."""
    measured = plain.under(_setting())
    config = measured.config
    assert (config.segment, config.reduction, config.statistics_batch) == (6, "mean", 1)
    assert config.statistics_segments == 12
    assert bool((measured.rms_P >= 0).all())
    assert measured.rms_P.max() > 0


def test_pitfall_27_every_segment_length_has_statistics_of_its_own(make):
    """A rate belongs to statistics over segments of its length: they are measured anew for each, once."""
    measurements = make()
    for segment in (6, 12, 6):
        setting = _setting(1e-3, segment)
        found, expected = measurements.under(setting), make().under(replace(setting, rate=0.0))
        assert np.array_equal(found.rms_P, expected.rms_P)
        assert found.config == replace(expected.config, rate=1e-3)
    six, twelve = (measurements.under(_setting(1e-3, segment)) for segment in (6, 12))
    assert not np.array_equal(six.rms_P, twelve.rms_P)
    assert np.array_equal(measurements.under(_setting(2e-3)).rms_P, six.rms_P)


def test_without_axes_whole_weights_are_measured(plain, model, sources):
    """Over the read heads' text, and rounded to what the file holds before anything is chosen with them."""
    texts = read_heads(sources, 3, 24)
    rms, _ = measure_rms(model, texts, segment=6, reduction="mean", bos_id=10)
    expected = rounded(GradientStatistics(rms=_arrays(rms), axes={}, cores={}))
    assert equal(plain.of(6).rms, expected.rms)
    assert not plain.of(6).axes


def _arrays(tensors):
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def equal(found, expected):
    """Whether arrays by name are the same."""
    same = (np.array_equal(found[name], expected[name]) for name in expected)
    return list(found) == list(expected) and all(same)


def test_axes_and_the_rms_between_them_are_of_two_halves_of_what_is_read(with_axes, model, sources):
    """Axes and whole weights' RMS of the first; cores' of the other, as axes' own text looks too large."""
    reading = {"segment": 6, "reduction": "mean", "bos_id": 10}
    fitted, others = read_heads(sources, 3, 24), [text[24:] for text in read_heads(sources, 3, 48)]
    axes, full = GradientAxes(model, RANK, embedding_rank=EMBEDDING_RANK), GradientSquares(model)
    collect(segment_gradients(model, fitted, **reading), axes, full)
    bases = axes.bases()
    cores = GradientSquares(model, bases)
    collect(segment_gradients(model, others, **reading), cores)
    between, sides = (
        _arrays(cores.rms()),
        {name: (b.left.numpy(), b.right.numpy()) for name, b in bases.items()},
    )
    expected = rounded(
        GradientStatistics(
            rms=_arrays(full.rms()),
            axes={name: Axes(*pair) for name, pair in sides.items()},
            cores={name: between[name] for name in bases},
        )
    )
    found = with_axes.of(6)
    assert equal(found.rms, expected.rms)
    assert equal(found.cores, expected.cores)
    for name, (left, right) in expected.axes.items():
        assert np.array_equal(found.axes[name].left, left)
        assert np.array_equal(found.axes[name].right, right)


@pytest.mark.parametrize("form", [FULL, SUBSPACE, BIAS], ids=str)
def test_the_search_uses_the_numbers_that_are_stored(with_axes, model, tmp_path, form):
    """What a rule was chosen with, and what a session reads from the file: the same to the last bit.

    It has the size that was asked for; where none was, all that there are of the kind.
    """
    searched = with_axes.under(_setting(1e-3), form)
    assert (searched.config.kind, searched.config.num_fast_weights) == (form.kind, len(searched.rms_P))
    assert form.num_fast_weights in (0, len(searched.rms_P))
    calibrated = CalibrationSet(statistics=with_axes.of(6), choices=(searched.config,))
    save_calibration(tmp_path / "file", calibrated)
    assert load_calibration(tmp_path / "file", model.config).choose().fingerprint == searched.fingerprint


@pytest.mark.parametrize("rank", [1, RANK, 1000])
def test_a_subspace_has_as_many_fast_weights_as_are_counted(make, model, rank):
    """All of them may be chosen, and not one more."""
    measurements, most = make(rank), most_fast_weights(cores_of(model.config, taken(rank)))
    everything = measurements.under(_setting(), Form(kind="subspace"))
    assert everything.config.num_fast_weights == len(everything.rms_P) == most
    with pytest.raises(ValueError, match=f"1 to {most} fast weights"):
        measurements.under(_setting(), Form(kind="subspace", num_fast_weights=most + 1))


@pytest.mark.parametrize(("rank", "cells"), [(0, True), (1, True), (2, False), (1000, False)])
def test_fast_weights_within_axes_are_counted(with_axes, model, rank, cells):
    """As many as there are in the statistics within those axes, of all matrices or of the embedding's."""
    statistics = with_axes.of(6)
    within = {name: core[..., : rank or None, : rank or None] for name, core in statistics.cores.items()}
    biases = {name: part for name, part in statistics.rms.items() if name.endswith("bias")}
    counted = [
        part.size
        for name, part in (within | biases).items()
        if cells or name.endswith("bias") or name.startswith("embedding.")
    ]
    assert most_fast_weights(cores_of(model.config, taken(RANK)), rank, cells=cells) == sum(counted)


def _knowing(measurements, model, sources):
    """Measurements that know those of others, whatever is asked for."""
    configs = (measurements.config(_setting()),)
    known = CalibrationSet(statistics=measurements.of(6), choices=configs)
    statistics = replace(taken(1000), embedding_rank=1000)
    return Measurements(model, sources, bos_id=10, statistics=statistics, known=known)


def test_what_is_known_goes_by_its_own_axes(with_axes, model, sources):
    """Not by those that would be measured: more are not there."""
    again = _knowing(with_axes, model, sources)
    assert again.size("subspace") == with_axes.size("subspace")
    found = again.under(_setting(), Form(kind="subspace")).config
    assert found.num_fast_weights == with_axes.size("subspace")
    known = cores_of(model.config, taken(1000), with_axes.of(6))
    assert known == cores_of(model.config, taken(RANK))
    assert most_fast_weights(known) < most_fast_weights(cores_of(model.config, taken(1000)))


def test_statistics_without_axes_have_no_cores(plain, model, sources):
    """Nor will they have any: they were measured before."""
    with pytest.raises(ValueError, match="no axes"):
        cores_of(model.config, taken(RANK), plain.of(6))
    with pytest.raises(ValueError, match="no axes"):
        _knowing(plain, model, sources).config(_setting(), Form(kind="subspace"))


@pytest.mark.parametrize("rank", [0, RANK])
def test_a_segment_longer_than_all_text(make, rank):
    """Statistics of nothing are none."""
    with pytest.raises(ValueError, match="fills a segment"):
        make(rank).of(10_000)
