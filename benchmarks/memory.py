"""What a memory saves beside fast weights, and what it costs: `python -m benchmarks.memory`.

Every text is a session of its own, read as the product reads it, in this process: frozen, by fast weights, by
a memory beside frozen weights, and by both. Speed and loading are of one session on one core, in time of the
processor, the best of some rounds.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import click
import numpy as np
import torch

from benchmarks.adapt import PREFIX, Bits, Reader, finite, passages_chosen, read_each
from benchmarks.cases import backend_on, evaluator_of
from benchmarks.models import Subject
from rlstm_client.cli import inputs
from rlstm_model.adaptation.evaluator import DynamicEvaluator, reader_of
from rlstm_model.adaptation.state import ExpertConfig
from rlstm_model.checkpoint import load
from rlstm_model.native.memory import Counts, Memory, MemoryConfig, Mode, kinds_of
from rlstm_training.commands import console
from rlstm_training.commands.console import progress_bar, show_json, show_table
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.evaluation import Stream

KINDS = {
    "weights": ExpertConfig(experts=2),
    "memory": ExpertConfig(experts=1, adapt="memory"),
    "both": ExpertConfig(experts=2, adapt="both"),
}
ROUNDS = 5
TOKENS = 2_000
"""Of a round that is timed."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a memory costs one session: microseconds a token, and milliseconds to load it when it is full.

    All are read in pieces of a segment, as a server does.
    """

    frozen: float
    beside_frozen: float
    alone: float
    load: float


def bits_of(evaluator: DynamicEvaluator, passages: Sequence[Passage], kind: str) -> Bits:
    """Bits per byte by text, each read by a session that adapts so."""
    config = KINDS[kind]
    start = evaluator.start(experts=config.experts, static=config.static, adapt=config.adapt)
    with progress_bar(kind, sum(len(passage.ids) for passage in passages)) as advance:
        read = read_each(evaluator, [Stream([passage], start) for passage in passages], advance)
    return {each.text: each.bits_per_byte(each.adapted_nats or math.nan) for each in read}


def stored_bytes(evaluator: DynamicEvaluator, kind: str) -> int:
    """Of all arrays of a session, at most: with every one, and within a segment."""
    layout = evaluator.state_schema.layout(KINDS[kind], pending=True)
    return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in layout.values())


def best(work: Callable[[], Any]) -> float:
    """Seconds of the processor, of the best round."""
    seconds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def cost(evaluator: DynamicEvaluator, ids: Sequence[int]) -> Cost:
    """Of a memory that is full of this text, over and over, while it reads the beginning again and again."""
    backend, segment, part = evaluator.backend, evaluator.segment, list(ids[:TOKENS])
    reader = reader_of(backend, evaluator.bos_id, logprobs_only=True)
    config = MemoryConfig(kinds_of(backend.vocab_size))
    whole = np.resize(np.array(ids, np.int32), config.kept)
    full = Memory.start(config, 1)._replace(marked=whole << 1 | 1, read=len(whole))
    memory, state = full, replace(evaluator.start(adapt="memory"), memory=full)
    rows = np.full((segment, backend.vocab_size), -math.log(backend.vocab_size), np.float32)

    def remember() -> None:
        nonlocal memory
        for start in range(0, len(part), segment):
            tokens = part[start : start + segment]
            memory = memory.mix([rows[: len(tokens)]], tokens, Mode.LEARN).memory

    def load_full() -> Counts:
        stored = Memory.restore(
            config, full.stored(), full.values, experts=1, remembered=len(full.marked), read=full.read
        )
        return Counts(config, stored.marked)

    def read() -> None:
        cursor = reader.cursor
        for start in range(0, len(part), segment):
            _, cursor = reader.score(cursor, part[start : start + segment])

    def adapt() -> None:
        nonlocal state
        for observed in evaluator.observe(state, part):
            state = observed.state

    micro = 1e6 / len(part)
    return Cost(
        frozen=micro * best(read),
        beside_frozen=micro * best(adapt),
        alone=micro * best(remember),
        load=1e3 * best(load_full),
    )


def show(bits: Mapping[str, Bits], stored: Mapping[str, int], cost: Cost) -> None:
    """Tables on standard output."""
    names = list(bits["frozen"])
    rows = [
        (kind, *(f"{own[name]:.4f}" for name in names), f"{stored[kind]:,}" if kind in stored else "")
        for kind, own in bits.items()
    ]
    show_table(("bits per byte", *names, "bytes stored"), rows)
    click.echo(
        f"a token: frozen {cost.frozen:.1f} us, with a memory beside {cost.beside_frozen:.1f} us; "
        f"the memory's own {cost.alone:.1f} us; a full memory is loaded in {cost.load:.1f} ms"
    )


@console.command()
@console.model(default="bytes-small")
@console.streams
@console.corpora
@click.option(
    "--prefix", type=click.IntRange(1), default=PREFIX, help="Bytes of each segment; of a corpus 10 times."
)
@inputs.as_json
def memory(model: str, stream: Sequence[str], corpus: Sequence[str], prefix: int, as_json: bool) -> None:
    """Say what weights, a memory and both save: bits per byte, bytes a session, and the memory's time.

    Each stream is one session over its segments; each corpus is its test text. Without either, all streams
    and wikitext-2 are read.
    """
    checkpoint, subject, cpu = load(model), Subject.load(model), torch.device("cpu")
    rule = subject.calibrated.choose()
    evaluator = evaluator_of(backend_on(cpu, subject, rule, 1), subject, rule)
    passages = passages_chosen(checkpoint, stream or (), corpus or (), prefix)
    bits = {"frozen": Reader(subject=subject, passages=passages, device=cpu).frozen()}
    bits |= {kind: bits_of(evaluator, passages, kind) for kind in KINDS}
    stored = {kind: stored_bytes(evaluator, kind) for kind in KINDS}
    found = cost(evaluator, passages[0].ids)
    if as_json:
        show_json(
            {
                "model": checkpoint.name,
                "prefix": prefix,
                "bits_per_byte": {kind: finite(own) for kind, own in bits.items()},
                "stored": stored,
                "cost": asdict(found),
            }
        )
    else:
        show(bits, stored, found)


if __name__ == "__main__":
    memory()
