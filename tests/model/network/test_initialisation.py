"""The distributions of initial weights."""

import math

import pytest
import torch

from rlstm_model.config import ModelConfig
from rlstm_model.network.initialisation import initialise
from rlstm_model.network.language_model import LanguageModel

H, RANK, CHRONO = 150, 40, 100.0
STD = math.sqrt(1 / H)


def _initialised(seed=0, chrono_max=CHRONO, **shape):
    config = ModelConfig(**{"vocab_size": 300, "hidden_size": H, "num_layers": 1, **shape})
    model = LanguageModel(config)
    initialise(model, chrono_max=chrono_max, generator=torch.Generator().manual_seed(seed))
    return model


def _is_truncated_normal(weight, std, cut):
    """Mean 0, the given std within sampling error, nothing beyond the cut but much close to it."""
    error, most = 6 * std / math.sqrt(weight.numel()), weight.abs().max().item()
    moments = weight.mean().item() == pytest.approx(0.0, abs=error)
    moments &= weight.std().item() == pytest.approx(std, rel=0.05)
    return moments and 0.95 * cut < most <= cut * (1 + 1e-6)


@pytest.mark.parametrize("cell", ["rlstm", "lstm"])
def test_matrices_have_std_1_over_sqrt_h_after_truncation(cell):
    """Cell matrices, full-rank rounds and embeddings; sigma is widened to make up for the cut."""
    model = _initialised(cell=cell)
    layer = model.stack.layers[0]
    matrices = [layer.x, layer.h, layer.u, layer.c, layer.mogrifier_up]
    matrices += [model.embedding.input, model.embedding.output]
    for matrix in matrices:
        if matrix is not None:
            assert _is_truncated_normal(matrix.detach(), STD, 2 * STD * math.sqrt(1.3))


@pytest.mark.parametrize("cell", ["rlstm", "lstm"])
def test_pitfall_15_biases_are_drawn_and_the_forget_gates_follow_chrono(cell):
    """b_f = ln u with u uniform on (1, T_max - 1); the other biases are small, and none is zero."""
    bias = _initialised(cell=cell, hidden_size=800, vocab_size=2, mogrifier_rounds=0).stack.layers[0].bias
    i, j, f, o = bias.detach().reshape(4, 800)
    for other in (i, j, o):
        assert other.std().item() == pytest.approx(math.sqrt(1 / 800), rel=0.15)
        assert bool((other != 0).all())
    u = f.exp()
    assert 1.0 <= u.min().item() < 2.0
    assert CHRONO - 2.0 < u.max().item() <= CHRONO - 1.0 + 1e-4
    assert u.mean().item() == pytest.approx(CHRONO / 2, rel=0.05)


@pytest.mark.parametrize("cell", ["rlstm", "lstm"])
def test_without_chrono_forget_biases_are_as_the_others_around_1(cell):
    """The baseline's initialisation: the same width as the other biases, with a mean of one."""
    model = _initialised(cell=cell, hidden_size=800, vocab_size=2, mogrifier_rounds=0, chrono_max=None)
    i, j, f, o = model.stack.layers[0].bias.detach().reshape(4, 800)
    std = math.sqrt(1 / 800)
    for bias, mean in ((i, 0.0), (j, 0.0), (f, 1.0), (o, 0.0)):
        off = bias - mean
        assert off.mean().item() == pytest.approx(0.0, abs=5 * std / math.sqrt(800))
        assert off.std().item() == pytest.approx(std, rel=0.15)
        assert off.abs().max().item() <= 2 * std * math.sqrt(1.3) * (1 + 1e-6)


def test_a_mixture_is_drawn_as_the_other_matrices_are():
    """Projections and mixing weights have std 1 / sqrt(H) after the cut; the projections' biases are 0."""
    mixture = _initialised(softmax_components=15).embedding.mixture
    for weight in (mixture.projection, mixture.weights):
        assert _is_truncated_normal(weight.detach(), STD, 2 * STD * math.sqrt(1.3))
    assert not mixture.projection_bias.any()
    assert not torch.equal(mixture.projection[0], mixture.projection[1])


def test_rounds_and_layers_are_drawn_apart():
    """No two rounds, factors or layers begin alike."""
    first, second = _initialised(num_layers=2, mogrifier_rank=RANK).stack.layers
    assert not torch.equal(first.mogrifier_up[0], first.mogrifier_up[1])
    assert not torch.equal(first.mogrifier_up[0], first.mogrifier_down[0].T)
    assert not torch.equal(first.mogrifier_up, second.mogrifier_up)
    assert not torch.equal(first.x, second.x)


def test_low_rank_factors_give_products_of_variance_0_6_over_h():
    """Both factors have sigma (1 / (H K))^(1/4), cut at two sigma and not made up for."""
    layer = _initialised(mogrifier_rank=RANK).stack.layers[0]
    sigma = (1 / (H * RANK)) ** 0.25
    for factor in (layer.mogrifier_up, layer.mogrifier_down):
        assert _is_truncated_normal(factor.detach(), sigma * 0.8796, 2 * sigma)
    product = layer.mogrifier_up @ layer.mogrifier_down
    assert product.var().item() == pytest.approx(0.6 / H, rel=0.05)


def test_rounds_start_with_zero_bias_and_the_softmax_too():
    """So that gates start around 1 and all symbols start alike."""
    model = _initialised()
    assert not model.stack.layers[0].mogrifier_bias.any()
    assert not model.embedding.bias.any()


def test_a_seed_repeats_all_weights():
    """The generator is the only source of chance."""
    first, again, other = _initialised(), _initialised(), _initialised(seed=1)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
    assert not torch.equal(first.stack.layers[0].x, other.stack.layers[0].x)


@pytest.mark.parametrize("chrono_max", [2.0, 0.0, float("nan")])
def test_a_chrono_range_without_width_is_refused(chrono_max):
    """U(1, 1) has no width; less would take the log of zero."""
    model = LanguageModel(ModelConfig(vocab_size=2, hidden_size=2))
    with pytest.raises(ValueError, match="chrono_max"):
        initialise(model, chrono_max=chrono_max, generator=torch.Generator())
