"""Shared by the tests of adaptation: tiny models with calibrations, and dynamic evaluation by hand."""

import copy
import hashlib
import json
from typing import NamedTuple

import pytest
import torch
from rlstm_model.scoring import TokenScores
from safetensors.torch import load, save

from rlstm_model.adaptation.calibration import (
    Calibration,
    CalibrationSet,
    GradientStatistics,
    save_calibration,
)
from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.torch_backend.bases import SubspaceStatistics
from rlstm_model.torch_backend.full import FullFastWeights
from rlstm_model.torch_backend.subspace import Basis, SubspaceFastWeights

BOS = 1
SEGMENT = 4


def _config(**changes):
    values = {"kind": "full", "num_fast_weights": 1, "rule": "rms", "rate": 0.02, "segment": SEGMENT}
    statistics = {"reduction": "mean", "statistics_batch": 1, "statistics_segments": 7}
    return AdaptationConfig(**{**values, **statistics, **changes})


def _calibration(model, *, seed=5, rank=None, **changes):
    """Statistics between a tenth and one, and a rule under which a few segments move a tiny model.

    ``rank`` makes them those of a random subspace.
    """
    like = next(model.parameters())
    generator = torch.Generator().manual_seed(seed)
    space = None if rank is None else _subspace(model, rank)
    size = sum(weight.numel() for weight in model.parameters()) if space is None else space.size
    rms_P = torch.empty(size, dtype=like.dtype).uniform_(0.1, 1.0, generator=generator)
    kind = "full" if space is None else "subspace"
    return Calibration(config=_config(kind=kind, num_fast_weights=size, **changes), rms_P=rms_P, space=space)


def _subspace(model, rank):
    """Cores of all matrices of a model between random axes, and all biases."""
    generator = torch.Generator().manual_seed(4)
    bases, biases = {}, []
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            biases.append(name)
        elif weight.numel():
            *rounds, rows, columns = weight.shape
            left, right = (
                torch.linalg.qr(torch.randn(*rounds, side, min(side, rank), generator=generator))[0].to(
                    weight
                )
                for side in (rows, columns)
            )
            bases[name] = Basis(left, right.mT.contiguous())
    return SubspaceFastWeights(model, bases, biases)


def _statistics(model, *, rank=None, seed=5):
    """Statistics between a tenth and one; with a ``rank``, those of random axes too."""
    generator = torch.Generator().manual_seed(seed)
    rms = {
        name: torch.empty_like(weight).uniform_(0.1, 1.0, generator=generator)
        for name, weight in model.named_parameters()
    }
    full_P = _flat(rms.values())
    if rank is None:
        return GradientStatistics(full_P=full_P)
    space = _subspace(model, rank)
    cores = {
        name: torch.empty(basis.core, dtype=full_P.dtype).uniform_(0.1, 1.0, generator=generator)
        for name, basis in space.bases.items()
    }
    biases = {name: rms[name] for name in space.biases}
    return GradientStatistics(full_P=full_P, subspace=SubspaceStatistics(space.bases, cores | biases))


def _rules_of(measured):
    """A rule for each kind that statistics have, with nothing at its usual value."""
    sizes = {"subspace": 40, "output_bias": 11, "full": len(measured.full_P)}
    if measured.subspace is None:
        del sizes["subspace"]
    unusual = {"decay": 0.1, "epsilon": 0.3, "max_norm_ratio": 0.4, "reduction": "sum"}
    return tuple(_config(kind=kind, num_fast_weights=size, **unusual) for kind, size in sizes.items())


class Segment(NamedTuple):
    """One segment of dynamic evaluation by hand: log-probabilities, then what learning made of it."""

    logprobs: torch.Tensor
    gradient_P: torch.Tensor
    delta_P: torch.Tensor


def _by_hand(model, calibration, ids, learn=None):
    """Krause's way: one copied model, plain automatic differentiation, one whole segment after another."""
    config, learn = calibration.config, [True] * len(ids) if learn is None else learn
    model = copy.deepcopy(model).requires_grad_(True)
    weights = list(model.parameters())
    slow = [weight.detach().clone() for weight in weights]
    rms = [part.view_as(weight) for part, weight in zip(_parts(calibration, weights), weights, strict=True)]
    mean = calibration.rms_P.mean()
    state, last, segments = model.initial_state(1), BOS, []
    for start in range(0, len(ids), config.segment):
        logprobs, state = [], state.detach()
        for token in ids[start : start + config.segment]:
            features, state = model.step(torch.tensor([last]), state)
            logprobs.append(model.log_probs(features)[0, token])
            last = token
        flags = learn[start : start + config.segment]
        loss = -sum(logprob for logprob, flag in zip(logprobs, flags, strict=True) if flag)
        gradients = [torch.zeros_like(weight) for weight in weights]
        if len(flags) == config.segment and any(flags):
            loss = loss / config.segment if config.reduction == "mean" else loss
            gradients = torch.autograd.grad(loss, weights, materialize_grads=True)
            with torch.no_grad():
                for weight, first, g, r in zip(weights, slow, gradients, rms, strict=True):
                    direction = g / (r + config.epsilon * mean) if config.rule == "rms" else g
                    ratio = r / mean if config.rule == "rms" else torch.ones_like(r)
                    pull = torch.clamp(config.decay * ratio, max=1.0) * (first - weight)
                    weight += pull - config.rate * direction
        delta = [weight.detach() - first for weight, first in zip(weights, slow, strict=True)]
        segments.append(Segment(torch.stack(logprobs).detach(), _flat(gradients), _flat(delta)))
    return segments


