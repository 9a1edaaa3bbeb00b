"""Axes and RMS of a checkpoint against their definitions: every gradient whole, one row at a time."""

import pytest
import torch
from tests.model import drawn

from rlstm_model.adaptation.calibration import GradientStatistics
from rlstm_model.native.packed import Axes
from rlstm_model.torch_backend.backend import _kind
from rlstm_model.torch_backend.bases import GradientAxes, GradientSquares, collect, measure_rms
from rlstm_model.torch_backend.factors import segment_gradients
from rlstm_model.torch_backend.subspace import Basis

SEGMENT, BOS = 4, 1  # those of the gradients by hand
SHAPES = [
    {},
    {"tie_embeddings": True},
    {"cell": "lstm", "mogrifier_rank": 0},
    {"cell": "lstm", "tie_embeddings": True, "mogrifier_rounds": 0},
]
READING = {"segment": SEGMENT, "bos_id": BOS}


def collected(statistic, model, texts, reduction="mean"):
    """A statistic of a model's gradients over texts, two rows at a time."""
    collect(segment_gradients(model, texts, reduction=reduction, rows=2, **READING), statistic)
    return statistic


def axes_of(model, texts, max_rank, **sketch):
    return collected(GradientAxes(model, max_rank, **sketch), model, texts).bases()


def rms_of(model, bases, texts, reduction="mean"):
    """Of cores between bases and of biases, or without bases of all weights."""
    return collected(GradientSquares(model, bases), model, texts, reduction).rms()


@pytest.fixture
def case(tiny_model, text):
    """A model and two sets of texts of unequal lengths."""

    def make(dtype=torch.float64, **shape):
        first, second = ([text(length, seed=length + add) for length in (50, 9, 32)] for add in (0, 100))
        return tiny_model(dtype=dtype, **shape), first, second

    return make


@pytest.fixture
def dense(gradients_by_hand):
    """All single segment gradients of texts, by weight name: ``[segments, ..]``."""

    def gradients(model, texts):
        flat = [gradient_P for own in texts for gradient_P in gradients_by_hand(model, own)]
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
    bases, gradients = axes_of(model, texts, 3), dense(model, texts)
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
    """On other texts than the axes', of cores and biases alike; without axes that of whole weights."""
    model, first, second = case(**shape)
    for bases in (axes_of(model, first, 3), {}):
        rms = rms_of(model, bases or None, second, reduction)
        for name, gradients in dense(model, second).items():
            values = gradients if reduction == "mean" else SEGMENT * gradients
            if name in bases:
                values = bases[name].left.mT @ values @ bases[name].right.mT
            expected = values.square().mean(0).sqrt()
            torch.testing.assert_close(rms[name], expected, atol=1e-12, rtol=1e-9)


def test_rms_are_those_of_what_sessions_learn_from(case, gradients_by_hand):
    """The gradients of chosen fast weights at a delta of zero have the RMS that is theirs by statistics."""
    model, first, texts = case(dtype=torch.float32)
    bases = axes_of(model, first, 4)
    rms = {name: part.numpy() for name, part in rms_of(model, bases, texts).items()}
    axes = {name: Axes(basis.left.numpy(), basis.right.numpy()) for name, basis in bases.items()}
    whole = {name: rms.get(name, weight.numpy()) for name, weight in model.named_parameters()}
    whole = {
        name: weight.numpy() if name in axes else whole[name] for name, weight in model.named_parameters()
    }
    calibration = GradientStatistics(
        rms=whole, axes=axes, cores={name: rms[name] for name in axes}
    ).calibration(drawn.rule_of(130))
    space = _kind(model, calibration)
    weights, squares = torch.full((SEGMENT, 1), 1 / SEGMENT), []
    for text in texts:
        state, read = model.initial_state(1), torch.tensor([[BOS], *([token] for token in text)])
        for start in range(0, len(text) - SEGMENT + 1, SEGMENT):
            part = read[start : start + SEGMENT + 1]
            done = space.learn(None, part[:-1], part[1:], weights, state)
            squares.append(done.gradient_NP[0].square())
            state = done.state
    found = torch.from_numpy(calibration.rms_P)
    torch.testing.assert_close(found, torch.stack(squares).mean(0).sqrt(), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("tied", [False, True])
def test_pitfall_27_and_33_rms_by_hand(case, gradients_by_hand, reduction, tied):
    """Statistics are those of the stated reduction and segment, state carried, tied weights counted once."""
    model, texts, _ = case(tie_embeddings=tied)
    rms, count = measure_rms(model, [*texts, [1, 2, 3]], reduction=reduction, **READING)
    gradients = torch.stack([gradient for own in texts for gradient in gradients_by_hand(model, own)])
    expected = gradients.square().mean(0).sqrt() * (1 if reduction == "mean" else SEGMENT)
    assert count == len(gradients)
    found = torch.cat([part.flatten() for part in rms.values()])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-14)
    for few in ([], [[]], [[1, 2, 3]]):
        with pytest.raises(ValueError, match="segment of 4"):
            measure_rms(model, few, reduction="mean", **READING)


