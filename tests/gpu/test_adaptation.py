"""A GPU computes what the native core does: scores, learning, batches and mixtures."""

import random

import numpy as np
import pytest
import torch

from rlstm_model.adaptation.batch import run_batch
from rlstm_model.adaptation.evaluator import reader_of
from rlstm_model.adaptation.items import DecodeStep, ScoreChunk
from rlstm_model.network.state import State
from rlstm_model.torch_backend.backend import TorchBackend
from rlstm_model.torch_backend.graphs import GraphedWeights, Graphs

# Torch warns of compilers, and of looking for waits, in words of its own.
pytestmark = pytest.mark.filterwarnings("default")

BOS, SEGMENT, VOCAB = 1, 6, 64
KINDS = ["subspace", "output_bias", "full"]
BY_GRAPHS = ["subspace", "output_bias"]
# Nats a token after several steps of learning; a device may multiply in less than float32 has.
NATS = 2e-3


def drawn_texts(count, length, seed=3):
    draw = random.Random(seed)
    return [tuple(draw.randrange(VOCAB) for _ in range(length)) for _ in range(count)]


def assert_close(found, expected, tolerance=NATS):
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def test_static_scores(machine):
    """Of many texts, piece after piece, and the tokens after them."""
    outcomes = []
    for plain in (False, True):
        reader = reader_of(machine.backend(None, plain=plain), BOS)
        cursors, logprobs = [reader.cursor] * machine.streams, []
        for piece in range(3):
            texts = drawn_texts(machine.streams, SEGMENT, seed=piece)
            done = run_batch([ScoreChunk(reader, c, text, 2) for c, text in zip(cursors, texts, strict=True)])
            cursors = [scored.cursor for scored in done]
            logprobs += [scored.scores.logprobs for scored in done]
        following = run_batch([DecodeStep(reader, cursor) for cursor in cursors])
        outcomes.append(np.concatenate([*logprobs, *(step.log_probs_V for step in following)]))
    assert_close(*outcomes, NATS / 10)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_mixed_items(machine, kind):
    """Streams of all experts, learning or not, in mid-segment too, beside what is read after them."""
    outcomes = [list(_batches(machine.evaluator(kind, plain=plain))) for plain in (False, True)]
    assert any(updates for updates, _ in outcomes[0])
    for (updates, found), (expected_updates, expected) in zip(*outcomes, strict=True):
        assert updates == expected_updates
        assert_close(found, expected)


def _batches(evaluator, streams=8):
    """Of each item in several batches, the updates and what was computed."""
    experts = [{"static": False}, {"experts": 2}, {}, {"experts": 4}]
    states = [evaluator.start(**experts[i % 4]) for i in range(streams)]
    draw = random.Random(11)
    for _ in range(8):
        parts = []
        for state in states:
            most = SEGMENT - state.position % SEGMENT
            ids = tuple(draw.randrange(VOCAB) for _ in range(draw.randint(1, most)))
            parts.append(evaluator.chunk(state, ids, learn=draw.random() < 0.8))
        readers = [evaluator.reader(state) for state in states[:4]]
        chunks = [ScoreChunk(reader, reader.cursor, (3, 1, 4)) for reader in readers]
        steps = [DecodeStep(reader, reader.cursor) for reader in readers]
        done = run_batch([*parts, *chunks, *steps])
        states = [observed.state for observed in done[:streams]]
        for result in done[: streams + len(chunks)]:
            yield getattr(result, "updates", 0), result.scores.logprobs
        for following in done[streams + len(chunks) :]:
            yield 0, following.log_probs_V


def test_a_mixture_of_rates(machine):
    """Of four experts over ten segments: scores, weights and fast weights at the end."""
    outcomes = []
    (text,) = drawn_texts(1, 10 * SEGMENT)
    for plain in (False, True):
        evaluator = machine.evaluator("subspace", plain=plain)
        state, logprobs = evaluator.start(experts=4), []
        for observed in evaluator.observe(state, text):
            state = observed.state
            logprobs.append(observed.scores.logprobs)
        outcomes.append((np.concatenate(logprobs), state.weights, state.delta_KP))
    for found, expected in zip(*outcomes, strict=True):
        assert_close(found, expected)


def lesson(machine, weights, rows, seed=2):
    """Deltas, ids, targets, weights of losses and states, the same on each device."""
    generator, model = torch.Generator().manual_seed(seed), weights.model
    h, c = torch.randn(2, model.config.num_layers, rows, model.config.hidden_size, generator=generator).tanh()
    ids, targets = torch.randint(VOCAB, (2, SEGMENT, rows), generator=generator)
    losses, delta = (
        torch.rand(*shape, generator=generator) for shape in ((SEGMENT, rows), (rows, weights.size))
    )
    moved = (part.to(machine.device) for part in (0.02 * delta, ids, targets, losses, h, c))
    delta, ids, targets, losses, h, c = moved
    return delta, ids, targets, losses, State(h, c)


@pytest.mark.parametrize("kind", BY_GRAPHS)
def test_graphs_in_any_order_are_the_plain_way(machine, kind):
    """Acts of many shapes, more than are kept, that share their memory: what they give without graphs."""
    plain = machine.backend(kind)._weights.weights
    weights = GraphedWeights(plain, Graphs(machine.capture(), limit=3, spared=1))
    draw = random.Random(5)
    for seed in range(30):
        rows, length = plain.tile << draw.randrange(3), draw.choice([SEGMENT, 1, 3])
        delta, ids, targets, losses, state = lesson(machine, plain, rows, seed)
        ids, targets, losses = ids[:length], targets[:length], losses[:length]
        delta = None if draw.random() < 0.3 else delta
        for found, expected in (
            (weights.read(delta, ids, state), plain.read(delta, ids, state)),
            (way.learn(delta, ids, targets, losses, state) for way in (weights, plain)),
        ):
            for one, other in zip(_flat(found), _flat(expected), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def _flat(found):
    return [part for each in found for part in (each if isinstance(each, State) else [each])]


@pytest.mark.parametrize("kind", BY_GRAPHS)
def test_nobody_waits_while_rows_are_read_and_learned_from(machine, kind):
    """The device is never idle in between."""
    weights = machine.backend(kind)._weights
    delta, ids, targets, losses, state = lesson(machine, weights, weights.tile)
    for _ in range(3):
        weights.learn(delta, ids, targets, losses, state)
        weights.read(delta, ids, state)
    with machine.unwaiting():
        found = weights.learn(delta, ids, targets, losses, state), weights.read(delta, ids, state)
    assert all(part.isfinite().all() for one in found for part in _flat(one))


def test_graphs_are_a_gpus_own_way(machine):
    """Both backends use them there; on a CPU none is made."""
    on_gpu = machine.device == "cuda"
    for calibration in (machine.calibration("subspace"), None):
        weights = TorchBackend.of(machine.parameters, calibration, device=machine.device)._weights
        assert isinstance(weights, GraphedWeights) == on_gpu
