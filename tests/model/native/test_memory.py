"""The n-gram memory against counts in dictionaries, in float64."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.native.memory import Memory, Order

ORDERS = (Order(1, (0.5, 0.8, 1.2), 0.5), Order(2, (0.6, 1.0, 1.5), 1.0), Order(4, (0.75, 0.75, 0.75), 2.0))
V = 7


def rows_of(generator, length, vocabulary=V):
    stride = -(-vocabulary // 16) * 16
    logits = generator.normal(size=(length, vocabulary)) * 2
    whole = np.zeros((length, stride), np.float32)
    whole[:, :vocabulary] = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return whole[:, :vocabulary]


def expected(base_V, past, orders, capacity):
    """The distribution after a past, and how many orders had seen the context: by counting all over again."""
    p, matches = np.exp(base_V.astype(np.float64)), 0
    first = max(0, len(past) - capacity)
    for order in orders:
        n = order.length
        if len(past) < n:
            break
        context = past[len(past) - n :]
        counts = np.zeros(len(p))
        for place in range(max(n, first), len(past)):
            if past[place - n : place] == context:
                counts[past[place]] += 1
        if not counts.sum():
            break
        discounts = np.where(
            counts > 0, np.array([0, *order.discounts])[np.minimum(counts, 3).astype(int)], 0
        )
        rest = order.theta + discounts.sum()
        p = (np.maximum(counts - discounts, 0) + rest * p) / (counts.sum() + order.theta)
        matches += 1
    return p, matches


texts = st.lists(st.integers(0, 2), max_size=60) | st.lists(st.integers(0, V - 1), max_size=60)


@given(texts, st.sampled_from([1, 3, 8, 20, 100]), st.integers(0, 60))
def test_distributions_are_those_of_the_counts(text, capacity, cut):
    """They sum to one, forget what is old, and a text may be cut anywhere."""
    generator = np.random.default_rng(0)
    memory = Memory(V, ORDERS, capacity)
    experts = [rows_of(generator, len(text)) for _ in range(2)]
    pieces = [
        memory.read([rows[part] for rows in experts], text[part]) for part in (slice(cut), slice(cut, None))
    ]
    for k, rows in enumerate(experts):
        mixed = np.concatenate([piece[0][k] for piece in pieces])
        np.testing.assert_allclose(np.exp(mixed.astype(np.float64)).sum(1), 1, atol=1e-6)
        for t in range(len(text)):
            p, matches = expected(rows[t], text[:t], ORDERS, capacity)
            np.testing.assert_allclose(np.exp(mixed[t].astype(np.float64)), p, atol=2e-6)
            assert np.concatenate([piece[1] for piece in pieces])[t] == matches


@given(texts, st.sampled_from([3, 20]))
def test_a_memory_is_made_of_its_tokens(text, capacity):
    memory, again = Memory(V, ORDERS, capacity), Memory(V, ORDERS, capacity)
    memory.add(text)
    again.add(memory.tokens)
    rows = rows_of(np.random.default_rng(1), 9)
    after = [0, 1, 2] * 3
    one, two = memory.read([rows], after, count=False), again.read([rows], after, count=False)
    assert one[0][0].tobytes() == two[0][0].tobytes()
    assert memory.tokens.tolist() == again.tokens.tolist()


def test_reading_without_counting_changes_nothing():
    memory = Memory(V, ORDERS)
    memory.add([1, 2, 3] * 5)
    rows = rows_of(np.random.default_rng(1), 3)
    first = memory.read([rows], [1, 2, 3], count=False)
    assert first[0][0][:1].tobytes() == memory.read([rows[:1]], [6], count=False)[0][0].tobytes()
    assert len(memory.tokens) == 15


@pytest.mark.parametrize(
    "text", [[65] * 40_000, [*range(256)] * 160, [*np.random.default_rng(0).integers(256, size=40_000)]]
)
def test_hostile_texts_stay_bounded(text):
    """One byte for ever, one cycle, nothing twice: what is kept, and the sums."""
    memory = Memory(256, (Order(1), Order(3), Order(6)))
    began = time.perf_counter()
    memory.add(text)
    assert time.perf_counter() - began < 20
    assert len(memory.tokens) == 8192 + 6
    ((mixed,), _) = memory.read([rows_of(np.random.default_rng(0), 1, 256)], text[:1])
    assert np.exp(mixed.astype(np.float64)).sum() == pytest.approx(1, abs=1e-6)


def test_what_is_wrong_is_refused():
    for orders in ((), (Order(0),), (Order(2), Order(2)), (Order(3), Order(1)), (Order(1, (2, 0, 0)),)):
        with pytest.raises(ValueError, match=r"orders must ascend|discounts must lie"):
            Memory(V, orders)
    memory = Memory(V, ORDERS)
    for tokens in ([V], [-1]):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            memory.add(tokens)
        with pytest.raises(ValueError, match="outside the vocabulary"):
            memory.read([rows_of(np.random.default_rng(0), 1)], tokens)
    assert not len(memory.tokens)
