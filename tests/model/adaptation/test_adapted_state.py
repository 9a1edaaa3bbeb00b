"""A stream's state: stored and restored to the last bit, and everything else refused."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save

from rlstm_model.adaptation.state import NonFiniteState, StateMismatch


def read(evaluator, state, ids, **options):
    for part in evaluator.observe(state, ids, **options):
        state = part.state
    return state


@pytest.fixture
def middle(make_evaluator, text):
    """An evaluator, and the state of a stream that has learned and stands in the middle of a segment."""
    evaluator = make_evaluator()
    return evaluator, read(evaluator, evaluator.start(), text(10))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("experts", [{"static": False}, {}, {"experts": 2}, {"experts": 4}], ids=str)
@pytest.mark.parametrize("length", range(10))
def test_round_trip_goes_on_to_the_last_bit(
    make_evaluator, tiny_model, text, digest, stored, dtype, experts, length
):
    """Stored and restored at any place, also in mid-segment, a stream goes on as if nothing had been."""
    evaluator = make_evaluator(tiny_model(dtype=dtype), decay=0.1)
    state = read(evaluator, evaluator.start(**experts, rate_scale=1.5), text(length))
    again = evaluator.restore(*stored(state))
    assert again.header() == state.header()
    assert again.tensors().keys() == state.tensors().keys()
    assert digest(*again.tensors().values()) == digest(*state.tensors().values())
    one, other = (read(evaluator, value, text(9, seed=4)) for value in (state, again))
    assert one.header() == other.header()
    assert digest(*one.tensors().values()) == digest(*other.tensors().values())


def test_another_evaluator_restores_it(make_evaluator, middle, text, digest, stored):
    """A state belongs to a model and a calibration, not to the evaluator that made it."""
    evaluator, state = middle
    other = make_evaluator()
    read(other, other.start(), text(30, seed=8))
    one, two = read(evaluator, state, text(9)), read(other, other.restore(*stored(state)), text(9))
    assert digest(*one.tensors().values()) == digest(*two.tensors().values())


def test_tensors_share_no_memory(make_evaluator, text):
    """Safetensors refuses shared memory: it gets none before text, at a segment's end, nor after resets."""
    evaluator = make_evaluator()
    states = [
        evaluator.start(),
        read(evaluator, evaluator.start(), text(8)),
        read(evaluator, evaluator.start(), text(6)),
    ]
    states += [evaluator.reset(states[1], fast_weights=a, recurrent=b) for a in (0, 1) for b in (0, 1)]
    for state in states:
        assert len({tensor.data_ptr() for tensor in state.tensors().values()}) == len(state.tensors())
        save(state.tensors())


