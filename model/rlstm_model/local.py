"""The model as a library: load it, score a text, observe a stream. For notebooks and for ``rlstm --local``.

import rlstm_model

model = rlstm_model.load("bytes-small")
print(model.score("It was the best of times.").bits_per_byte)
print(model.stream().observe(open("novel.txt").read()).gain_bits)
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rlstm_model import checkpoint as checkpoints
from rlstm_model.adaptation.calibration_file import load_calibration
from rlstm_model.adaptation.evaluator import AdaptedState, Cursor, DynamicEvaluator
from rlstm_model.adaptation.reader import NextToken, frozen_next
from rlstm_model.checkpoint import Checkpoint, CheckpointError
from rlstm_model.sampling import SamplingConfig, sample, uniform
from rlstm_model.scoring import TextScores, TokenScores, score, score_text
from rlstm_model.vocab import Vocab

NextOf = Callable[[Cursor], NextToken]


@dataclass(frozen=True, kw_only=True, eq=False)
class StreamScores:
    """One observed piece of a stream: each token scored by the weights as they were before it.

    ``scores`` are the adapted weights', ``static_logprobs`` those of the weights as loaded, in nats.
    """

    scores: TokenScores
    static_logprobs: Tensor
    bytes: int
    updates: int
    guards: tuple[str, ...]

    @property
    def bits(self) -> float:
        """Bits that the adapting model needed."""
        return -self.scores.total / math.log(2)

    @property
    def static_bits(self) -> float:
        """Bits that the model as loaded needed."""
        return -float(self.static_logprobs.double().sum()) / math.log(2)

    @property
    def gain_bits(self) -> float:
        """Bits saved by learning."""
        return self.static_bits - self.bits

    @property
    def bits_per_byte(self) -> float:
        """Bits a byte of UTF-8; 0 for no bytes."""
        return self.bits / self.bytes if self.bytes else 0.0

    @property
    def static_bits_per_byte(self) -> float:
        """The same for the model as loaded."""
        return self.static_bits / self.bytes if self.bytes else 0.0


class Stream:
    """A text in progress whose model learns as it reads. ``state`` is a value: keep it to come back."""

    def __init__(self, evaluator: DynamicEvaluator, vocab: Vocab, state: AdaptedState) -> None:
        self._evaluator = evaluator
        self._vocab = vocab
        self.state = state

    def observe(self, text: str, *, learn: bool = True) -> StreamScores:
        """Score ``text``, then learn from it. Raises ValueError when it holds no token."""
        return self.observe_ids(self._vocab.encode(text).ids, learn=learn)

    def observe_ids(self, ids: list[int], *, learn: bool = True) -> StreamScores:
        """The same for ids. Raises ValueError when there are none, InvalidToken outside the vocabulary."""
        scores, static, guards = list[TokenScores](), list[Tensor](), list[str]()
        updates = 0
        for part in self._evaluator.observe(self.state, ids, learn=learn):
            self.state = part.state  # the only state that is kept: each may hold a whole delta
            scores.append(part.scores)
            static += [] if part.static_logprobs is None else [part.static_logprobs]
            guards += part.guards
            updates += part.updates
        return StreamScores(
            scores=TokenScores.concatenate(scores),
            static_logprobs=torch.cat(static),
            bytes=sum(len(self._vocab.token_bytes(token)) for token in ids),
            updates=updates,
            guards=tuple(guards),
        )

    def generate(
        self, max_tokens: int, *, sampling: SamplingConfig | None = None, seed: int = 0
    ) -> Iterator[str]:
        """Continue the stream in pieces of text; the stream itself stays as it is."""
        reader = self._evaluator.reader(self.state)
        return _continue(
            reader.next, reader.cursor, self._vocab, max_tokens, sampling or SamplingConfig(), seed
        )


class LocalModel:
    """A checkpoint in this process."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._evaluator: DynamicEvaluator | None = None

    @property
    def vocab(self) -> Vocab:
        """The model's vocabulary."""
        return self.checkpoint.vocab

    def score(self, text: str, *, top: int = 0) -> TextScores:
        """Scores of a text by the model as loaded. Raises ValueError when it holds no token."""
        return score_text(self.checkpoint.model, self.vocab, text, top)

    def stream(self, *, rate_scale: float = 1.0) -> Stream:
        """A new stream that learns. Raises CheckpointError when the checkpoint has no calibration."""
        evaluator = self._evaluator_of_checkpoint()
        return Stream(evaluator, self.vocab, evaluator.start(rate_scale=rate_scale))

    def generate(
        self, prompt: str, max_tokens: int, *, sampling: SamplingConfig | None = None, seed: int = 0
    ) -> Iterator[str]:
        """Continue ``prompt`` by the model as loaded, in pieces of text."""
        model, ids = self.checkpoint.model, self.vocab.encode(prompt).ids
        cursor = Cursor(model.initial_state(1), self.vocab.bos_id)
        if ids:
            _, state = score(model, ids, state=cursor.state, last=cursor.last)
            cursor = Cursor(state, ids[-1])
        return _continue(
            lambda cursor: frozen_next(model, cursor),
            cursor,
            self.vocab,
            max_tokens,
            sampling or SamplingConfig(),
            seed,
        )

    def _evaluator_of_checkpoint(self) -> DynamicEvaluator:
        if self._evaluator is None:
            path = self.checkpoint.adaptation_file
            if path is None:
                raise CheckpointError(
                    f"{self.checkpoint.folder} has no {checkpoints.ADAPTATION}: calibrate it first"
                )
            calibration = load_calibration(path, self.checkpoint.model).choose()
            self._evaluator = DynamicEvaluator(self.checkpoint.model, calibration, bos_id=self.vocab.bos_id)
        return self._evaluator


def load(name_or_path: str | Path, device: str | torch.device = "cpu") -> LocalModel:
    """A shipped model by name, or the checkpoint in a folder. Raises CheckpointError."""
    return LocalModel(checkpoints.load(name_or_path, device))


def _continue(
    next_token: NextOf,
    cursor: Cursor,
    vocab: Vocab,
    max_tokens: int,
    sampling: SamplingConfig,
    seed: int,
) -> Iterator[str]:
    decoder, seen = vocab.decoder(), set[int]()
    for index in range(max_tokens):
        following = next_token(cursor)
        token = sample(following.log_probs_V, sampling, uniform(seed, 0, index), seen)
        cursor = following.after(token)
        seen.add(token)
        if piece := decoder.feed(token):
            yield piece
    if rest := decoder.flush():
        yield rest
