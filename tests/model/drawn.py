"""Random models, and what rows may change of them, for tests of what computes with arrays."""

import numpy as np
from tests.model import reference

from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.config import ModelConfig
from rlstm_model.native.packed import Axes, Space
from rlstm_model.parameters import Parameters, shapes


def config_of(**changes):
    return ModelConfig(
        **{"vocab_size": 19, "hidden_size": 10, "num_layers": 2, "mogrifier_rank": 4, **changes}
    )


def draw(generator, shape, scale, dtype=np.float32):
    return (generator.normal(size=shape) * scale).astype(dtype)


def draw_weights(config, generator, dtype=np.float32, scale=1.0):
    return {
        name: draw(generator, shape, 0.2 if name.endswith("bias") else scale / np.sqrt(shape[-1] or 1), dtype)
        for name, shape in shapes(config).items()
    }


def parameters_of(seed=0, *, dtype=np.float32, scale=1.0, **changes):
    config = config_of(**changes)
    return Parameters(config, draw_weights(config, np.random.default_rng(seed), dtype, scale))


def draw_space(weights, generator, ranks=(3, 2)):
    """Axes of all matrices, and all biases."""
    axes, biases = {}, []
    for name, weight in weights.items():
        if not weight.size or ".mixture." in name:
            continue
        if name.endswith("bias"):
            biases.append(name)
            continue
        r, q = (min(rank, side) for rank, side in zip(ranks, weight.shape[-2:], strict=True))
        left = draw(generator, (*weight.shape[:-1], r), 0.5)
        right = draw(generator, (*weight.shape[:-2], q, weight.shape[-1]), 0.5)
        axes[name] = Axes(left, right)
    return Space(axes, biases)


def elements_of(space, weights):
    """D, of cores and biases."""
    cores = sum(axes.left.shape[-1] * int(np.prod(axes.right.shape[:-1])) for axes in space.axes.values())
    return cores + sum(weights[name].size for name in space.biases)


def merged(weights, space, elements_D):
    """The weights of one row, in float64: with its cores written out."""
    whole = {name: weight.astype(np.float64) for name, weight in weights.items()}
    done = 0
    for name, (left, right) in space.axes.items():
        shape = (*left.shape[:-2], left.shape[-1], right.shape[-2])
        core = elements_D[done : done + int(np.prod(shape))].reshape(shape)
        whole[name] = whole[name] + left.astype(np.float64) @ core @ right.astype(np.float64)
        done += core.size
    for name in space.biases:
        part = elements_D[done : done + whole[name].size]
        whole[name] = whole[name] + part.reshape(whole[name].shape)
        done += part.size
    return whole


def expected(config, weights, ids, h, c, temperature=1.0):
    """Log-probabilities after every token, and the last state, of one row, by the slow reference."""
    ones = np.ones((config.num_layers, 1, config.hidden_size))
    every = np.ones((len(ids), 1, config.hidden_size))
    layered = np.ones((config.num_layers, len(ids), 1, config.hidden_size))
    masks = {"input": every, "output": every, "state": ones, "cell": layered}
    features, _, h, c = reference.forward(
        config, weights, np.array(ids)[:, None], h[:, None], c[:, None], masks
    )
    output = weights.get("embedding.output", weights["embedding.input"])
    bias, rows = weights["embedding.bias"], []
    for feature in features[:, 0]:
        if config.softmax_components == 1:
            rows.append(np.log(reference.softmax(temperature * (output @ feature + bias))))
            continue
        prefix = "embedding.mixture."
        latents = np.tanh(weights[f"{prefix}projection"] @ feature + weights[f"{prefix}projection_bias"])
        parts = [reference.softmax(temperature * (output @ latent + bias)) for latent in latents]
        rows.append(np.log(reference.softmax(weights[f"{prefix}weights"] @ feature) @ parts))
    return np.array(rows), h[:, 0], c[:, 0]


def rule_of(size, **changes):
    """A rule under which a few segments move a small model."""
    values = {"kind": "subspace", "num_fast_weights": size, "rule": "rms", "rate": 0.02, "segment": 4}
    statistics = {"reduction": "mean", "statistics_batch": 1, "statistics_segments": 7}
    return AdaptationConfig(**{**values, **statistics, **changes})


def calibration_of(parameters, seed=5, *, space=None, **changes):
    """Statistics between a tenth and one, of all cores and biases between random axes or of a ``space``."""
    generator = np.random.default_rng(seed)
    space = draw_space(parameters.arrays, generator) if space is None else space
    size = elements_of(space, parameters.arrays) if space.chosen_P is None else len(space.chosen_P)
    if space.whole:
        size = sum(array.size for array in parameters.arrays.values())
    rms_P = generator.uniform(0.1, 1.0, size).astype(np.float32)
    return Calibration(config=rule_of(size, **changes), rms_P=rms_P, space=space)
