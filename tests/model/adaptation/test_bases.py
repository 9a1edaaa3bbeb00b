"""Axes and RMS of a checkpoint against their definitions: every gradient whole, one row at a time."""

import pytest
import torch

from rlstm_model.adaptation.bases import (
    GradientAxes,
    GradientSquares,
    SubspaceStatistics,
    collect,
    measure_bases,
    measure_core_rms,
    measure_full_rms,
)
from rlstm_model.adaptation.calibration import measure_rms
from rlstm_model.adaptation.factors import segment_gradients
from rlstm_model.adaptation.subspace import Basis

SEGMENT, BOS = 4, 1  # those of the gradients by hand
SHAPES = [
    {},
    {"tie_embeddings": True},
    {"cell": "lstm", "mogrifier_rank": 0},
    {"cell": "lstm", "tie_embeddings": True, "mogrifier_rounds": 0},
]
READING = {"segment": SEGMENT, "bos_id": BOS}


@pytest.fixture
def case(tiny_model, text):
    """A model and two sets of texts of unequal lengths."""

    def make(dtype=torch.float64, **shape):
        first, second = ([text(length, seed=length + add) for length in (50, 9, 32)] for add in (0, 100))
        return tiny_model(dtype=dtype, **shape), first, second

    return make


@pytest.fixture
def dense(by_hand, calibration):
    """All single segment gradients of texts, by weight name: ``[segments, ..]``."""

    def gradients(model, texts):
        whole = [text[: len(text) // SEGMENT * SEGMENT] for text in texts]
        flat = [
            each.gradient_P for own in whole for each in by_hand(model, calibration(model, rate=0.0), own)
        ]
        named = [(name, weight) for name, weight in model.named_parameters() if weight.numel()]
        parts = torch.stack(flat).split([weight.numel() for _, weight in named], 1)
        return {n: part.view(-1, *weight.shape) for (n, weight), part in zip(named, parts, strict=True)}

    return gradients


def matrices(model):
    return [n for n, weight in model.named_parameters() if weight.numel() and not n.endswith("bias")]


def sides(name, basis, gradients):
    """For each side, and each round, of a matrix: its axes as columns, and sum G G^T."""
    if "mogrifier" in name:
        rounds = [(Basis(*each), gradients[:, k]) for k, each in enumerate(zip(*basis, strict=True))]
        return [side for own, g in rounds for side in sides("", own, g)]
    left, right = (torch.einsum(pattern, gradients, gradients) for pattern in ("bnm,bkm->nk", "bnm,bnk->mk"))
    return [(basis.left, left), (basis.right.mT, right)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_axes_are_leading_eigenvectors_of_the_sums(case, dense, shape):
    """For every matrix and side: the same space as the dense definition's, axis by axis, leading first."""
    model, texts, _ = case(**shape)
    bases, gradients = measure_bases(model, texts, max_rank=3, rows=2, **READING), dense(model, texts)
    assert sorted(bases) == sorted(matrices(model))
    for name, basis in bases.items():
        for axes, total in sides(name, basis, gradients[name]):
            values, vectors = (part.flip(-1) for part in torch.linalg.eigh(total))
            rank = min(3, len(total))
            assert axes.shape == (len(total), rank)
            projector, expected = axes @ axes.mT, vectors[:, :rank] @ vectors[:, :rank].mT
            torch.testing.assert_close(projector, expected, atol=1e-7, rtol=0)
            energies = (axes.mT @ total @ axes).diagonal()
            torch.testing.assert_close(energies, values[:rank], atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rms_of_cores_is_that_of_projected_gradients(case, dense, shape, reduction):
    """On other texts than the axes', of cores and biases alike."""
    model, first, second = case(**shape)
    bases = measure_bases(model, first, max_rank=3, **READING)
    rms = measure_core_rms(model, bases, second, reduction=reduction, rows=2, **READING)
    for name, gradients in dense(model, second).items():
        values = gradients if reduction == "mean" else SEGMENT * gradients
        if name in bases:
            values = bases[name].left.mT @ values @ bases[name].right.mT
        expected = values.square().mean(0).sqrt()
        torch.testing.assert_close(rms[name], expected, atol=1e-12, rtol=1e-9)


def test_rms_of_cores_is_that_of_what_sessions_learn_from(case):
    """The gradients of subspace fast weights at a delta of zero have the RMS that is theirs by statistics."""
    model, texts, _ = case()
    bases = measure_bases(model, texts, max_rank=4, **READING)
    found = SubspaceStatistics(bases, measure_core_rms(model, bases, texts[:1], reduction="mean", **READING))
    ranks = {"embedding.output": (3, 2), "stack.layers.1.h": (4, 4), "stack.layers.0.mogrifier_up": (2, 9)}
    subspace, rms_P = found.fast_weights(model, ranks, ["stack.layers.0.bias", "embedding.bias"])
    assert subspace.shapes["stack.layers.0.mogrifier_up"] == (3, 2, 2)
    squares, state, read = (
        torch.zeros(subspace.size),
        model.initial_state(1),
        torch.tensor([[BOS], *([t] for t in texts[0])]),
    )
    weights = torch.full((SEGMENT, 1), 1 / SEGMENT, dtype=torch.float64)
    segments = len(texts[0]) // SEGMENT
    for start in range(0, segments * SEGMENT, SEGMENT):
        part = read[start : start + SEGMENT + 1]
        done = subspace.learn(None, part[:-1], part[1:], weights, state)
        squares, state = squares + done.gradient_NP[0].square(), done.state
    torch.testing.assert_close(rms_P, (squares / segments).sqrt(), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("dtype", "relative"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_full_rms_is_measured_as_row_by_row(case, shape, dtype, relative):
    """The same statistics as one row at a time gives, and the same count."""
    model, texts, _ = case(dtype, **shape)
    options = {"segment": SEGMENT, "reduction": "mean", "bos_id": BOS}
    (found, count), (expected, segments) = (
        each(model, texts, **options) for each in (measure_full_rms, measure_rms)
    )
    assert count == segments == 22
    torch.testing.assert_close(found, expected, atol=relative * float(expected.mean()), rtol=relative)


def test_smaller_subspaces_are_nested_in_larger(case):
    """Axes and RMS at a lower rank are the leading ones of a higher: one measurement serves all ranks."""
    model, first, second = case()
    large, small = (measure_bases(model, first, max_rank=rank, **READING) for rank in (5, 2))
    rms = [measure_core_rms(model, bases, second, reduction="mean", **READING) for bases in (large, small)]
    ranks = dict.fromkeys(large, (2, 2))
    biases = [name for name in rms[0] if name.endswith("bias")]
    subspaces = [
        SubspaceStatistics(*each).fast_weights(model, ranks, biases)
        for each in zip((large, small), rms, strict=True)
    ]
    (cut, cut_rms), (own, own_rms) = subspaces
    for name in large:
        torch.testing.assert_close(cut.bases[name], own.bases[name], atol=1e-12, rtol=0)
    assert len(cut_rms) == cut.size
    torch.testing.assert_close(cut_rms, own_rms, atol=1e-12, rtol=0)


@pytest.mark.parametrize("shape", [{}, {"tie_embeddings": True}], ids=str)
def test_a_large_vocabulary_is_sketched(case, shape):
    """With few segments, whose gradients a sketch can hold, its axes are the exact ones."""
    model, texts, _ = case(vocab_size=60, **shape)
    options = {"max_rank": 4, **READING}
    exact, sketched = (measure_bases(model, texts[1:2], exact_side=side, **options) for side in (60, 59))
    for name, basis in exact.items():
        torch.testing.assert_close(sketched[name], basis, atol=1e-6, rtol=0)
    changed = sketched["embedding.input"].left - exact["embedding.input"].left
    assert changed.abs().max() > 0  # it did go another way


def test_a_sketch_of_a_whole_text_holds_the_energy(case, dense):
    """With more directions than a sketch has, its axes hold all but a little of what the best ones do."""
    model, texts, _ = case(vocab_size=60, hidden_size=40, tie_embeddings=True)
    bases = measure_bases(model, texts, max_rank=4, exact_side=50, **READING)
    gradients = dense(model, texts)["embedding.input"]
    (axes, total), _ = sides("embedding.input", bases["embedding.input"], gradients)
    best = torch.linalg.eigvalsh(total)[-4:].sum()
    assert 0.97 * best < (axes.mT @ total @ axes).trace() < best


def test_in_single_precision_axes_are_orthonormal_and_reproducible(case):
    """To 1e-5; a second measurement gives the same bits."""
    model, texts, _ = case(torch.float32, hidden_size=20, vocab_size=30)
    first, again = (measure_bases(model, texts, max_rank=4, exact_side=4, **READING) for _ in range(2))
    for name, basis in first.items():
        assert basis.left.dtype == torch.float32
        assert all(torch.equal(*pair) for pair in zip(basis, again[name], strict=True))
        for axes in (basis.left, basis.right.mT):
            expected = torch.eye(axes.shape[-1]).expand(*axes.shape[:-2], -1, -1)
            torch.testing.assert_close(axes.mT @ axes, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("exact_side", [4, 4096])
def test_matrices_without_gradient_have_axes_and_no_rms(case, exact_side):
    """One segment through a layer that reads nothing: orthonormal axes, RMS of zero, nothing but numbers."""
    model, texts, _ = case(hidden_size=20)
    model.embedding.input.zero_()
    dead = "stack.layers.0.x"
    bases = measure_bases(model, [texts[0][:SEGMENT]], max_rank=3, exact_side=exact_side, **READING)
    rms = measure_core_rms(model, bases, texts, reduction="mean", **READING)
    for axes in (bases[dead].left, bases[dead].right.mT):
        torch.testing.assert_close(axes.mT @ axes, torch.eye(3, dtype=torch.float64), atol=1e-12, rtol=0)
    assert bool((rms[dead] == 0).all())
    assert all(bool(torch.isfinite(part).all()) for part in rms.values())


def test_several_statistics_share_a_pass(case):
    """Collected together they are what each is alone."""
    model, texts, _ = case()
    axes, squares = GradientAxes(model, 3), GradientSquares(model)
    count = collect(segment_gradients(model, texts, reduction="mean", **READING), axes, squares)
    expected, segments = measure_full_rms(model, texts, reduction="mean", **READING)
    assert count == segments
    assert torch.equal(torch.cat([part.flatten() for part in squares.rms().values()]), expected)
    alone = measure_bases(model, texts, max_rank=3, **READING)
    assert all(torch.equal(basis.left, alone[name].left) for name, basis in axes.bases().items())


def test_what_was_not_measured_cannot_be_asked_for(case):
    """Axes of other matrices, more axes than there are, or none of a side: each is named."""
    model, texts, _ = case()
    bases = measure_bases(model, texts, max_rank=2, **READING)
    found = SubspaceStatistics(bases, measure_core_rms(model, bases, texts, reduction="mean", **READING))
    with pytest.raises(ValueError, match="no axes of nonsense"):
        found.fast_weights(model, {"nonsense": (1, 1)}, [])
    for ranks in ((3, 2), (2, 3), (0, 2), (2, 0)):
        with pytest.raises(ValueError, match=r"a side of stack\.layers\.0\.h has 2 axes, not [03]"):
            found.fast_weights(model, {"stack.layers.0.h": ranks}, [])
    with pytest.raises(ValueError, match="no bias nonsense"):
        found.fast_weights(model, {}, ["nonsense"])


def test_nothing_comes_of_nothing(case):
    """No text that fills a segment, or no axes to be found: refused."""
    model, *_ = case()
    with pytest.raises(ValueError, match="no text fills a segment"):
        measure_bases(model, [[1, 2, 3]], max_rank=2, **READING)
    with pytest.raises(ValueError, match="no text fills a segment"):
        measure_full_rms(model, [], reduction="mean", **READING)
    with pytest.raises(ValueError, match="max_rank must be at least 1"):
        measure_bases(model, [[1, 2, 3, 4]], max_rank=0, **READING)
