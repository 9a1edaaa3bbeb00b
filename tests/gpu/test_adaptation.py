"""A GPU computes what a CPU does: scores, learning, batches and mixtures."""

import random

import pytest
import torch
from rlstm_model.adaptation.batch_items import DecodeStep, ScoreChunk
from rlstm_model.adaptation.batch_step import run_batch
from rlstm_model.adaptation.padded_rows import RowInput, TrainingInput

from rlstm_model.adaptation.evaluator import DynamicEvaluator, frozen_reader
from rlstm_model.network.state import State
from rlstm_model.torch_backend.graphs import GraphedReading, GraphedWeights, Graphs

# Torch warns of compilers, and of looking for waits, in words of its own.
pytestmark = pytest.mark.filterwarnings("default")

BOS, SEGMENT, VOCAB = 1, 6, 64
KINDS = ["subspace", "output_bias", "full"]
BY_GRAPHS = ["subspace", "output_bias"]
# Nats a token, after several steps of learning; gradients relative to the largest of their row.
NATS = {torch.float32: 2e-3, torch.float64: 1e-9}
GRADIENTS = {torch.float32: 1e-3, torch.float64: 1e-9}


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def dtype(request):
    return request.param


def drawn(count, length, seed=3):
    draw = random.Random(seed)
    return [tuple(draw.randrange(VOCAB) for _ in range(length)) for _ in range(count)]


def assert_close(found, expected, tolerance):
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=tolerance)


def test_static_scores(machine, dtype):
    """Of many texts, piece after piece, and the tokens after them."""
    outcomes = []
    for plain in (False, True):
        reader = machine.reader(dtype, plain=plain)
        cursors, logprobs = [reader.cursor] * machine.streams, []
        for piece in range(3):
            texts = drawn(machine.streams, SEGMENT, seed=piece)
            done = run_batch([ScoreChunk(reader, c, text, 2) for c, text in zip(cursors, texts, strict=True)])
            cursors = [sliced.cursor for sliced in done]
            logprobs += [sliced.scores.logprobs for sliced in done]
        following = run_batch([DecodeStep(reader, cursor) for cursor in cursors])
        outcomes.append(torch.cat([*logprobs, *(turn.log_probs_V.cpu() for turn in following)]))
    assert_close(*outcomes, NATS[dtype] / 10)


def training(model, rows, seed=2):
    """Ids, targets, weights and states, the same on each device."""
    generator = torch.Generator().manual_seed(seed)
    like = model.embedding.input
    h, c = torch.randn(2, model.config.num_layers, rows, model.config.hidden_size, generator=generator).tanh()
    ids, targets = torch.randint(VOCAB, (2, SEGMENT, rows), generator=generator).to(like.device)
    weights = torch.rand(SEGMENT, rows, generator=generator).to(like)
    return ids, targets, weights, State(h.to(like), c.to(like))


@pytest.mark.parametrize("kind", KINDS)
def test_learning(machine, dtype, kind):
    """Logits, states and gradients at random deltas, of every kind of fast weights."""
    outcomes = []
    for plain in (False, True):
        fast = machine.evaluator(kind, dtype, plain=plain).fast_weights
        rows = 2 if kind == "full" else 3 * fast.tile
        generator = torch.Generator().manual_seed(4)
        delta = 0.02 * torch.randn(rows, fast.size, generator=generator)
        ids, targets, weights, state = training(fast.model, rows)
        learned = fast.learn(delta.to(state.h), ids, targets, weights, state)
        outcomes.append((learned.logits_TNV, *learned.state, learned.gradient_NP))
    *found, gradient = outcomes[0]
    *expected, true_gradient = outcomes[1]
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, NATS[dtype] / 10)
    size_N1 = true_gradient.abs().amax(1, keepdim=True)
    assert_close(gradient.cpu() / size_N1, true_gradient / size_N1, GRADIENTS[dtype])


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_mixed_items(machine, dtype, kind):
    """Streams of all experts, learning or not, in mid-segment too, beside what is read after them."""
    outcomes = [list(_batches(machine.evaluator(kind, dtype, plain=plain))) for plain in (False, True)]
    assert any(updates for updates, _ in outcomes[0])
    for (updates, found), (expected_updates, expected) in zip(*outcomes, strict=True):
        assert updates == expected_updates
        assert_close(found, expected, NATS[dtype])


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
        slices = [ScoreChunk(reader, reader.cursor, (3, 1, 4)) for reader in readers]
        turns = [DecodeStep(reader, reader.cursor) for reader in readers]
        done = run_batch([*parts, *slices, *turns])
        states = [observed.state for observed in done[:streams]]
        for result in done[: streams + len(slices)]:
            yield getattr(result, "updates", 0), result.scores.logprobs
        for following in done[streams + len(slices) :]:
            yield 0, following.log_probs_V


