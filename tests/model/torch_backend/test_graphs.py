"""Reading and learning by recordings: what the plain way gives, whatever the buffers held before.

No CPU records a CUDA graph. In its place stands a recording of tensor operations: like a graph it replays
these and no line of Python, on the memory that they had, and it refuses what cannot be recorded.
"""

import numpy as np
import pytest
import torch
from tests.model import drawn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlstm_model.native import Row
from rlstm_model.network.state import State
from rlstm_model.torch_backend.backend import TorchBackend
from rlstm_model.torch_backend.graphs import GraphedWeights, Graphs, Recorded, StaticBuffer
from rlstm_model.torch_backend.subspace import SubspaceFastWeights

VOCAB, SEGMENT = 40, 4
KINDS = ["subspace", "chosen", "output_bias"]


class Recording(TorchDispatchMode):
    """The operations of a run, to be done again on the same memory."""

    # They ask for a value, make one of Python's numbers, or have a shape that depends on values.
    refused = frozenset({"_local_scalar_dense", "item", "lift_fresh", "nonzero", "masked_select", "equal"})

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(part is not None and part.dtype == torch.bool for part in args[1])
        if name in self.refused or by_mask:
            raise RuntimeError(f"{name} cannot be recorded")
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self):
        """All of them, in their order; a view is still one."""
        for func, args, kwargs, result in self.calls:
            if func.is_view:
                continue
            for kept, done in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                if done.data_ptr() != kept.data_ptr():
                    kept.copy_(done)


def record(run):
    """See :class:`~rlstm_model.torch_backend.graphs.Capture`; the first run prepares, as on a GPU."""
    run()
    with Recording() as recording:
        results = run()
    for result in results:
        result.fill_(float("nan"))
    return Recorded(recording.replay, results)