def test_nbytes(middle):
    """The size of a state is that of its tensors: delta, and h and c of two rows at two places."""
    evaluator, state = middle
    assert state.nbytes == 4 * (evaluator.fast_weights.size + 2 * 2 * 2 * 2 * 5)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("last", [-1, 11, 2.0, True, None, "3", [1]]),
        ("start_last", [-1, 11, 2.0, False, None]),
        ("pending", [[1, 11], [1, -1], [1, 2.0], [True, 1], [None, 1], "ab", None, {"1": 2}, 3]),
        ("pending", [[1] * 3, [1] * 4, [1], []]),
        ("pending_learn", [[1, 0], [True], [True] * 3, ["true", True], None, "ab", [None, None], 2]),
        ("position", [-1, 10.0, True, None, "10", float("nan")]),
        ("updates", [-1, 2.0, True, None, float("inf")]),
        ("bad_steps", [0, [-1], [0.0], [False], [None], [], [0, 0], "0", [2**70]]),
        ("experts", [0, 3, -4, True, 1.0, None, "1", [1]]),
        ("static", [0, 1, None, "true"]),
        ("weights", [[], [1], [True], [0.5], [0.5, 0.5], [float("nan")], ["1.0"], 1.0, None, {"0": 1.0}]),
        ("weights_tokens", [-1, 0.0, True, None, 11, 2**70]),
        ("rate_scale", [-1, float("nan"), float("inf"), 10**400, True, None, "1.0"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_header_values(middle, field, values):
    """A field of a wrong type, range or length is refused, and the message names a field."""
    evaluator, state = middle
    for value in values:
        with pytest.raises(StateMismatch, match="pending|last" if field.startswith("pending") else field):
            evaluator.restore(state.tensors(), {**state.header(), field: value})


def test_fields_that_contradict_each_other(middle):
    """More pending tokens than the segment has had, or a last token that is not the newest, are refused."""
    evaluator, state = middle
    header, tensors = state.header(), state.tensors()
    with pytest.raises(StateMismatch, match="pending"):
        evaluator.restore(tensors, {**header, "position": 9})
    with pytest.raises(StateMismatch, match="pending"):
        evaluator.restore(tensors, {**header, "pending": [1] * 5, "pending_learn": [True] * 5})
    with pytest.raises(StateMismatch, match="last"):
        evaluator.restore(tensors, {**header, "last": (header["last"] + 1) % 11})


def test_missing_fields(middle):
    """Every field of the header is needed."""
    evaluator, state = middle
    for field in state.header():
        header = {name: value for name, value in state.header().items() if name != field}
        with pytest.raises(StateMismatch, match=field):
            evaluator.restore(state.tensors(), header)


@pytest.mark.parametrize("header", [None, [], "header", 3])
def test_no_header(middle, header):
    """A header that is no object is refused."""
    evaluator, state = middle
    with pytest.raises(StateMismatch, match="header"):
        evaluator.restore(state.tensors(), header)


@pytest.mark.parametrize("name", ["delta", "now.h", "now.c", "start.h", "start.c"])
def test_wrong_tensors(middle, name):
    """A tensor of a wrong shape or dtype, or with a number that is none, is named."""
    evaluator, state = middle
    tensors, header = state.tensors(), state.header()
    good = tensors[name]
    for wrong in (good[..., :-1], good[None], good.double(), good.half(), good.int()):
        with pytest.raises(StateMismatch, match=name):
            evaluator.restore({**tensors, name: wrong}, header)
    for bad in (float("nan"), float("inf"), -float("inf")):
        broken = good.clone()
        broken.view(-1)[-1] = bad
        with pytest.raises(NonFiniteState, match=name):
            evaluator.restore({**tensors, name: broken}, header)


@pytest.mark.parametrize("name", ["now.h", "now.c", "start.h", "start.c"])
def test_missing_tensors(middle, name):
    """Half a cursor is none (a state without delta is one)."""
    evaluator, state = middle
    tensors = {key: tensor for key, tensor in state.tensors().items() if key != name}
    with pytest.raises(StateMismatch, match=name.partition(".")[0]):
        evaluator.restore(tensors, state.header())


def test_tensors_too_many(middle):
    """A tensor that no state of this kind has is named; so is a start without a pending token."""
    evaluator, state = middle
    with pytest.raises(StateMismatch, match="momentum"):
        evaluator.restore({**state.tensors(), "momentum": torch.zeros(1)}, state.header())
    header = {**state.header(), "pending": [], "pending_learn": [], "start_last": state.now.last}
    with pytest.raises(StateMismatch, match=r"start\.c"):
        evaluator.restore(state.tensors(), header)


def test_a_state_of_another_model(make_evaluator, tiny_model, middle):
    """A model of another size refuses it."""
    _, state = middle
    with pytest.raises(StateMismatch):
        make_evaluator(tiny_model(hidden_size=6)).restore(state.tensors(), state.header())


@pytest.mark.parametrize("rate_scale", [-1.0, float("nan"), float("inf"), True, "1", None])
def test_start_refuses_a_bad_rate_scale(make_evaluator, rate_scale):
    """What could not be restored cannot be made."""
    with pytest.raises(ValueError, match="rate_scale"):
        make_evaluator().start(rate_scale=rate_scale)


def test_a_state_is_a_value(middle, text, digest):
    """Reading on from a state changes nothing in it: the same state gives the same bits again."""
    evaluator, state = middle
    before = digest(*state.tensors().values())
    first, second = (read(evaluator, state, text(9)) for _ in range(2))
    assert digest(*state.tensors().values()) == before
    assert digest(*first.tensors().values()) == digest(*second.tensors().values())
    with pytest.raises(AttributeError):
        state.position = 0
    assert replace(state, position=12).position == 12
