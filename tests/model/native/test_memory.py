"""The memory against counting all over again for every token, in float64."""

import math
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlstm_model.native import memory as memories
from rlstm_model.native.memory import Memory, Mode

V, K, ORDERS = 7, 2, (1, 2, 4)
BOUNDS = (1, 2, 3, 5, 9, 19, 49), (1, 2, 5)


def rows_of(generator, length, vocabulary=V):
    stride = -(-vocabulary // 16) * 16
    logits = generator.normal(size=(length, vocabulary)) * 2
    whole = np.zeros((length, stride), np.float32)
    whole[:, :vocabulary] = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return whole[:, :vocabulary]


class Reference:
    """The same as loops over dictionaries: the chain, its shares, three blends and their average."""

    def __init__(self, capacity, experts=K):
        self.capacity, self.read = capacity, []
        self.bayes = np.full(experts, 1 / experts)
        self.shares, self.sets = {}, {}

    def counts(self, order):
        """How often each token followed the newest ``order`` tokens."""
        tokens = [token for token, _ in self.read]
        context, counts = tokens[len(tokens) - order :], np.zeros(V)
        for place in reversed(range(max(order, len(tokens) - self.capacity), len(tokens))):
            if self.read[place][1] and tokens[place - order : place] == context and counts.sum() < 255:
                counts[tokens[place]] += 1
        return counts

    def step(self, experts_KV, token, mode):
        """Log-probabilities of the next token, which then is ``token``."""
        experts_KV, learns = experts_KV.astype(np.float64), mode is Mode.LEARN
        p_V, used, deepest = np.exp(experts_KV).T @ self.bayes, [], None
        base_V, self.weights_logprob = p_V, math.log(p_V[token])
        for place, order in enumerate(ORDERS):
            counts = self.counts(order) if len(self.read) >= order else np.zeros(V)
            if not counts.any():
                break
            total, distinct = counts.sum(), np.count_nonzero(counts)
            key = (place, sum(total > b for b in BOUNDS[0]), sum(distinct > b for b in BOUNDS[1]))
            answered, seen = self.shares.get(key, (2.0, 4.0))
            share = answered / seen
            more_V = share * np.where(counts > 0, counts - 0.3, 0) / (total - 0.3 * distinct)
            p_V = (1 - share) * p_V + more_V
            used.append((key, answered + more_V[token] / p_V[token], seen + 1))
            deepest = distinct
        rows = [*np.maximum(experts_KV, -60), np.maximum(np.log(p_V), -60)]
        last = self.read[-1][0] if self.read else 0
        blends = []
        for name in (("depth", len(used), deepest == 1), ("last", last), "all"):
            weights, count = self.sets.get(name, (np.array([0.0] * len(experts_KV) + [1.0]), 0))
            blend_V = normalised(weights @ rows)
            blends.append(blend_V)
            if learns:
                expected = np.array([np.exp(blend_V) @ row for row in rows])
                rate = 0.005 + 0.03 / math.sqrt(count + 1)
                weights = weights + rate * (np.array([row[token] for row in rows]) - expected)
                self.sets[name] = np.clip(weights, -4, 4), count + 1
        if learns:
            for key, answered, seen in used:
                cut = min(1.0, 500 / seen)
                self.shares[key] = answered * cut, seen * cut
            given = 1 / (self.sets["all"][1] + 1)
            own = self.bayes * np.exp(experts_KV[:, token]) / base_V[token]
            self.bayes = (1 - given) * own + given / len(own)
        if mode is not Mode.LOOK:
            self.read.append((token, learns))
        return normalised(np.mean(blends, 0))


def normalised(logits_V):
    """Log-probabilities in proportion."""
    return logits_V - np.log(np.exp(logits_V - logits_V.max()).sum()) - logits_V.max()


texts = st.lists(st.integers(0, 2), max_size=60) | st.lists(st.integers(0, V - 1), max_size=60)


@settings(max_examples=60, deadline=None)
@given(texts, st.sampled_from([1, 3, 8, 20, 100]), st.lists(st.integers(0, 60), max_size=3), st.randoms())
def test_distributions_are_those_of_the_reference(text, capacity, cuts, draw):
    """They sum to one, forget what is old, and a text may be cut anywhere, learned from or not."""
    experts = [rows_of(np.random.default_rng(0), len(text)) for _ in range(K)]
    memory, reference = Memory.start(V, K, capacity, ORDERS), Reference(capacity)
    ends = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    for start, stop in pairwise(ends):
        mode = draw.choice([Mode.LEARN, Mode.LEARN, Mode.CONTEXT])
        part = text[start:stop]
        mixed, memory, weights_T = memory.mix([rows[start:stop] for rows in experts], part, mode)
        np.testing.assert_allclose(np.exp(mixed.astype(np.float64)).sum(1), 1, atol=1e-6)
        for t in range(start, stop):
            expected = reference.step(np.stack([rows[t] for rows in experts]), text[t], mode)
            np.testing.assert_allclose(mixed[t - start], expected, atol=2e-4)
            np.testing.assert_allclose(weights_T[t - start], reference.weights_logprob, atol=2e-5)


def test_of_a_context_the_newest_occurrences_count():
    """Two tokens, most of them the same: beyond 255 occurrences, and beyond the capacity."""
    text = np.random.default_rng(2).binomial(1, 0.1, 700).tolist()
    rows, memory, reference = (
        rows_of(np.random.default_rng(0), 700),
        Memory.start(V, 1, 400, ORDERS),
        Reference(400, 1),
    )
    mixed, *_ = memory.mix([rows], text, Mode.LEARN)
    expected = [reference.step(rows[t][None], text[t], Mode.LEARN) for t in range(700)]
    np.testing.assert_allclose(mixed, expected, atol=5e-4)


def test_counts_that_were_let_go_are_made_again(monkeypatch):
    """Three memories in turn, of which one is held: the same bits."""
    monkeypatch.setattr(memories, "HELD", 1)
    rows, text = rows_of(np.random.default_rng(1), 12), [1, 2, 3, 4] * 3
    several = [Memory.start(V, 1, orders=ORDERS) for _ in range(3)]
    for _ in range(4):
        done = [memory.mix([rows], text, Mode.LEARN) for memory in several]
        several = [each.memory for each in done]
        assert len({each.log_probs_TV.tobytes() for each in done}) == 1


@settings(max_examples=30, deadline=None)
@given(texts, texts, st.sampled_from([3, 20, 100]), st.integers(1, 60))
def test_a_memory_is_a_value(before, after, capacity, cut):
    """An older one reads as it did, by counting again; how a text was cut leaves no trace in any bit."""
    generator = np.random.default_rng(1)
    one, two = rows_of(generator, len(before)), rows_of(generator, len(after))
    _, then, _ = Memory.start(V, 1, capacity, ORDERS).mix([one], before, Mode.LEARN)
    first, whole, _ = then.mix([two], after, Mode.LEARN)
    again, *_ = then.mix([two], after, Mode.LEARN)
    pieces, memory = [], then
    for start in range(0, len(after), cut):
        mixed, memory, _ = memory.mix([two[start : start + cut]], after[start : start + cut], Mode.LEARN)
        pieces.append(mixed)
    assert first.tobytes() == again.tobytes() == b"".join(piece.tobytes() for piece in pieces)
    assert whole.marked.tolist() == memory.marked.tolist()
    assert whole.values.tobytes() == memory.values.tobytes()


def test_several_go_on_from_one():
    """Two texts after the same, read in turn: each as if it were alone."""
    before, rows = [1, 2, 3, 4] * 4, rows_of(np.random.default_rng(1), 16)
    _, then, _ = Memory.start(V, 1, orders=ORDERS).mix([rows], before, Mode.LEARN)
    branches = [[1, 2, 5, 1, 2, 5, 1, 2], [3, 4, 6, 6, 3, 4, 6, 6]]
    alone = [then.mix([rows[:8]], text, Mode.LEARN).log_probs_TV for text in branches]
    memories, pieces = [then, then], [[], []]
    for t in range(0, 8, 2):
        for i in range(2):
            mixed, memories[i], _ = memories[i].mix([rows[t : t + 2]], branches[i][t : t + 2], Mode.LEARN)
            pieces[i].append(mixed)
    for whole, parts in zip(alone, pieces, strict=True):
        assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_looking_changes_nothing_and_goes_on_after_its_context():
    """What is looked at after a context is what would be read after it, unlearned."""
    text, rows = [1, 2, 3] * 8, rows_of(np.random.default_rng(1), 24)
    _, memory, _ = Memory.start(V, 1, orders=ORDERS).mix([rows], text, Mode.LEARN)
    looked, same, _ = memory.mix([rows[:6]], [1, 2, 5, 1, 2, 3], Mode.LOOK)
    later, *_ = memory.mix([rows[3:6]], [1, 2, 3], Mode.LOOK, context=[1, 2, 5])
    assert same is memory
    assert looked[3:].tobytes() == later.tobytes()
    context, *_ = memory.mix([rows[:6]], [1, 2, 5, 1, 2, 3], Mode.CONTEXT)
    assert context.tobytes() == looked.tobytes()


@pytest.mark.parametrize(
    "text", [[65] * 40_000, [*range(256)] * 160, [*np.random.default_rng(0).integers(256, size=40_000)]]
)
def test_hostile_texts_stay_bounded(text):
    """One byte for ever, one cycle, nothing twice: what is kept, how long it takes, and the sums."""
    memory, rows = Memory.start(256, 1), rows_of(np.random.default_rng(0), 1_000, 256)
    began = time.perf_counter()
    for start in range(0, len(text), 1_000):
        part = text[start : start + 1_000]
        mixed, memory, _ = memory.mix([rows[: len(part)]], part, Mode.LEARN)
        np.testing.assert_allclose(np.exp(mixed.astype(np.float64)).sum(1), 1, atol=1e-6)
    assert time.perf_counter() - began < 40
    assert len(memory.marked) == memory.config.kept == 8192 + 20
    assert np.isfinite(memory.values).all()


def test_what_is_wrong_is_refused():
    for orders in ((), (0,), (2, 2), (3, 1)):
        with pytest.raises(ValueError, match="orders must ascend"):
            Memory.start(V, 1, 100, orders)
    memory = Memory.start(V, 1, orders=ORDERS)
    for tokens in ([V], [-1]):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            memory.mix([rows_of(np.random.default_rng(0), 1)], tokens, Mode.LEARN)
    assert not len(memory.marked)