@pytest.fixture(params=KINDS)
def plain(request, wide_model, subspace):
    """Every kind that does all rows at once."""
    if request.param == "output_bias":
        return SubspaceFastWeights(wide_model, {}, ["embedding.bias"])
    whole = subspace(wide_model, 8)
    if request.param == "subspace":
        return whole
    places = torch.arange(0, whole.elements, 5)[: whole.elements // 20 * 4]
    biases = [name for name in whole._shapes if name not in whole._bases]
    return SubspaceFastWeights(wide_model, whole._bases, biases, places)


def by_graphs(weights, capture=record, **changes):
    return GraphedWeights(weights, Graphs(capture, **{"spared": 0, **changes}))


def case(weights, rows, time=SEGMENT, seed=1):
    """Deltas, ids, targets, weights of losses and states of so many rows."""
    generator = torch.Generator().manual_seed(seed)
    config = weights.model.config
    h, c = torch.randn(2, config.num_layers, rows, config.hidden_size, generator=generator).tanh()
    ids, targets = torch.randint(VOCAB, (2, time, rows), generator=generator)
    delta = 0.1 * torch.randn(rows, weights.size, generator=generator)
    return delta, ids, targets, torch.rand(time, rows, generator=generator), State(h, c)


def assert_equal(found, expected):
    """To the last bit, in all that they hold."""
    found, expected = tree_leaves(tuple(found)), tree_leaves(tuple(expected))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("own", [True, False], ids=["deltas", "none"])
def test_recordings_give_what_the_plain_way_gives(plain, own):
    """Reading and learning of whole tiles, to the bit: fewer rows after more, and more again.

    Between two acts with the same buffers, others have used them.
    """
    weights = by_graphs(plain)
    for seed, tiles in enumerate((3, 1, 2, 4, 3)):
        delta, ids, targets, losses, state = case(plain, tiles * plain.tile, seed=seed)
        delta = delta if own else None
        assert_equal(weights.read(delta, ids, state), plain.read(delta, ids, state))
        ways = (way.learn(delta, ids, targets, losses, state, temperature=0.9) for way in (weights, plain))
        assert_equal(*ways)
    assert len(weights.graphs) == 3 * 2


def test_what_asks_for_a_value_is_refused_by_the_recording():
    """So that the tests above mean something: a branch on a value cannot pass unseen."""
    x = torch.ones(3)
    for run in (
        lambda: (x * x.sum().item(),),
        lambda: (x if bool(x.any()) else -x,),
        lambda: (x * torch.tensor(2.0),),
        lambda: (x[x > 0],),
    ):
        with pytest.raises(RuntimeError, match="cannot be recorded"):
            record(run)


def test_nothing_of_earlier_rows_is_left_in_a_buffer():
    """Where fewer rows come than before, the others are zeros again: a NaN among them too."""
    room = StaticBuffer(torch.ones(2, 3), 1, 4)
    assert not room.buffer.any()
    assert torch.equal(room.fill(torch.full((2, 3), float("nan"))).isnan().sum(), torch.tensor(6))
    buffer = room.fill(torch.tensor([[5.0], [6.0]]))
    assert torch.equal(buffer, torch.tensor([[5.0, 0, 0, 0], [6.0, 0, 0, 0]]))


def test_results_are_kept_but_for_the_gradient(wide_model, subspace):
    """Logits and states are copies; the gradient is the graph's own, as its contract allows."""
    plain = subspace(wide_model, 8)
    weights = by_graphs(plain)
    first, second = (case(plain, plain.tile, seed=seed) for seed in (1, 2))
    before = weights.learn(*first)
    gradient = before.gradient_NP.clone()
    weights.learn(*second)
    assert_equal(before[:2], plain.learn(*first)[:2])
    assert not torch.equal(before.gradient_NP, gradient)


class Counted:
    """Recordings that are counted."""

    def __init__(self):
        self.made = 0

    def __call__(self, run):
        """See :class:`~rlstm_model.torch_backend.graphs.Capture`."""
        self.made += 1
        return record(run)


def test_a_graph_is_made_for_what_comes_again(wide_model, subspace):
    """Not before its third time; another length, bucket or temperature is another graph."""
    capture = Counted()
    weights = by_graphs(subspace(wide_model, 8), capture, spared=2)
    delta, ids, *_, state = case(weights, weights.tile)
    made = []
    for _ in range(4):
        weights.read(delta, ids, state)
        made.append(capture.made)
    assert made == [0, 0, 1, 1]
    for _ in range(3):
        weights.read(delta, ids[:2], state)
        weights.read(delta, ids, state, temperature=0.5)
        weights.read(None, ids, state)
    assert capture.made == 4


@pytest.mark.parametrize("spared", [0, 3], ids=["recorded", "not yet"])
def test_acts_have_the_shapes_of_their_bucket(wide_model, subspace, monkeypatch, spared):
    """Recorded or not: kernels, which shapes choose, are the same, and so are a row's bits on any device."""
    seen = []
    plain = subspace(wide_model, 8)
    weights = by_graphs(plain, spared=spared)
    read = type(plain).read
    monkeypatch.setattr(
        type(plain), "read", lambda *given, **named: seen.append(given) or read(*given, **named)
    )
    delta, ids, *_, state = case(plain, 24)
    weights.read(delta, ids, state)
    for _, delta, ids, state in seen:
        assert (len(delta), ids.shape, state.batch) == (32, (SEGMENT, 32), 32)
    assert seen


def test_the_one_used_longest_ago_makes_room(wide_model, subspace):
    """There are never more than the limit; one that was dropped is made again when it comes again."""
    capture = Counted()
    weights = by_graphs(subspace(wide_model, 8), capture, limit=2)
    _, ids, *_, state = case(weights, weights.tile)
    for length in (1, 2, 1, 3, 1, 2):
        logits, _ = weights.read(None, ids[:length], state)
        assert torch.equal(logits, weights.weights.read(None, ids[:length], state)[0])
        assert len(weights.graphs) <= 2
    assert capture.made == 4


def test_a_backend_by_recordings_is_the_backend():
    """Rows of any length, that learn and that do not, in windows of many sizes: the same to the bit."""
    parameters = drawn.parameters_of(hidden_size=48, vocab_size=VOCAB)
    calibration = drawn.calibration_of(parameters)
    one, other = (TorchBackend.of(parameters, calibration, temperature=0.9) for _ in range(2))
    other._weights = by_graphs(other._weights)
    generator = np.random.default_rng(3)
    for count in (9, 1, 20, 2):
        rows = []
        for number in range(count):
            ids = generator.integers(VOCAB, size=1 + (SEGMENT if number % 3 else 1 + number % 2)).tolist()
            delta = drawn.draw(generator, one.fast_weights, 0.05) if number % 2 else None
            row = Row(ids[:-1], drawn.draw(generator, (2, one.units), 0.5), delta)
            rows.append(
                row._replace(targets=ids[1:], loss_weights=[0.2] * SEGMENT, rate=0.01) if number % 3 else row
            )
        for found, expected in zip(other.read(rows), one.read(rows), strict=True):
            assert found.log_probs_TV.tobytes() == expected.log_probs_TV.tobytes()
            assert found.states_2U.tobytes() == expected.states_2U.tobytes()
            if expected.step is not None:
                assert found.step.delta_P.tobytes() == expected.step.delta_P.tobytes()
                assert found.step[1:] == expected.step[1:]
    assert len(other._weights.graphs) == 3
