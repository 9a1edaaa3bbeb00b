"""Statistics of training text: whose gradients they are, and that they are those that will be read again."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from rlstm_model.adaptation.sparse import SparseStatistics, all_units

from rlstm_model.torch_backend.bases import (
    GradientAxes,
    GradientSquares,
    SubspaceStatistics,
    collect,
)
from rlstm_model.adaptation.calibration import (
    CalibrationSet,
    GradientStatistics,
    load_calibration,
    measure_rms,
    rounded,
    save_calibration,
)
from rlstm_model.torch_backend.factors import segment_gradients
from rlstm_model.torch_backend.full import FullFastWeights
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
SPARSE, FEWER = Form(kind="sparse"), Form(kind="sparse", num_fast_weights=18)


def taken(rank):
    """Statistics of three heads over four segments, with so many axes of a matrix, and two of embeddings."""
    units = 5 if rank else 0
    return Statistics(heads=3, segments=4, rank=rank, embedding_rank=EMBEDDING_RANK, units=units)


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
        assert torch.equal(found.rms_P, expected.rms_P)
        assert found.config == replace(expected.config, rate=1e-3)
    six, twelve = (measurements.under(_setting(1e-3, segment)) for segment in (6, 12))
    assert not torch.equal(six.rms_P, twelve.rms_P)
    assert measurements.under(_setting(2e-3)).rms_P is six.rms_P


def test_without_axes_whole_weights_are_measured(plain, model, sources):
    """Over the read heads' text, and rounded to what the file holds before anything is chosen with them."""
    texts = read_heads(sources, 3, 24)
    full_P, _ = measure_rms(model, texts, segment=6, reduction="mean", bos_id=10)
    assert torch.equal(plain.of(6).full_P, rounded(GradientStatistics(full_P=full_P), model).full_P)
    assert plain.of(6).subspace is None


@pytest.fixture(scope="module")
def by_hand(model, sources):
    """What should have been measured: axes and whole weights' RMS of the first half, cores' of the second."""
    reading = {"segment": 6, "reduction": "mean", "bos_id": 10}
    fitted, others = read_heads(sources, 3, 24), [text[24:] for text in read_heads(sources, 3, 48)]
    axes, full = GradientAxes(model, RANK, embedding_rank=EMBEDDING_RANK), GradientSquares(model)
    collect(segment_gradients(model, fitted, **reading), axes, full)
    bases, whole = axes.bases(), full.rms()
    cores = GradientSquares(model, bases)
    collect(segment_gradients(model, others, **reading), cores)
    biases = {name: rms for name, rms in whole.items() if name.endswith("bias")}
    full_P = torch.cat([rms.flatten() for rms in whole.values()])
    return GradientStatistics(full_P=full_P, subspace=SubspaceStatistics(bases, cores.rms() | biases))


def test_axes_are_those_of_the_first_half_of_what_is_read(with_axes, model, by_hand):
    """As are the RMS of whole weights, and those of biases: each is stored once."""
    found, expected = with_axes.of(6), rounded(by_hand, model)
    assert torch.equal(found.full_P, expected.full_P)
    assert list(found.subspace.bases) == list(expected.subspace.bases)
    for name, basis in found.subspace.bases.items():
        assert torch.equal(basis.left, expected.subspace.bases[name].left)
        assert torch.equal(basis.right, expected.subspace.bases[name].right)
    parts = FullFastWeights(model).split(found.full_P)
    biases = [name for name in found.subspace.rms if name.endswith("bias")]
    assert biases
    assert all(torch.equal(found.subspace.rms[name], parts[name]) for name in biases)


def test_rms_between_axes_are_those_of_other_text(with_axes, model, by_hand):
    """Along axes that were fitted to a text, its own gradients look too large: what follows is measured."""
    found, expected = with_axes.of(6).subspace, rounded(by_hand, model).subspace
    assert all(torch.equal(found.rms[name], expected.rms[name]) for name in found.bases)


def test_units_are_those_that_add_most_to_each_other(with_axes, model, sources):
    """As many of each layer as were asked for, over the text of whole weights."""
    reading = {"segment": 6, "reduction": "mean", "bos_id": 10}
    rms_P, _ = measure_rms(model, read_heads(sources, 3, 24), **reading, fast_weights=all_units(model))
    expected, found = SparseStatistics.of(rms_P.view(2, 8, 8)), with_axes.of(6).sparse
    assert torch.equal(found.units_LU, expected.units_LU[:, :5])
    assert torch.equal(found.rms_LUU, expected.rms_LUU[:, :5, :5].bfloat16().float())


