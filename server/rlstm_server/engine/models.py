"""The models of one server, each with everything that belongs to it, and the identity of their numbers.

The models share the device thread, whose batches hold items of all of them; a session belongs to one for
good. What a batch gives a stream is, to the last bit, what the stream gets alone. That rests on how matrix
products and pointwise functions are worked out on this machine for this model, so a server tests it when it
starts (`batches_agree`). Where it does not hold, items are computed one by one (`alone`), and the id of the
numbers says so.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias

import torch
from torch import Tensor

from rlstm_model.adaptation.state import Cursor
from rlstm_model.adaptation.batch_items import (
    BatchItem,
    BatchResult,
    DecodeStep,
    NextToken,
    ObservedChunk,
    Reader,
    ScoreChunk,
    ScoredChunk,
)
from rlstm_model.adaptation.batch_step import run_batch
from rlstm_model.adaptation.calibration import CalibrationSet, NotCalibrated, load_calibration
from rlstm_model.adaptation.config import AdaptationConfig, Kind
from rlstm_model.adaptation.evaluator import DynamicEvaluator, frozen_reader
from rlstm_model.adaptation.fast_weights import row_tile
from rlstm_model.adaptation.passes import PassKind
from rlstm_model.adaptation.thread_pool import ThreadPool
from rlstm_model.checkpoint import Checkpoint
from rlstm_model.language_model import LanguageModel
from rlstm_model.vocab import Vocab
from rlstm_server.errors import InvalidField, ModelMismatch, ModelNotFound
from rlstm_server.schemas.text import AdaptationChoice, AdaptationRequest, EngineIdentity

Identity: TypeAlias = tuple[str, str]
"""The fingerprints of a model and of its calibration; the latter is empty without one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedModel:
    """A model with its vocabulary, and its calibration where it has one.

    Made before the device thread starts; from then on only that thread, with its pool, may compute with it.
    ``reader`` reads with the weights as loaded, from before any text; ``adaptation_fingerprint`` is the
    calibration's, None without one.
    """

    name: str
    fingerprint: str
    model: LanguageModel
    vocab: Vocab
    calibrated: CalibrationSet | None
    card: str = ""
    reader: Reader = field(init=False)
    numerics: str = field(init=False)
    batches_agree: bool = field(init=False)
    adaptation_fingerprint: str | None = field(init=False)
    _evaluators: Mapping[AdaptationConfig, DynamicEvaluator] = field(init=False)

    @classmethod
    def of(cls, checkpoint: Checkpoint, name: str | None = None) -> "ServedModel":
        """What a checkpoint holds, by its own name or another.

        Raises CalibrationError for a damaged calibration, or another model's.
        """
        file = checkpoint.adaptation_file
        return cls(
            name=name or checkpoint.name,
            fingerprint=checkpoint.fingerprint,
            model=checkpoint.model,
            vocab=checkpoint.vocab,
            calibrated=None if file is None else load_calibration(file, checkpoint.model),
            card=checkpoint.card,
        )

    def __post_init__(self) -> None:
        evaluators = {}
        if self.calibrated is not None:
            for choice in self.calibrated.choices:
                calibration = self.calibrated.choose(choice.kind, choice.num_fast_weights)
                evaluators[choice] = DynamicEvaluator(self.model, calibration, bos_id=self.vocab.bos_id)
        object.__setattr__(self, "_evaluators", evaluators)
        fingerprint = None if self.calibrated is None else self.calibrated.fingerprint
        object.__setattr__(self, "adaptation_fingerprint", fingerprint)
        object.__setattr__(self, "reader", frozen_reader(self.model, self.vocab.bos_id))
        learners: list[DynamicEvaluator | None] = [*evaluators.values()] or [None]
        # The default is what most sessions use; a test of every rule in every crowd would take a long start.
        agree = all(
            batches_agree(self.reader, evaluator, crowds=1 if place else 3)
            for place, evaluator in enumerate(learners)
        )
        object.__setattr__(self, "batches_agree", agree)
        object.__setattr__(self, "numerics", numerics_id(self.model, batches_agree=agree))

    # ---- learning -----------------------------------------------------------------------------------------

    @property
    def rules(self) -> tuple[AdaptationConfig, ...]:
        """The checkpoint's rules, the default first; none for a model that cannot learn."""
        return tuple(self._evaluators)

    def evaluator(self, kind: Kind | None = None, num_fast_weights: int | None = None) -> DynamicEvaluator:
        """The evaluator of a kind and size of fast weights; None stands for any, first for the default.

        Raises InvalidField when the checkpoint has no rule for them; it names those there are.
        """
        if self.calibrated is None:
            raise InvalidField("adaptation", f"the model {self.name} has no calibration: it cannot learn")
        try:
            return self._evaluators[self.calibrated.find(kind, num_fast_weights)]
        except NotCalibrated as error:
            known = kind in (None, *(rule.kind for rule in self.rules))
            name = "adaptation.num_fast_weights" if known else "adaptation.kind"
            raise InvalidField(name, f"{name}: {error}") from error

    def choose(self, asked: AdaptationRequest) -> AdaptationChoice:
        """What is asked for, by the rules that the checkpoint has. Raises InvalidField."""
        rule = self.evaluator(asked.kind, asked.num_fast_weights).config
        try:
            return AdaptationChoice.of(rule, asked.expert_config, asked.rate_scale)
        except ValueError as error:
            raise InvalidField("adaptation.experts", f"adaptation.experts: {error}") from error

    def state_bytes(self, choice: AdaptationChoice) -> int:
        """Bytes of the tensors of a state that learns so, at their most: in the middle of a segment."""
        # Without rows nothing is computed, so this may be asked on any thread.
        recurrent = self.model.initial_state(0).h
        delta = self.evaluator(choice.kind, choice.num_fast_weights).fast_weights.zero(0)
        layers, _, hidden = recurrent.shape
        cursor = 2 * layers * hidden * recurrent.element_size()
        row = choice.num_fast_weights * delta.element_size()
        return 2 * choice.expert_config.rows * cursor + len(choice.expert_config.rates) * row

    # ---- identity -----------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.model.embedding.input.device

    @property
    def reproducible(self) -> bool:
        """Whether the same numerics always give the same bits; a GPU takes some sums in any order."""
        return self.device.type == "cpu"

    @property
    def identity(self) -> EngineIdentity:
        """What the numbers depend on."""
        return EngineIdentity(
            model=self.name,
            fingerprint=self.fingerprint,
            adaptation_fingerprint=self.adaptation_fingerprint,
            numerics=self.numerics,
        )


