"""Evaluation: static and dynamic, in nats summed in float64.

Published numbers are read one token after the other as a session would: batch 1, the first token follows
``bos``, every token counts, ends of lines too, and the state is carried over them (docs/mathematics.md
§2.12).
Shape suffixes: T time, B batch rows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from rlstm_model.adaptation.backend import Backend, NativeBackend
from rlstm_model.adaptation.batch import run_batch
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.evaluator import DynamicEvaluator, reader_of
from rlstm_model.adaptation.items import ObservedChunk
from rlstm_model.adaptation.state import AdaptedState
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.torch_backend.backend import TorchBackend
from rlstm_model.torch_backend.fast_weights import slow_norm
from rlstm_model.vocab import VocabKind
from rlstm_training.batches import Ids
from rlstm_training.corpora.texts import Passage

Advance = Callable[[int], None]

# Characters of Unicode and bytes of UTF-8 give different numbers for one text.
PUBLISHED: Mapping[VocabKind, str] = {
    "words": "perplexity",
    "characters": "bits per character",
    "bytes": "bits per byte",
    "subwords": "bits per byte",
    "pieces": "bits per byte",
}

_SLICE = 4096


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a text cost, in nats: under the slow weights, and under weights that followed it."""

    text: str
    tokens: int
    bytes: int
    unknown: int
    static_nats: float | None
    adapted_nats: float | None = None
    updates: int = 0
    guards: int = 0

    @classmethod
    def of(cls, passage: Passage, static: float | None = None, **costs: Any) -> "Evaluation":
        """What ``passage`` cost."""
        sizes = {"tokens": len(passage.ids), "bytes": passage.bytes, "unknown": passage.unknown}
        return cls(text=passage.name, static_nats=static, **sizes, **costs)

    def published(self, kind: VocabKind, nats: float) -> float:
        """``nats`` in the measure that is published for tokens of a kind: see :data:`PUBLISHED`."""
        if kind == "words":
            return self.perplexity(nats)
        return self.bits_per_token(nats) if kind == "characters" else self.bits_per_byte(nats)

    def bits_per_byte(self, nats: float) -> float:
        """Bits for a byte of the text's UTF-8."""
        return nats / math.log(2) / self.bytes

    def bits_per_token(self, nats: float) -> float:
        """Bits for a token: for bytes and characters what is published as bits per character."""
        return nats / math.log(2) / self.tokens

    def perplexity(self, nats: float) -> float:
        """Per token (cut at e^700)."""
        return math.exp(min(nats / self.tokens, 700.0))

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all of it."""
        return {
            "text": self.text,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "unknown": self.unknown,
            "static": self._measures(self.static_nats),
            "adapted": self._measures(self.adapted_nats),
            "updates": self.updates,
            "guards": self.guards,
        }

    def _measures(self, nats: float | None) -> dict[str, float] | None:
        if nats is None:
            return None
        return {
            "nats": nats,
            "bits_per_byte": self.bits_per_byte(nats),
            "bits_per_token": self.bits_per_token(nats),
            "perplexity": self.perplexity(nats),
        }


def total(name: str, parts: Sequence[Evaluation]) -> Evaluation:
    """All ``parts`` (at least one) as one text."""

    def nats(losses: list[float | None]) -> float | None:
        known = [loss for loss in losses if loss is not None]
        return math.fsum(known) if len(known) == len(parts) else None

    return Evaluation(
        text=name,
        tokens=sum(part.tokens for part in parts),
        bytes=sum(part.bytes for part in parts),
        unknown=sum(part.unknown for part in parts),
        static_nats=nats([part.static_nats for part in parts]),
        adapted_nats=nats([part.adapted_nats for part in parts]),
        updates=sum(part.updates for part in parts),
        guards=sum(part.guards for part in parts),
    )


def no_advance(tokens: int) -> None:
    """Tell nobody how many more tokens were read."""


def backend_of(
    model: LanguageModel, calibration: Calibration | None = None, *, temperature: float = 1.0
) -> Backend:
    """The native core where that can compute it, else torch where the model is.

    The core is on a CPU, in float32, and does not learn in a mixture of softmaxes.
    """
    weight = model.embedding.input
    plain = type(model) is LanguageModel and weight.device.type == "cpu" and weight.dtype == torch.float32
    if plain and (calibration is None or model.config.softmax_components == 1):
        return NativeBackend(model.parameter_arrays, calibration, temperature=temperature)
    return TorchBackend(model, calibration, temperature=temperature)


def evaluator_of(
    model: LanguageModel, calibration: Calibration, *, bos_id: int, temperature: float = 1.0
) -> DynamicEvaluator:
    """Dynamic evaluation that gives log-probabilities alone."""
    backend = backend_of(model, calibration, temperature=temperature)
    return DynamicEvaluator(backend, calibration, slow_norm(model), bos_id, logprobs_only=True)


def read_static(
    model: LanguageModel,
    passages: Sequence[Passage],
    *,
    bos_id: int,
    temperature: float = 1.0,
    advance: Advance = no_advance,
) -> list[Evaluation]:
    """Parts of one text, each of which continues the last one, under the slow weights.

    ``advance`` is called with the number of tokens read.
    """
    reader = reader_of(backend_of(model, temperature=temperature), bos_id, logprobs_only=True)
    cursor, results = reader.cursor, []
    for passage in passages:
        nats = []
        for start in range(0, len(passage.ids), _SLICE):
            ids = passage.ids[start : start + _SLICE]
            scores, cursor = reader.score(cursor, ids)
            nats.append(-scores.total)
            advance(len(ids))
        results.append(Evaluation.of(passage, static=math.fsum(nats)))
    return results


def static_loss(model: LanguageModel, passage: Passage, *, bos_id: int) -> Evaluation:
    """``passage`` as the beginning of all text, under the slow weights."""
    return read_static(model, [passage], bos_id=bos_id)[0]


class Stream(NamedTuple):
    """Parts of one text, and the state of the session that will read them."""

    passages: Sequence[Passage]
    state: AdaptedState


def read_adapting(
    evaluator: DynamicEvaluator, streams: Sequence[Stream], advance: Advance = no_advance
) -> list[list[Evaluation]]:
    """The parts of each stream, read as a session reads; all streams are rows of the same batches.

    Raises NonFiniteState where a stream's state cannot be used.
    """
    states = [stream.state for stream in streams]
    sums = [[_Sums(passage) for passage in stream.passages] for stream in streams]
    while going_on := [
        (i, own) for i, parts in enumerate(sums) if (own := next((p for p in parts if p.left), None))
    ]:
        chunks = [evaluator.chunk(states[i], own.following(evaluator.segment)) for i, own in going_on]
        for (i, own), observed in zip(going_on, run_batch(chunks), strict=True):
            if not isinstance(observed, ObservedChunk):
                raise observed if isinstance(observed, Exception) else TypeError(type(observed))
            own.add(observed)
            states[i] = observed.state
        advance(sum(len(chunk.ids) for chunk in chunks))
    return [[part.evaluation for part in parts] for parts in sums]


@dataclass
class _Sums:
    """What the reading of a passage has cost so far."""

    passage: Passage
    tokens: int = 0
    adapted: list[float] = field(default_factory=list)
    static: list[float] = field(default_factory=list)
    updates: int = 0
    guards: int = 0

    @property
    def left(self) -> int:
        return len(self.passage.ids) - self.tokens

    def following(self, count: int) -> list[int]:
        return self.passage.ids[self.tokens : self.tokens + count]

    def add(self, observed: ObservedChunk) -> None:
        self.tokens += len(observed.scores)
        self.adapted.append(-observed.scores.total)
        if observed.static_logprobs is not None:
            self.static.append(-float(observed.static_logprobs.sum(dtype=np.float64)))
        self.updates += observed.updates
        self.guards += len(observed.guards)

    @property
    def evaluation(self) -> Evaluation:
        return Evaluation.of(
            self.passage,
            static=math.fsum(self.static) if self.static else None,
            adapted_nats=math.fsum(self.adapted),
            updates=self.updates,
            guards=self.guards,
        )


@torch.no_grad()
def striped_loss(model: LanguageModel, ids: Ids, *, stripes: int = 16, window: int = 200) -> float:
    """Mean nats a token of ``ids`` read as parallel stripes: quick, but each stripe starts cold.

    For validation during training; published numbers come from :func:`read_static`. A short text has
    fewer stripes, of a window each. Raises ValueError for a text of one token, which predicts nothing.
    """
    stripes = max(1, min(stripes, (len(ids) - 1) // window))
    length = (len(ids) - 1) // stripes
    if length < 1:
        raise ValueError("a text of one token has nothing to predict")
    device = model.embedding.input.device
    text = torch.from_numpy(np.asarray(ids[: stripes * length + 1], dtype=np.int64)).to(device)
    inputs_TB = text[:-1].view(stripes, length).t()
    targets_TB = text[1:].view(stripes, length).t()
    state, nats = model.initial_state(stripes), 0.0
    for start in range(0, length, window):
        features, state = model(inputs_TB[start : start + window], state)
        logits = model.logits(features).flatten(0, 1)
        targets = targets_TB[start : start + window].flatten()
        nats += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").double().item()
    return nats / (stripes * length)
