"""A stream's state: stored and restored to the last bit, and everything else refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.model import drawn

from rlstm_model import stored
from rlstm_model.adaptation.state import NonFiniteState, StateMismatch
from rlstm_model.native.packed import Space

NAN, INF = float("nan"), float("inf")


def through_bytes(state):
    """Arrays and header, stored and read again."""
    header = json.loads(json.dumps(state.header(), allow_nan=False))
    return stored.read(stored.write(state.arrays())).arrays, header


@pytest.fixture
def middle(evaluator, observe, text):
    """The state of a stream that has learned and stands in the middle of a segment."""
    return observe(evaluator, text(10)).state


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("experts", [{"static": False}, {}, {"experts": 2}, {"experts": 4}], ids=str)
@pytest.mark.parametrize("length", range(10))
def test_round_trip_goes_on_to_the_last_bit(make_evaluator, observe, text, bits_of, dtype, experts, length):
    """Stored and restored at any place, also in mid-segment, by another evaluator of the same model."""
    space = Space({}, ("embedding.bias", "stack.layers.0.bias"), None, dtype)
    evaluator, other = (make_evaluator(space=space, decay=0.1) for _ in range(2))
    state = observe(evaluator, text(length), rate_scale=1.5, **experts).state
    again = other.state_schema.restore(*through_bytes(state))
    assert bits_of(again) == bits_of(state)
    one, two = (observe(own, text(9, 4), state=s) for own, s in ((evaluator, state), (other, again)))
    assert bits_of(one.state) == bits_of(two.state)
    assert one.logprobs.tobytes() == two.logprobs.tobytes()


def test_arrays_share_no_memory_and_are_the_size(evaluator, middle):
    """Before text, at a segment's end and after resets too: what is stored is a state and nothing else."""
    resets = [
        evaluator.reset(middle, fast_weights=a, recurrent=b) for a in (False, True) for b in (False, True)
    ]
    for state in (evaluator.start(), middle, *resets):
        arrays = [*state.arrays().values()]
        assert state.nbytes == sum(array.nbytes for array in arrays)
        assert all(array.flags.c_contiguous for array in arrays)
        assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])
    assert middle.nbytes == 4 * (evaluator.backend.fast_weights + 3 * 2 * evaluator.backend.units)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("last", [-1, 19, 2.0, True, None, "3", [1]]),
        ("start_last", [-1, 19, 2.0, False, None]),
        ("pending", [[1, 19], [1, -1], [1, 2.0], [True, 1], [None, 1], "ab", None, {"1": 2}, 3]),
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
def test_wrong_header_values(evaluator, middle, field, values):
    """A field of a wrong type, range or length is refused, and the message names a field."""
    for value in values:
        with pytest.raises(StateMismatch, match="pending|last" if field.startswith("pending") else field):
            evaluator.state_schema.restore(middle.arrays(), {**middle.header(), field: value})


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("weights", [[0.25] * 3, [0.25] * 5, [0.25, 0.25, 0.25, 0.2], [1.0, 0.0, 0.0, 0.0], [NAN] * 4]),
        ("weights", [[0.5, 0.5, 0.5, -0.5], [1, 0, 0, 0], ["0.25"] * 4, [INF] * 4, None]),
        ("weights_tokens", [-1, 11, 2**70, 10.0, None, True]),
        ("experts", [3, 8, True, "4"]),
        ("static", [False]),
        ("bad_steps", [[0], [0, 0], [0] * 4, [0, 0, -1], [0, 0, 2**70], 0]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_header_values_of_a_mixture(evaluator, observe, text, field, values):
    """Weights that no stream can have, and counts of experts that do not fit."""
    state = observe(evaluator, text(10), experts=4).state
    for value in values:
        with pytest.raises(StateMismatch, match=field):
            evaluator.state_schema.restore(state.arrays(), {**state.header(), field: value})


def test_fields_that_contradict_each_other_or_lack(evaluator, middle):
    """More pending tokens than the segment has had, a last token that is not the newest, or no header."""
    header, arrays = middle.header(), middle.arrays()
    contradictions = [
        ({"position": 9}, "pending"),
        ({"pending": [1] * 5, "pending_learn": [True] * 5}, "pending"),
        ({"last": (header["last"] + 1) % 11}, "last"),
    ]
    for changes, says in contradictions:
        with pytest.raises(StateMismatch, match=says):
            evaluator.state_schema.restore(arrays, {**header, **changes})
    for field in header:
        with pytest.raises(StateMismatch, match=field):
            evaluator.state_schema.restore(
                arrays, {name: value for name, value in header.items() if name != field}
            )
    for wrong in (None, [], "header", 3):
        with pytest.raises(StateMismatch, match="header"):
            evaluator.state_schema.restore(arrays, wrong)


@pytest.mark.parametrize("name", ["delta", "now", "start"])
def test_wrong_arrays(evaluator, middle, name):
    """One of a wrong shape or dtype, or with a number that is none, is named; so is one that is missing."""
    arrays, header = middle.arrays(), middle.header()
    good = arrays[name]
    wrong = [good[..., :-1], good[None], good.astype(np.float64), good.astype(np.float16), good.astype(int)]
    for array in wrong:
        with pytest.raises(StateMismatch, match=name):
            evaluator.state_schema.restore({**arrays, name: array}, header)
    for bad in (NAN, INF, -INF):
        broken = good.copy()
        broken.ravel()[-1] = bad
        with pytest.raises(NonFiniteState, match=name):
            evaluator.state_schema.restore({**arrays, name: broken}, header)
    rest = {key: array for key, array in arrays.items() if key != name}
    if name != "delta":  # without one nothing was learned yet
        with pytest.raises(StateMismatch, match=name):
            evaluator.state_schema.restore(rest, header)


def test_arrays_too_many_and_another_model(make_evaluator, evaluator, middle):
    """An array that no state of this kind has is named; so is a start without a pending token."""
    with pytest.raises(StateMismatch, match="momentum"):
        evaluator.state_schema.restore({**middle.arrays(), "momentum": np.zeros(1)}, middle.header())
    header = {**middle.header(), "pending": [], "pending_learn": [], "start_last": middle.now.last}
    with pytest.raises(StateMismatch, match="start"):
        evaluator.state_schema.restore(middle.arrays(), header)
    with pytest.raises(StateMismatch):
        make_evaluator(drawn.parameters_of(hidden_size=6)).state_schema.restore(
            middle.arrays(), middle.header()
        )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        *(({"rate_scale": bad}, "rate_scale") for bad in (-1.0, NAN, INF, True, "1", None)),
        *(({"experts": bad}, "experts must be one of") for bad in (3, 0, True, 2.0)),
        ({"experts": 2, "static": False}, "static"),
        ({"static": 1}, "static"),
    ],
    ids=str,
)
def test_start_refuses_what_could_not_be_restored(evaluator, options, says):
    with pytest.raises(ValueError, match=says):
        evaluator.start(**options)


def test_a_state_is_a_value(evaluator, middle, observe, text, bits_of):
    """Reading on from a state changes nothing in it: the same state gives the same bits again."""
    before = bits_of(middle)
    first, second = (observe(evaluator, text(9), state=middle).state for _ in range(2))
    assert bits_of(middle) == before
    assert bits_of(first) == bits_of(second)
    with pytest.raises(AttributeError):
        middle.position = 0
    assert replace(middle, position=12).position == 12
