"""What peers do over and over while their speed is measured: segments of random tokens.

Shape suffixes: T tokens of a segment, N rows, V vocabulary.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlstm_model.adaptation.adapter import Adapter
from rlstm_model.adaptation.calibration import Calibrated, Calibration
from rlstm_model.adaptation.full import FullFastWeights
from rlstm_model.language_model import LanguageModel
from rlstm_model.state import State
from rlstm_training.bench.adaptation import idle_rule
from rlstm_training.bench.gpt2 import Shape
from rlstm_training.bench.torch_lstm import TorchLSTM
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.evaluation import Stream, read_together

Work = Callable[[], int]
"""Does what is measured and returns how many tokens that were."""


def sessions(model: LanguageModel, rule: Calibration, *, bos_id: int, count: int) -> Work:
    """A segment of each of so many sessions that have learned before: read, scored and learned from."""
    adapter = Adapter(model, rule, bos_id=bos_id, logprobs_only=True)
    segment = rule.config.segment
    ids = _random(model, (count + 1, segment)).tolist()
    *_, learned = adapter.observe(adapter.start(static=False), ids[-1])
    # All from one state: a state is a value, and each row gets its own copy of it.
    streams = [Stream(Passage(name="", ids=own, bytes=segment), learned.state) for own in ids[:-1]]

    def work() -> int:
        read_together(adapter, streams)
        return count * segment

    return work


def one_session(model: LanguageModel, rule: Calibration, *, bos_id: int) -> Work:
    """A segment of one session, which goes on and on."""
    adapter = Adapter(model, rule, bos_id=bos_id, logprobs_only=True)
    ids = _random(model, (rule.config.segment,)).tolist()
    state = adapter.start(static=False)

    def work() -> int:
        nonlocal state
        for observed in adapter.observe(state, ids):
            state = observed.state
        return len(ids)

    return work


def eager_session(model: LanguageModel, full: Calibration) -> Work:
    """The same as one would write it: tokens step by step, automatic differentiation, the rule by weight."""
    rule, own = full.config, copy.deepcopy(model).requires_grad_(True)
    weights = [weight for weight in own.parameters() if weight.numel()]
    loaded = [weight.detach().clone() for weight in weights]
    rms = [part for part in FullFastWeights(model).split(full.rms_P.to(loaded[0])).values() if part.numel()]
    mean = float(full.rms_P.double().mean())
    scales = [part + rule.epsilon * mean for part in rms]
    pulls = [(rule.decay / mean * part).clamp(max=1.0) for part in rms]
    ids, targets = _random(model, (2, rule.segment, 1))
    state = own.initial_state(1)

    def work() -> int:
        nonlocal state
        after, features = state, []
        for token in ids:
            feature, after = own.step(token, after)
            features.append(feature)
        logits = own.logits(torch.cat(features))
        gradients = torch.autograd.grad(functional.cross_entropy(logits, targets[:, 0]), weights)
        state = after.detach()
        with torch.no_grad():
            for weight, gradient, scale, start, pull in zip(
                weights, gradients, scales, loaded, pulls, strict=True
            ):
                weight.sub_(rule.rate * gradient / scale + pull * (weight - start))
        return len(ids)

    return work


def scoring(calibrated: Calibrated, rows: int) -> Work:
    """A segment of so many texts, scored with the weights as loaded."""
    idle = idle_rule(calibrated)
    fast = idle.fast_weights(calibrated.model)
    state = calibrated.model.initial_state(rows)
    ids, targets = _random(calibrated.model, (2, idle.config.segment, rows))

    @torch.no_grad()
    def work() -> int:
        nonlocal state
        logits_TNV, state = fast.read(None, ids, state)
        _score(logits_TNV, targets)
        return ids.numel()

    return work


def lstm_scoring(lstm: TorchLSTM, segment: int, rows: int) -> Work:
    """The same by torch.nn.LSTM."""
    ids, targets = _random(lstm, (2, segment, rows))
    state: State = lstm.initial_state(rows)

    @torch.no_grad()
    def work() -> int:
        nonlocal state
        features, state = lstm(ids, state)
        _score(lstm.logits(features), targets)
        return ids.numel()

    return work


def gpt2_scoring(transformer: nn.Module, shape: Shape, rows: int, device: torch.device) -> Work:
    """The same by GPT-2, whose windows each begin with nothing to look back on."""
    ids, targets = torch.randint(shape.vocabulary, (2, rows, shape.context), device=device)

    @torch.no_grad()
    def work() -> int:
        _score(transformer(input_ids=ids).logits, targets)
        return ids.numel()

    return work


def _score(logits: Tensor, targets: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1).gather(-1, targets.unsqueeze(-1))


def _random(model: LanguageModel, shape: tuple[int, ...]) -> Tensor:
    return torch.randint(model.config.vocab_size, shape, device=model.embedding.input.device)
