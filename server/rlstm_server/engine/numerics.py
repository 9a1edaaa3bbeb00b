"""The identity of the numbers: what two machines must share to compute the same bits.

What a round gives a stream is, to the last bit, what the stream gets alone. That rests on how matrix
products and pointwise functions are worked out on this machine for this model, so a server tests it when it
starts (`rounds_agree`). Where it does not hold, works are performed one by one (`alone`), and the id says so.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
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
from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.torch_backend.fast_weights import row_tile
from rlstm_model.adaptation.passes import PassKind
from rlstm_model.adaptation.thread_pool import ThreadPool
from rlstm_model.network.language_model import LanguageModel

TOKENS: Final = 3
"""Tokens of a segment in the test."""

TOP: Final = 256
"""Log-probabilities that it compares after each: those of the tokens that came would hide most others."""

REVISION: Final = 2
"""Of what is computed, by the last bit: it grows when a change of ours changes one."""

Perform: TypeAlias = Callable[[Sequence[BatchItem]], Sequence[BatchResult]]


def numerics_id(model: LanguageModel, *, rounds_agree: bool = True) -> str:
    """What decides the bits, such as ``torch2.11.0-cpu-AVX2-mkl-float32-r2-tile8``.

    The libraries, the device, the dtype, the revision, and the tile.

    Two servers with the same id give a session the same scores to the last bit; others agree to about
    1e-4 nats a token.
    """
    weight = model.embedding.input
    dtype = str(weight.dtype).removeprefix("torch.")
    rows = f"tile{row_tile(model)}" if rounds_agree else "alone"
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
    """Perform works one by one, or one by each thread of a thread_pool."""

    def do(work: BatchItem) -> tuple[list[BatchResult], Counter[PassKind]]:
        own = Counter[PassKind]()
        return run_batch([work], padding=own), own

    done = [*map(do, works)] if thread_pool is None else thread_pool.map(do, works)
    if padding is not None:
        for _, own in done:
            padding.update(own)
    return [result for results, _ in done for result in results]


# ---- whether rounds agree ---------------------------------------------------------------------------------


def rounds_agree(
    reader: Reader, evaluator: DynamicEvaluator | None, performed: Perform = run_batch, *, crowds: int = 2
) -> bool:
    """Whether one stream among others gets the bits that it gets alone, wherever its rows are.

    A static text, and where there is an evaluator a stream that learns and is read on from. `performed` is
    what is tested, in so many `crowds` of different sizes.
    """
    tile = (reader.rows if evaluator is None else evaluator.rows).weights.tile
    places = [(tile, tile - 1), (2 * tile, tile), (3 * tile, 3 * tile - 1)][:crowds]
    probes: list[Callable[[int, int], list[Tensor]]] = [partial(_static, performed, reader)]
    if evaluator is not None and evaluator.fast_weights.at_once > 1:
        probes.append(partial(_learned, performed, evaluator, 2))
    return all(_same(probe(1, 0), probe(crowd, place)) for probe in probes for crowd, place in places)


def _same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _static(performed: Perform, reader: Reader, crowd: int, place: int) -> list[Tensor]:
    """All that is computed of a text at `place` in a crowd."""
    texts = _texts(reader.rows.weights.model, crowd, place)
    read = performed([ScoreChunk(reader, reader.cursor, text) for text in texts])
    cursors = [result.cursor for result in read if isinstance(result, ScoredChunk)]
    return [*cursors[place].state, *_read_on(performed, [(reader, cursor) for cursor in cursors], place)]


def _learned(
    performed: Perform, evaluator: DynamicEvaluator, experts: int, crowd: int, place: int
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
        observed = [result for result in performed(parts) if isinstance(result, ObservedChunk)]
        states = [result.state for result in observed]
        outcome += [*_scores(observed[place]), *states[place].tensors().values()]
    readers = [evaluator.reader(state, static=True) for state in states]
    works = [
        ScoreChunk(reader, reader.cursor, text, top) for reader, text in zip(readers, texts, strict=True)
    ]
    sliced = performed(works)[place]
    outcome += _scores(sliced) if isinstance(sliced, ScoredChunk) else []
    return outcome + _read_on(performed, [(reader, reader.cursor) for reader in readers], place)


def _scores(result: ObservedChunk | ScoredChunk) -> list[Tensor]:
    scores = result.scores
    found = (scores.logprobs, scores.entropies, scores.top_logprobs, result.static_logprobs)
    return [column for column in found if column is not None]


def _read_on(performed: Perform, places: Sequence[tuple[Reader, Cursor]], place: int) -> list[Tensor]:
    turns = performed([DecodeStep(reader, cursor) for reader, cursor in places])
    following = turns[place]
    return [following.log_probs_V, *following.state] if isinstance(following, NextToken) else []


def _texts(model: LanguageModel, crowd: int, place: int) -> list[tuple[int, ...]]:
    """Texts that are all different, but for the one at `place`, which is always the same."""
    generator = torch.Generator().manual_seed(crowd)
    texts = torch.randint(model.config.vocab_size, (crowd, TOKENS), generator=generator)
    texts[place] = torch.arange(TOKENS) % model.config.vocab_size
    return [tuple(text) for text in texts.tolist()]