def test_lower_ranks_are_nested_in_higher(case):
    """Axes and RMS at a lower rank are the leading ones of a higher: one measurement serves all sizes."""
    model, first, second = case()
    large, small = (axes_of(model, first, rank) for rank in (5, 2))
    wide, narrow = (rms_of(model, bases, second) for bases in (large, small))
    for name, basis in small.items():
        rows, columns = basis.core[-2:]
        leading = Basis(large[name].left[..., :rows], large[name].right[..., :columns, :])
        torch.testing.assert_close(leading, basis, atol=1e-12, rtol=0)
        torch.testing.assert_close(wide[name][..., :rows, :columns], narrow[name], atol=1e-12, rtol=0)


@pytest.mark.parametrize("shape", [{}, {"tie_embeddings": True}], ids=str)
def test_a_large_vocabulary_is_sketched(case, shape):
    """With few segments, whose gradients a sketch can hold, its axes are the exact ones."""
    model, texts, _ = case(vocab_size=60, **shape)
    exact, sketched = (axes_of(model, texts[1:2], 4, exact_side=side) for side in (60, 59))
    for name, basis in exact.items():
        torch.testing.assert_close(sketched[name], basis, atol=1e-6, rtol=0)
    changed = sketched["embedding.input"].left - exact["embedding.input"].left
    assert changed.abs().max() > 0  # it did go another way


def test_a_sketch_of_a_whole_text_holds_the_energy(case, dense):
    """With more directions than a sketch has, its axes hold all but a little of what the best ones do."""
    model, texts, _ = case(vocab_size=60, hidden_size=40, tie_embeddings=True)
    bases = axes_of(model, texts, 4, exact_side=50)
    gradients = dense(model, texts)["embedding.input"]
    (axes, total), _ = sides("embedding.input", bases["embedding.input"], gradients)
    best = torch.linalg.eigvalsh(total)[-4:].sum()
    assert 0.97 * best < (axes.mT @ total @ axes).trace() < best


@pytest.mark.parametrize("exact_side", [4, 4096])
def test_matrices_without_gradient_have_axes_and_no_rms(case, exact_side):
    """One segment through a layer that reads nothing: orthonormal axes, RMS of zero, nothing but numbers."""
    model, texts, _ = case(hidden_size=20)
    model.embedding.input.zero_()
    dead = "stack.layers.0.x"
    bases = axes_of(model, [texts[0][:SEGMENT]], 3, exact_side=exact_side)
    rms = rms_of(model, bases, texts)
    for axes in (bases[dead].left, bases[dead].right.mT):
        torch.testing.assert_close(axes.mT @ axes, torch.eye(3, dtype=torch.float64), atol=1e-12, rtol=0)
    assert bool((rms[dead] == 0).all())
    assert all(bool(torch.isfinite(part).all()) for part in rms.values())


def test_nothing_comes_of_nothing(case):
    """No text that fills a segment, or no axes to be found: refused."""
    model, *_ = case()
    with pytest.raises(ValueError, match="no text fills a segment"):
        axes_of(model, [[1, 2, 3]], 2)
    with pytest.raises(ValueError, match="no text fills a segment"):
        rms_of(model, None, [])
    with pytest.raises(ValueError, match="max_rank must be at least 1"):
        GradientAxes(model, 0)