def check_apart(names: Sequence[str], identities: Sequence[Identity]) -> None:
    """Raise ValueError for two models of the same name, or that `name:adapt` could be; and for one twice."""
    if len({*names}) < len(names):
        raise ValueError("two models have the same name")
    if coloned := [name for name in names if ":" in name]:
        raise ValueError(f"{coloned[0]!r}: a model's name has no colon; NAME=FOLDER gives it another")
    if len({*identities}) < len(identities):
        raise ValueError("the same model is there twice")


class Models:
    """Served models in the order they were given; the first is the default."""

    def __init__(self, default: ServedModel, *others: ServedModel) -> None:
        """Raises ValueError for two of the same name, for the same one twice, and for several devices."""
        served = (default, *others)
        names = [one.name for one in served]
        identities = [(one.fingerprint, one.adaptation_fingerprint or "") for one in served]
        check_apart(names, identities)
        self.default: Final = default
        self._by_name = dict(zip(names, served, strict=True))
        self._by_identity = dict(zip(identities, served, strict=True))
        if len({one.device for one in served}) > 1:
            raise ValueError("the models are on several devices")

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._by_name.values())

    def named(self, name: str | None) -> ServedModel:
        """The model of a name; None is the default. Raises ModelNotFound, which names those there are."""
        if name is None:
            return self.default
        try:
            return self._by_name[name]
        except KeyError:
            names = ", ".join(self._by_name)
            raise ModelNotFound(f"model: no such model is served; these are: {names}") from None

    def with_identity(self, fingerprint: str | None, adaptation_fingerprint: str | None) -> ServedModel:
        """The model, with the calibration, that a state was computed with. Raises ModelMismatch.

        Descriptions of sessions did not always say it: without a fingerprint it is the default.
        """
        if fingerprint is None:
            return self.default
        found = self._by_identity.get((fingerprint, adaptation_fingerprint or ""))
        if found is not None:
            return found
        if any(fingerprint == known for known, _ in self._by_identity):
            raise ModelMismatch("the session's state belongs to another calibration of the model")
        raise ModelMismatch("the session's state belongs to another model")

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.default.device

    @property
    def batches_agree(self) -> bool:
        """Whether any items can share a batch, whoever's they are, with the bits that they have alone."""
        return all(one.batches_agree for one in self)


# ---- the identity of the numbers ---------------------------------------------------------------------------

TOKENS: Final = 3
"""Tokens of a segment in the test."""

TOP: Final = 256
"""Log-probabilities that it compares after each: those of the tokens that came would hide most others."""

REVISION: Final = 3
"""Of what is computed, by the last bit: it grows when a change of ours changes one."""

RunBatch: TypeAlias = Callable[[Sequence[BatchItem]], Sequence[BatchResult]]


def numerics_id(model: LanguageModel, *, batches_agree: bool = True) -> str:
    """What decides the bits, such as ``torch2.11.0-cpu-AVX2-mkl-float32-r3-tile8``.

    The libraries, the device, the dtype, the revision, and the tile.

    Two servers with the same id give a session the same scores to the last bit; others agree to about
    1e-4 nats a token.
    """
    weight = model.embedding.input
    dtype = str(weight.dtype).removeprefix("torch.")
    rows = f"tile{row_tile(model)}" if batches_agree else "alone"
    computed = (weight.device.type, _unit(weight.device), dtype)
    parts = (f"torch{torch.__version__}", *computed, f"r{REVISION}", rows)
    return "-".join(part.replace(" ", "_") for part in parts)


