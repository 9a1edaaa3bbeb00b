"""What peers do over and over while their speed is measured: segments of random tokens.

Shape suffixes: T tokens of a segment, N rows, V vocabulary.
"""

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.torch_backend.fast_weights import Weights
from rlstm_model.torch_backend.full import FullFastWeights
from rlstm_model.adaptation.thread_pool import ThreadPool
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.network.state import State
from rlstm_training.bench.gpt2 import Shape
from rlstm_training.bench.speed import SGEMM_SIZE
from rlstm_training.bench.torch_lstm import TorchLSTM
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.evaluation import Stream, read_together

Work = Callable[[], int]
"""Does what is measured and returns how many tokens that were."""


def sgemm(device: torch.device) -> Work:
    """One large float32 matrix product. Its multiply-adds stand for tokens."""
    square = torch.ones(SGEMM_SIZE, SGEMM_SIZE, device=device)

    def work() -> int:
        functional.linear(square, square)
        return SGEMM_SIZE**3

    return work


def sessions(
    model: LanguageModel,
    rule: Calibration,
    *,
    bos_id: int,
    count: int,
    experts: int = 1,
    graphs: bool = True,
    thread_pool: ThreadPool | None = None,
) -> Work:
    """A segment of each of so many sessions that have learned before: read, scored and learned from.

    A session of several ``experts`` has a static row. ``graphs``: see
    :class:`~rlstm_model.adaptation.learner.Learner`.
    """
    evaluator = DynamicEvaluator(model, rule, bos_id=bos_id, logprobs_only=True, graphs=graphs)
    segment = rule.config.segment
    ids = _random(model, (count + 1, segment)).tolist()
    *_, learned = evaluator.observe(evaluator.start(experts=experts, static=experts > 1), ids[-1])
    # All from one state: a state is a value, and each row gets its own copy of it.
    streams = [Stream(Passage(name="", ids=own, bytes=segment), learned.state) for own in ids[:-1]]

    def work() -> int:
        read_together(evaluator, streams, thread_pool=thread_pool)
        return count * segment

    return work


def one_session(model: LanguageModel, rule: Calibration, *, bos_id: int) -> Work:
    """A segment of one session, which goes on and on."""
    evaluator = DynamicEvaluator(model, rule, bos_id=bos_id, logprobs_only=True)
    ids = _random(model, (rule.config.segment,)).tolist()
    state = evaluator.start(static=False)

    def work() -> int:
        nonlocal state
        for observed in evaluator.observe(state, ids):
            state = observed.state
        return len(ids)

    return work


class EagerSession:
    """The same as one would write it: tokens step by step, automatic differentiation, the rule by weight.

    ``model`` is its own, whose weights follow the text.
    """

    def __init__(self, model: LanguageModel, full: Calibration, ids: Tensor | None = None) -> None:
        """``ids`` ``[S + 1]`` is what is read over and over, each token predicting the next; else random."""
        rule, segment = full.config, full.config.segment
        ids = _random(model, (segment + 1,)) if ids is None else ids
        self.model = copy.deepcopy(model).requires_grad_(True)
        self._read, self._targets = ids[:-1, None], ids[1:]
        self._state = model.initial_state(1)
        self._rate = rule.rate
        self._weights = [weight for weight in self.model.parameters() if weight.numel()]
        self._loaded = [weight.detach().clone() for weight in self._weights]
        rms_P = full.rms_P.to(self._loaded[0])
        parts = [part for part in FullFastWeights(model).split(rms_P).values() if part.numel()]
        mean = float(rms_P.double().mean())
        self._scales = [part + rule.epsilon * mean for part in parts]
        self._pulls = [(rule.decay / mean * part).clamp(max=1.0) for part in parts]

    def __call__(self) -> int:
        """A segment."""
        state, features = self._state, []
        for ids_1 in self._read:
            feature, state = self.model.step(ids_1, state)
            features.append(feature)
        loss = functional.cross_entropy(self.model.logits(torch.cat(features)), self._targets)
        gradients = torch.autograd.grad(loss, self._weights)
        self._state = state.detach()
        self._step(gradients)
        return len(self._targets)

    @torch.no_grad()
    def _step(self, gradients: Sequence[Tensor]) -> None:
        for place, gradient in enumerate(gradients):
            weight, loaded = self._weights[place], self._loaded[place]
            pull = self._pulls[place] * (weight - loaded)
            weight.sub_(self._rate * gradient / self._scales[place] + pull)


def scoring(weights: Weights, segment: int, rows: int, thread_pool: ThreadPool | None = None) -> Work:
    """A segment of so many texts, scored with the weights as loaded; a ``thread_pool`` shares the rows."""
    if thread_pool is not None:
        shares = [scoring(weights, segment, own) for own in _shares(rows, weights.tile, thread_pool.threads)]
        return lambda: sum(thread_pool.map(_done, shares))
    state = weights.model.initial_state(rows)
    ids, targets = _random(weights.model, (2, segment, rows))

    @torch.no_grad()
    def work() -> int:
        nonlocal state
        logits_TNV, state = weights.read(None, ids, state)
        _score(logits_TNV, targets)
        return rows * segment

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
        return rows * segment

    return work


def gpt2_scoring(transformer: nn.Module, shape: Shape, rows: int, device: torch.device) -> Work:
    """The same by GPT-2, whose windows each begin with nothing to look back on."""
    ids, targets = torch.randint(shape.vocabulary, (2, rows, shape.context), device=device)

    @torch.no_grad()
    def work() -> int:
        _score(transformer(input_ids=ids).logits, targets)
        return rows * shape.context

    return work


def _done(work: Work) -> int:
    return work()


def _shares(rows: int, tile: int, threads: int) -> list[int]:
    """The rows of each thread: whole tiles but for the last row's, as equal as they can be."""
    tiles = -(-rows // tile)
    count = min(threads, tiles)
    ends = [min(rows, tile * (tiles * share // count)) for share in range(count + 1)]
    return [end - start for start, end in pairwise(ends)]


def _score(logits: Tensor, targets: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1).gather(-1, targets.unsqueeze(-1))


def _random(model: LanguageModel, shape: tuple[int, ...]) -> Tensor:
    return torch.randint(model.config.vocab_size, shape, device=model.embedding.input.device)
