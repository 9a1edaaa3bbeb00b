"""What is recorded and when, and what is left in its buffers; what it computes shows ``tests/gpu``."""

import pytest
import torch
from tests.gpu.recording import record
from tests.model import drawn

from rlstm_model.network.state import State
from rlstm_model.torch_backend.backend import TorchBackend
from rlstm_model.torch_backend.graphs import GraphedWeights, Graphs, StaticBuffer

VOCAB, SEGMENT = 40, 4


@pytest.fixture
def plain():
    """Fast weights that do all rows at once."""
    parameters = drawn.parameters_of(hidden_size=48, vocab_size=VOCAB)
    return TorchBackend.of(parameters, drawn.calibration_of(parameters))._weights


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


def test_what_asks_for_a_value_is_refused_by_the_recording():
    """So that tests by recordings mean something: a branch on a value cannot pass unseen."""
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


class Counted:
    """Recordings that are counted."""

    def __init__(self):
        self.made = 0

    def __call__(self, run):
        """See :class:`~rlstm_model.torch_backend.graphs.Capture`."""
        self.made += 1
        return record(run)


def test_a_graph_is_made_for_what_comes_again(plain):
    """Not before its third time; another length, bucket or temperature is another graph."""
    capture = Counted()
    weights = by_graphs(plain, capture, spared=2)
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
def test_acts_have_the_shapes_of_their_bucket(plain, monkeypatch, spared):
    """Recorded or not: kernels, which shapes choose, are the same, and so are a row's bits on any device."""
    seen = []
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


def test_the_one_used_longest_ago_makes_room(plain):
    """There are never more than the limit; one that was dropped is made again when it comes again."""
    capture = Counted()
    weights = by_graphs(plain, capture, limit=2)
    _, ids, *_, state = case(weights, weights.tile)
    for length in (1, 2, 1, 3, 1, 2):
        logits, _ = weights.read(None, ids[:length], state)
        assert torch.equal(logits, weights.weights.read(None, ids[:length], state)[0])
        assert len(weights.graphs) <= 2
    assert capture.made == 4