def _unit(device: torch.device) -> str:
    """What within the device decides the order of additions: its model, or the CPU's vector units."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    algebra = "mkl" if torch._C.has_mkl else "blas"
    return f"{torch.backends.cpu.get_cpu_capability()}-{algebra}"


def alone(
    works: Sequence[BatchItem],
    thread_pool: ThreadPool | None = None,
    padding: Counter[PassKind] | None = None,
) -> list[BatchResult]:
    """Compute items one by one, or one by each thread of a thread pool."""

    def do(work: BatchItem) -> tuple[list[BatchResult], Counter[PassKind]]:
        own = Counter[PassKind]()
        return run_batch([work], padding=own), own

    done = [*map(do, works)] if thread_pool is None else thread_pool.map(do, works)
    if padding is not None:
        for _, own in done:
            padding.update(own)
    return [result for results, _ in done for result in results]


# ---- whether batches agree --------------------------------------------------------------------------------


def batches_agree(
    reader: Reader, evaluator: DynamicEvaluator | None, run_batch: RunBatch = run_batch, *, crowds: int = 2
) -> bool:
    """Whether one stream among others gets the bits that it gets alone, wherever its rows are.

    A frozen text, and where there is a dynamic evaluator a stream that learns and is read on from.
    `run_batch` is what is tested, in so many `crowds` of different sizes.
    """
    tile = (reader.rows if evaluator is None else evaluator.rows).weights.tile
    places = [(tile, tile - 1), (2 * tile, tile), (3 * tile, 3 * tile - 1)][:crowds]
    probes: list[Callable[[int, int], list[Tensor]]] = [partial(_static, run_batch, reader)]
    if evaluator is not None and evaluator.fast_weights.at_once > 1:
        probes.append(partial(_learned, run_batch, evaluator, 2))
    return all(_same(probe(1, 0), probe(crowd, place)) for probe in probes for crowd, place in places)


def _same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _static(run_batch: RunBatch, reader: Reader, crowd: int, place: int) -> list[Tensor]:
    """All that is computed of a text at `place` in a crowd."""
    texts = _texts(reader.rows.weights.model, crowd, place)
    read = run_batch([ScoreChunk(reader, reader.cursor, text) for text in texts])
    cursors = [result.cursor for result in read if isinstance(result, ScoredChunk)]
    return [*cursors[place].state, *_read_on(run_batch, [(reader, cursor) for cursor in cursors], place)]


def _learned(
    run_batch: RunBatch, evaluator: DynamicEvaluator, experts: int, crowd: int, place: int
) -> list[Tensor]:
    """All that is computed of a stream that learns twice and is asked, at `place` in a crowd."""
    texts, states = _texts(evaluator.model, crowd, place), [evaluator.start(experts=experts)] * crowd
    top = min(TOP, evaluator.model.config.vocab_size)
    outcome: list[Tensor] = []
    for _ in range(2):
        # At this place in a segment, with nothing pending, the next tokens are learned from as a short one.
        position = max(0, evaluator.config.segment - TOKENS)
        before = [replace(state, position=position) for state in states]
        parts = [evaluator.chunk(state, text, top=top) for state, text in zip(before, texts, strict=True)]
        observed = [result for result in run_batch(parts) if isinstance(result, ObservedChunk)]
        states = [result.state for result in observed]
        outcome += [*_scores(observed[place]), *states[place].tensors().values()]
    readers = [evaluator.reader(state, static=True) for state in states]
    works = [
        ScoreChunk(reader, reader.cursor, text, top) for reader, text in zip(readers, texts, strict=True)
    ]
    sliced = run_batch(works)[place]
    outcome += _scores(sliced) if isinstance(sliced, ScoredChunk) else []
    return outcome + _read_on(run_batch, [(reader, reader.cursor) for reader in readers], place)


def _scores(result: ObservedChunk | ScoredChunk) -> list[Tensor]:
    scores = result.scores
    found = (scores.logprobs, scores.entropies, scores.top_logprobs, result.static_logprobs)
    return [column for column in found if column is not None]


def _read_on(run_batch: RunBatch, places: Sequence[tuple[Reader, Cursor]], place: int) -> list[Tensor]:
    turns = run_batch([DecodeStep(reader, cursor) for reader, cursor in places])
    following = turns[place]
    return [following.log_probs_V, *following.state] if isinstance(following, NextToken) else []


def _texts(model: LanguageModel, crowd: int, place: int) -> list[tuple[int, ...]]:
    """Texts that are all different, but for the one at `place`, which is always the same."""
    generator = torch.Generator().manual_seed(crowd)
    texts = torch.randint(model.config.vocab_size, (crowd, TOKENS), generator=generator)
    texts[place] = torch.arange(TOKENS) % model.config.vocab_size
    return [tuple(text) for text in texts.tolist()]