def _parts(calibration, weights):
    return calibration.rms_P.split([weight.numel() for weight in weights])


def _flat(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


def _observe(evaluator, ids, state=None, **options):
    """All slices, and the state after them."""
    state = evaluator.start() if state is None else state
    parts = list(evaluator.observe(state, ids, **options))
    return parts, parts[-1].state if parts else state


def _observe_runs(evaluator, runs, state=None):
    """Observe (ids, learn) after (ids, learn): all slices, and the state."""
    parts, state = [], evaluator.start() if state is None else state
    for ids, learn in runs:
        more, state = _observe(evaluator, ids, state, learn=learn)
        parts += more
    return parts, state


def _logprobs(parts):
    return TokenScores.concatenate([part.scores for part in parts]).logprobs


def _static_logprobs(parts):
    return torch.cat([part.static_logprobs for part in parts])


def _stored(state):
    """Tensors and header, through bytes and back."""
    return load(save(state.tensors())), json.loads(json.dumps(state.header(), allow_nan=False))


def _digest(*tensors):
    """sha256 over the bits of tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="session")
def tiny_model(random_model):
    """Makes models of 11 tokens and a few hundred weights, as a checkpoint would load them."""

    def make(**changes):
        shape = {"dtype": torch.float32, "scale": 0.4, "mogrifier_rounds": 3, "mogrifier_rank": 2}
        return random_model(**{**shape, **changes}).eval().requires_grad_(False)

    return make


@pytest.fixture(scope="session")
def config():
    return _config


@pytest.fixture(scope="session")
def calibration():
    return _calibration


@pytest.fixture(scope="session")
def statistics():
    return _statistics


@pytest.fixture(scope="session")
def make_calibrated(tiny_model):
    """Makes rules of all kinds with their statistics."""

    def make(*, rank=2, **shape):
        model = tiny_model(**shape)
        measured = _statistics(model, rank=rank)
        return CalibrationSet(model=model, statistics=measured, choices=_rules_of(measured))

    return make


@pytest.fixture
def good_file(make_calibrated, tmp_path):
    """A calibration file with everything in it."""
    path = tmp_path / "adaptation.safetensors"
    save_calibration(path, make_calibrated())
    return path


@pytest.fixture(scope="session")
def subspace():
    """Makes a random subspace of a model, of a rank."""
    return _subspace


@pytest.fixture(scope="session")
def wide_model(tiny_model):
    """A model wide enough that a row's last bits depend on how many rows a product has."""
    return tiny_model(hidden_size=48, vocab_size=40, scale=0.15)


@pytest.fixture(scope="session")
def make_evaluator(tiny_model):
    """Makes an evaluator of a tiny model, or of a given one, under a config with changes."""

    def make(model=None, **changes):
        model = tiny_model() if model is None else model
        return DynamicEvaluator(model, _calibration(model, **changes), bos_id=BOS)

    return make


@pytest.fixture(scope="session")
def evaluator(make_evaluator):
    """An evaluator of a tiny model, whose deltas decay."""
    return make_evaluator(decay=0.05)


@pytest.fixture(scope="session")
def observe():
    """Has an evaluator observe tokens: all slices, and the state after them."""
    return _observe


@pytest.fixture(scope="session")
def observe_runs():
    """The same for runs of tokens that are learned from or not."""
    return _observe_runs


@pytest.fixture(scope="session")
def logprobs():
    return _logprobs


@pytest.fixture(scope="session")
def static_logprobs():
    return _static_logprobs


@pytest.fixture
def bad_gradients(monkeypatch):
    """Makes a row's gradients of the numbered segments NaN, or any value."""

    def install(numbers, *, row=0, value=float("nan")):
        for kind in (FullFastWeights, SubspaceFastWeights):
            monkeypatch.setattr(kind, "learn", injected(kind.learn, numbers, row, value))

    def injected(original, numbers, row, value):
        seen = []

        def learn(*arguments, **options):
            done = original(*arguments, **options)
            if len(seen) in numbers:
                done.gradient_NP[row, 3] = value
            seen.append(True)
            return done

        return learn

    return install


@pytest.fixture(scope="session")
def draw_lesson():
    """Draws deltas of rows of fast weights in float64, a state in mid-text, inputs and targets."""

    def draw(fast_weights, *, rows, time):
        model = fast_weights.model
        generator = torch.Generator().manual_seed(2)
        delta = 0.3 * torch.randn(rows, fast_weights.size, dtype=torch.float64, generator=generator)
        ids = torch.randint(11, (time + 4, rows), generator=generator)
        _, state = model(ids[:4], model.initial_state(rows))
        return delta, state, ids[4:], torch.randint(11, (time, rows), generator=generator)

    return draw


@pytest.fixture(scope="session")
def stored():
    return _stored


@pytest.fixture(scope="session")
def by_hand():
    return _by_hand


@pytest.fixture(scope="session")
def digest():
    return _digest


@pytest.fixture(scope="session")
def flat():
    return _flat


@pytest.fixture(scope="session")
def text():
    """Makes random tokens."""

    def make(length, *, seed=3, vocab_size=11):
        return torch.randint(vocab_size, (length,), generator=torch.Generator().manual_seed(seed)).tolist()

    return make