def test_every_segment_counts_for_both_halves(with_axes, plain):
    """As many gradients as without axes."""
    counts = [each.config(_setting()).statistics_segments for each in (with_axes, plain)]
    assert counts == [12, 12]


@pytest.mark.parametrize("form", [FULL, SUBSPACE, SPARSE, FEWER, BIAS], ids=str)
def test_the_search_uses_the_numbers_that_are_stored(with_axes, model, tmp_path, form):
    """What a rule was chosen with, and what a session reads from the file: the same to the last bit."""
    searched = with_axes.under(_setting(1e-3), form)
    calibrated = CalibrationSet(model=model, statistics=with_axes.of(6), choices=(searched.config,))
    save_calibration(tmp_path / "file", calibrated)
    assert load_calibration(tmp_path / "file", model).choose().fingerprint == searched.fingerprint


@pytest.mark.parametrize("form", [FULL, SUBSPACE, SPARSE, FEWER, BIAS], ids=str)
def test_a_form_has_its_size(with_axes, model, form):
    """The number that was asked for; where none was, all that there are of the kind."""
    found = with_axes.under(_setting(), form)
    assert found.config.kind == form.kind
    assert found.config.num_fast_weights == len(found.rms_P) == found.fast_weights(model).size
    assert found.config.num_fast_weights == form.num_fast_weights or form.num_fast_weights == 0


@pytest.mark.parametrize("rank", [1, RANK, 1000])
def test_a_subspace_has_as_many_coordinates_as_are_counted(make, model, rank):
    """All of them may be chosen, and not one more."""
    measurements, most = make(rank), most_fast_weights(cores_of(model, taken(rank)))
    everything = measurements.under(_setting(), Form(kind="subspace"))
    assert everything.config.num_fast_weights == everything.space.elements == most
    with pytest.raises(ValueError, match=f"1 to {most} fast weights"):
        measurements.under(_setting(), Form(kind="subspace", num_fast_weights=most + 1))


@pytest.mark.parametrize(("rank", "cells"), [(0, True), (1, True), (2, False), (1000, False)])
def test_coordinates_within_axes_are_counted(with_axes, model, rank, cells):
    """As many as there are in the statistics within those axes, of all matrices or of the embedding's."""
    within = with_axes.of(6).subspace.within(rank)
    counted = [
        part.numel()
        for name, part in within.rms.items()
        if cells or name.endswith("bias") or name.startswith("embedding.")
    ]
    assert most_fast_weights(cores_of(model, taken(RANK)), rank, cells=cells) == sum(counted)


def _knowing(measurements, model, sources, **asked):
    """Measurements that know those of others, whatever is asked for."""
    configs = (measurements.config(_setting()),)
    known = CalibrationSet(model=model, statistics=measurements.of(6), choices=configs)
    statistics = replace(taken(1000), embedding_rank=1000, **asked)
    return Measurements(model, sources, bos_id=10, statistics=statistics, known=known)


def test_what_is_known_goes_by_its_own_axes_and_units(with_axes, model, sources):
    """Not by those that would be measured: more are not there."""
    again = _knowing(with_axes, model, sources, units=7)
    for kind in ("subspace", "sparse"):
        assert again.size(kind) == with_axes.size(kind)
        assert again.under(_setting(), Form(kind=kind)).config.num_fast_weights == with_axes.size(kind)
    known = cores_of(model, taken(1000), with_axes.of(6))
    assert known == cores_of(model, taken(RANK))
    assert most_fast_weights(known) < most_fast_weights(cores_of(model, taken(1000)))


def test_statistics_without_axes_have_no_cores(plain, model, sources):
    """Nor will they have any: they were measured before."""
    with pytest.raises(ValueError, match="no axes"):
        cores_of(model, taken(RANK), plain.of(6))
    with pytest.raises(ValueError, match="no axes"):
        _knowing(plain, model, sources).config(_setting(), Form(kind="subspace"))


@pytest.mark.parametrize("form", [SUBSPACE, FEWER], ids=lambda form: form.kind)
def test_what_was_not_asked_for_is_not_there(plain, form):
    """Axes and units must be asked for before."""
    with pytest.raises(ValueError, match=form.kind):
        plain.under(_setting(), form)


@pytest.mark.parametrize("rank", [0, RANK])
def test_a_segment_longer_than_all_text(make, rank):
    """Statistics of nothing are none."""
    with pytest.raises(ValueError, match="fills a segment"):
        make(rank).of(10_000)