def test_a_mixture_of_rates(machine, dtype):
    """Of four experts over ten segments: scores, weights and fast weights at the end."""
    outcomes = []
    (text,) = drawn(1, 10 * SEGMENT)
    for plain in (False, True):
        evaluator = machine.evaluator("subspace", dtype, plain=plain)
        state, logprobs = evaluator.start(experts=4), []
        for observed in evaluator.observe(state, text):
            state = observed.state
            logprobs.append(observed.scores.logprobs)
        outcomes.append((torch.cat(logprobs), state.mixture.weights_NK.float(), state.delta_KP.float()))
    for found, expected in zip(*outcomes, strict=True):
        assert_close(found, expected, NATS[dtype])


@pytest.mark.parametrize("kind", BY_GRAPHS)
def test_graphs_in_any_order_are_the_plain_way(machine, kind):
    """Acts of many shapes, more than are kept, that share their memory: what they give without graphs."""
    plain = machine.evaluator(kind, torch.float32).fast_weights.weights
    weights = GraphedWeights(plain, Graphs(machine.capture(), limit=3, spared=1))
    draw = random.Random(5)
    for seed in range(30):
        rows, length = plain.tile << draw.randrange(3), draw.choice([SEGMENT, 1, 3])
        ids, targets, losses, state = training(plain.model, rows, seed)
        ids, targets, losses = ids[:length], targets[:length], losses[:length]
        delta = 0.02 * torch.randn(rows, plain.size, generator=torch.Generator().manual_seed(seed))
        delta = None if draw.random() < 0.3 else delta.to(state.h)
        for found, expected in (
            (weights.read(delta, ids, state), plain.read(delta, ids, state)),
            (weights.step(delta, ids[0], state), plain.step(delta, ids[0], state)),
            (way.learn(delta, ids, targets, losses, state) for way in (weights, plain)),
        ):
            for one, other in zip(_flat(found), _flat(expected), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def _flat(found):
    return [part for each in found for part in (each if isinstance(each, State) else [each])]


@pytest.mark.parametrize("kind", BY_GRAPHS)
def test_nobody_waits_until_a_step_is_taken(machine, kind):
    """Rows are laid out, read and learned from without a wait: the device is never idle in between."""
    evaluator = machine.evaluator(kind, torch.float32)
    state = evaluator.start(static=False)
    inputs = [
        TrainingInput(RowInput((BOS, *text[:-1]), state.now.state), text, [0.1] * SEGMENT)
        for text in drawn(machine.streams, SEGMENT)
    ]
    for _ in range(3):
        evaluator.rows.learn(inputs)
        evaluator.rows.read([each.read for each in inputs])
    with machine.unwaiting():
        evaluator.rows.learn(inputs)
        evaluator.rows.read([each.read for each in inputs])


def test_graphs_are_a_gpus_own_way(machine):
    """Evaluators and readers use them there, unless they are told not to; a CPU never does."""
    on_gpu = machine.device.type == "cuda"
    evaluator = machine.evaluator("subspace", torch.float32)
    model = evaluator.model
    from_rule = machine.calibration(model, "subspace")
    assert isinstance(DynamicEvaluator(model, from_rule, bos_id=BOS).fast_weights, GraphedWeights) == on_gpu
    assert not isinstance(
        DynamicEvaluator(model, from_rule, bos_id=BOS, graphs=False).fast_weights, GraphedWeights
    )
    assert isinstance(frozen_reader(model, BOS).rows.weights, GraphedReading) == on_gpu
