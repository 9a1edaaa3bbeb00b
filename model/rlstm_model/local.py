"""The model as a library: load it, score a text, observe a stream. For notebooks and for ``rlstm --local``.

import rlstm_model

model = rlstm_model.load("bytes-small")
print(model.score("It was the best of times.").bits_per_byte)
print(model.stream().observe(open("novel.txt").read()).gain_bits)
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from rlstm_model import checkpoint as checkpoints
from rlstm_model.adaptation.calibration import CalibrationSet
from rlstm_model.adaptation.calibration_file import load_calibration
from rlstm_model.adaptation.evaluator import DynamicEvaluator, Reader, frozen_reader
from rlstm_model.adaptation.state import Adapt, AdaptedState, Cursor
from rlstm_model.checkpoint import Checkpoint, CheckpointError
from rlstm_model.sampling import SamplingConfig, sample, uniform
from rlstm_model.scores import Floats, TextScores, TokenScores
from rlstm_model.vocab import Vocab


@dataclass(frozen=True, kw_only=True, eq=False)
class StreamScores:
    """One observed piece of a stream: each token scored by the weights as they were before it.

    ``scores`` are those of what adapted, ``static_logprobs`` those of the weights as loaded, in nats.
    """

    scores: TokenScores
    static_logprobs: Floats
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
        return -float(self.static_logprobs.sum(dtype=np.float64)) / math.log(2)

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
        scores, static, guards = list[TokenScores](), list[Floats](), list[str]()
        updates = 0
        for part in self._evaluator.observe(self.state, ids, learn=learn):
            self.state = part.state  # the only state that is kept: each may hold a whole delta
            scores.append(part.scores)
            static += [] if part.static_logprobs is None else [part.static_logprobs]
            guards += part.guards
            updates += part.updates
        return StreamScores(
            scores=TokenScores.concatenate(scores),
            static_logprobs=np.concatenate(static),
            bytes=sum(len(self._vocab.token_bytes(token)) for token in ids),
            updates=updates,
            guards=tuple(guards),
        )

    def generate(
        self, max_tokens: int, *, sampling: SamplingConfig | None = None, seed: int = 0
    ) -> Iterator[str]:
        """Continue the stream in pieces of text; the stream itself stays as it is."""
        reader = self._evaluator.reader(self.state)
        return _continue(reader, reader.cursor, self._vocab, max_tokens, sampling or SamplingConfig(), seed)


class BeamScorer:
    """Scores texts for a beam search by a stream as it is when the search starts; nothing is learned.

    A state is a place in a text, and a value: branches share the one that they come from, and it may be kept.
    Scores are natural logarithms. A word comes with the space before it.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.start()

    def start(self) -> Cursor:
        """Begin a search after all that the stream has observed."""
        evaluator = self._stream._evaluator
        self._reader = replace(evaluator.reader(self._stream.state), logprobs_only=True)
        return self._reader.cursor

    def advance(self, state: Cursor, text: str) -> tuple[Cursor, float]:
        """Go on with a text: the state after it, and its score. Raises InvalidText for a lone surrogate."""
        ids = self._stream._vocab.encode(text).ids
        if not ids:
            return state, 0.0
        scores, after = self._reader.score(state, ids)
        return after, scores.total

    def score(self, state: Cursor, text: str) -> float:
        """The score of a text that might come next."""
        return self.advance(state, text)[1]

    def finish(self, state: Cursor) -> float:
        """The score of the line's end."""
        return self._reader.score(state, (self._stream._vocab.eos_id,))[0].total


class LocalModel:
    """A checkpoint in this process."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    @property
    def vocab(self) -> Vocab:
        """The model's vocabulary."""
        return self.checkpoint.vocab

    def score(self, text: str, *, top: int = 0) -> TextScores:
        """Scores of a text by the model as loaded, as the beginning of all text: its first token follows bos.

        Raises ValueError when it holds no token, InvalidText for a lone surrogate.
        """
        encoded = self.vocab.encode(text)
        tokens, _ = self.reader.score(self.reader.cursor, encoded.ids, top)
        return TextScores(encoded=encoded, tokens=tokens, bytes=len(text.encode()), words=len(text.split()))

    def stream(self, *, rate_scale: float = 1.0, adapt: Adapt = "both") -> Stream:
        """A new stream that learns: by fast weights, by a memory of its newest tokens, or by both.

        Raises CheckpointError when the checkpoint has no calibration.
        """
        experts = 2 if adapt == "both" else 1
        start = self.evaluator.start(rate_scale=rate_scale, experts=experts, adapt=adapt)
        return Stream(self.evaluator, self.vocab, start)

    def generate(
        self, prompt: str, max_tokens: int, *, sampling: SamplingConfig | None = None, seed: int = 0
    ) -> Iterator[str]:
        """Continue ``prompt`` by the model as loaded, in pieces of text."""
        cursor, ids = self.reader.cursor, self.vocab.encode(prompt).ids
        if ids:
            _, cursor = self.reader.score(cursor, ids)
        return _continue(self.reader, cursor, self.vocab, max_tokens, sampling or SamplingConfig(), seed)

    @cached_property
    def reader(self) -> Reader:
        """Reads with the weights as loaded."""
        return frozen_reader(self.checkpoint.parameters, self.vocab.bos_id)

    @cached_property
    def calibrated(self) -> CalibrationSet:
        """How the model may learn. Raises CheckpointError where nothing says so, CalibrationError."""
        path = self.checkpoint.adaptation_file
        if path is None:
            folder = self.checkpoint.folder
            raise CheckpointError(
                f"{folder}: has no calibration, it cannot learn; run rlstm calibrate {folder} --corpus TEXT"
            )
        return load_calibration(path, self.checkpoint.parameters.config)

    @cached_property
    def evaluator(self) -> DynamicEvaluator:
        """Learns by the calibration's default rule. Raises as ``calibrated``."""
        calibration, bos_id = self.calibrated.choose(), self.vocab.bos_id
        return DynamicEvaluator.of(self.checkpoint.parameters, calibration, bos_id=bos_id)


def load(name_or_path: str | Path) -> LocalModel:
    """A shipped model by name, or the checkpoint in a folder. Raises CheckpointError."""
    return LocalModel(checkpoints.load(name_or_path))


def _continue(
    reader: Reader,
    cursor: Cursor,
    vocab: Vocab,
    max_tokens: int,
    sampling: SamplingConfig,
    seed: int,
) -> Iterator[str]:
    decoder, seen = vocab.decoder(), set[int]()
    for index in range(max_tokens):
        following = reader.next(cursor)
        token = sample(following.log_probs_V, sampling, uniform(seed, 0, index), seen)
        cursor = following.after(token)
        seen.add(token)
        if piece := decoder.feed(token):
            yield piece
    if rest := decoder.flush():
        yield rest
