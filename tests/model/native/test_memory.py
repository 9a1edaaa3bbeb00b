"""The memory against counting all over again for every token, in float64."""

import math
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlstm_model.native import memory as memories
from rlstm_model.native.memory import Memory, MemoryConfig, Mode, TokenKind, kinds_of

V, K, ORDERS, SHAPE = 7, 2, (1, 2, 4), 16
KINDS = bytes([*TokenKind][k] for k in (0, 1, 2, 0, 4, 5, 6))
LETTERS = (TokenKind.LOWER, TokenKind.UPPER, TokenKind.FOREIGN)
BOUNDS = (1, 2, 3, 5, 9, 19, 49), (1, 2, 5)
LEVELS = 3
MORE = 2**-5, 13 / 128, 5 / 16, 5 / 8, 1, 13 / 8, 3, 7, 16
LESS = 2**-8, 5 / 64, 0.5, 2
USUAL = (0.015, 0.06, 0.2, 0.45, 0.9, 1.4, 2.2, 4.5, 11, 30), (0, 0.04, 0.3, 1.2, 5)
INPUTS = len(ORDERS) + 9
GROUPS = dict(zip(TokenKind, "llnbbolo", strict=True))


def started(experts=1, capacity=100):
    return Memory.start(MemoryConfig(KINDS, capacity, ORDERS), experts)


def rows_of(generator, length, vocabulary=V):
    stride = -(-vocabulary // 16) * 16
    logits = generator.normal(size=(length, vocabulary)) * 2
    whole = np.zeros((length, stride), np.float32)
    whole[:, :vocabulary] = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return whole[:, :vocabulary]


def words_before(text):
    """The letters that the text ends with, and the two words before them."""
    words = []
    for _ in range(3):
        end = len(text)
        start = next((t + 1 for t in reversed(range(end)) if KINDS[text[t]] not in LETTERS), 0)
        words.append(tuple(text[start:]))
        text = text[:start]
        while text and KINDS[text[-1]] not in LETTERS:
            text = text[:-1]
    return words


def contexts_of(tokens):
    """All contexts after some tokens, None for those that there are not: orders, text, and lines."""
    text = tokens[-256:]
    orders = [tuple(text[-n:]) if len(text) >= n else None for n in ORDERS]
    if not text:
        return orders, [None] * 5, [None] * 4
    shape = [(KINDS[t],) if KINDS[t] in (*LETTERS, TokenKind.DIGIT) else t for t in text]
    letters, one, two = words_before(text)
    here = letters, None if letters else shape[-1]
    lines = [t for t in range(len(text)) if KINDS[text[t]] == TokenKind.NEWLINE]
    start = tuple(text[lines[-1] + 1 :][:4]) if lines else None
    return (
        orders,
        [
            here,
            (here, one),
            None if start is None else (here, start, text[-1]),
            (here, two),
            tuple(shape[-SHAPE:]) if len(text) >= SHAPE else None,
        ],
        lines_of(text, shape, letters),
    )


def lines_of(text, shape, letters):
    """The contexts of lines: shape, column, what stands above, and what does in the same field."""
    ends = [t for t in range(len(text)) if KINDS[text[t]] == TokenKind.NEWLINE]
    contexts = [tuple(shape[-5:]), None, None, None]
    if len(text) < SHAPE or not ends:
        return contexts if len(text) >= SHAPE else [None] * 4
    line = text[ends[-1] + 1 :]
    contexts[1] = tuple(shape[-2:]), len(line)
    if len(ends) > 1:
        above, newline = text[ends[-2] + 1 : ends[-1]], text[ends[-1]]
        contexts[2] = (above + [newline] * 256)[len(line)], len(line)
        single = [KINDS[t] not in (*LETTERS, TokenKind.DIGIT) for t in line]
        number = sum(single)
        within = ([*single[::-1], True]).index(True)
        starts = [0] + [
            t + 1 for t in range(len(above)) if KINDS[above[t]] not in (*LETTERS, TokenKind.DIGIT)
        ]
        place = starts[number] + within if number < len(starts) else 256
        contexts[3] = letters, (above + [newline] * 512)[place], number
    return contexts


class Reference:
    """The same as loops: the chains, their shares, one blend, and the tree of decisions."""

    def __init__(self, capacity, experts=K):
        self.capacity, self.read = capacity, []
        self.bayes, self.learned = np.full(experts, 1 / experts), 0
        self.shares = {}
        self.sets = {"all": np.array([0.25 / experts] * experts + [0.25, 0.5])}
        self.maps = {}
        self.tree = {"all": np.array([0.5 / experts] * experts + [0.2, 0.3] + [0.1] * INPUTS)}

    def counts(self, chain, number, context):
        """What followed a context: weights, how often it occurred, and how long ago it last did."""
        weights, total, newest, now = np.zeros(V), 0, 0, len(self.read)
        for place in reversed(range(max(0, now - self.capacity), now)):
            token, counted, contexts = self.read[place]
            if context is not None and counted and contexts[chain][number] == context and total < 64:
                weights[token] += 100 / (100 + now - place)
                total, newest = total + 1, newest or now - place
        return weights, total, newest

    def chain(self, chain, contexts, base_V, token, learns):
        """The experts' mixture after a chain, and which of its sets of weights is used."""
        p_V, depth, single = base_V, 0, False
        for number, context in enumerate(contexts):
            weights_V, total, newest = self.counts(chain, number, context)
            if not total and chain == 0:
                break
            if not total:
                continue
            self.followed.append((number + chain * len(ORDERS), weights_V))
            distinct = np.count_nonzero(weights_V)
            place = (sum(total > b for b in BOUNDS[0]), sum(distinct > b for b in BOUNDS[1]), newest > 1_000)
            key = chain, number, place
            share = self.shares.get(key, 0.5)
            more_V = share * weights_V / weights_V.sum()
            p_V = (1 - share) * p_V + more_V
            if learns:
                self.shares[key] = share + 0.02 * (more_V[token] / p_V[token] - share)
            depth, single = depth + 1, distinct == 1
        return p_V, (chain, depth, single)

    def step(self, experts_KV, token, mode):
        """Log-probabilities of the next token, which then is ``token``."""
        experts_KV, learns = experts_KV.astype(np.float64), mode is Mode.LEARN
        tokens = [token for token, *_ in self.read[-256:]]
        contexts = contexts_of(tokens)
        base_V = np.exp(experts_KV).T @ self.bayes
        self.followed = []
        self.weights_logprob = math.log(base_V[token])
        chains = [self.chain(i, contexts[i], base_V, token, learns) for i in (1, 0)]
        for number, context in enumerate(contexts[2]):
            self.followed.append((len(ORDERS) + 5 + number, self.counts(2, number, context)[0]))
        rows = np.maximum([*experts_KV, *(np.log(p_V) for p_V, _ in chains)], -60)
        kinds = [KINDS[tokens[-n]] if len(tokens) >= n else TokenKind.NEWLINE for n in (1, 2)]
        chosen = ["all", *(name for _, name in chains), ("kinds", *kinds)]
        none = np.zeros(len(rows))
        blend_V = normalised(sum(self.sets.get(name, none) for name in chosen) @ rows)
        groups = ("kinds", *(GROUPS[kind] for kind in kinds))
        out_V = self.decide(rows, blend_V, ["all", chosen[2], groups], token, learns)
        if learns:
            step = 0.001 * (rows[:, token] - rows @ np.exp(blend_V))
            for name in chosen:
                self.sets[name] = np.clip(self.sets.get(name, none) + step, -4, 4)
            own = self.bayes * np.exp(experts_KV[:, token]) / base_V[token]
            given = 1 / (self.learned + 2)
            self.bayes, self.learned = (1 - given) * own + given / len(own), self.learned + 1
        if mode is not Mode.LOOK:
            self.read.append((token, learns, contexts))
        return out_V

    def decide(self, rows, blend_V, chosen, token, learns):
        """Log-probabilities after the tree: node by node, what is beneath either side by all inputs."""
        out_V, updates = blend_V.copy(), []
        rate = 0.0004 * (1 + 3 / (1 + self.learned / 1_000))
        for level in range(LEVELS):
            for node in range(1 << level, 2 << level):
                sides = [range(*beneath(2 * node + side)) for side in (0, 1)]
                inputs, cells = np.zeros(len(rows) + INPUTS), []
                for context, weights_V in self.followed:
                    counts = [sum(weights_V[v] for v in side) for side in sides]
                    if not len(sides[1]) or not sum(counts):
                        continue
                    greater, (less, more) = int(counts[1] >= counts[0]), sorted(counts)
                    cell = context, sum(more >= b for b in MORE), sum(less >= b for b in LESS)
                    p = self.maps.get(cell, usual(*cell[1:]))
                    inputs[len(rows) + context] = (2 * greater - 1) * math.log(p / (1 - p))
                    cells.append((cell, greater))
                if not cells:
                    continue
                masses = [np.exp(rows[:, list(side)]).sum(1) for side in sides]
                inputs[: len(rows)] = np.clip(np.log(masses[1] / masses[0]), -20, 20)
                names = [*chosen, ("node", node if level < 5 else -level)]
                odds = sum(self.tree.get(name, np.zeros(len(inputs))) for name in names) @ inputs
                own = [list(side) for side in sides]
                for side, sign in zip(own, (1, -1), strict=True):
                    whole = np.logaddexp.reduce(blend_V[own[0] + own[1]])
                    out_V[side] += whole - np.logaddexp.reduce(blend_V[side]) - np.logaddexp(0, sign * odds)
                right = [token in side for side in own]
                if learns and any(right):
                    step = rate * (right[1] - 1 / (1 + math.exp(-odds))) * inputs
                    updates.append((names, step, [(cell, right[1] == greater) for cell, greater in cells]))
        for names, step, cells in updates:
            for name in names:
                self.tree[name] = np.clip(self.tree.get(name, np.zeros(len(step))) + step, -4, 4)
            for cell, came in cells:
                p = self.maps.get(cell, usual(*cell[1:]))
                self.maps[cell] = min(max(p + 0.02 * (came - p), 0.0005), 0.9995)
        return out_V


def beneath(node):
    """The tokens beneath a node: from, to."""
    below = LEVELS - node.bit_length() + 1
    first = (node << below) - (1 << LEVELS)
    return min(first, V), min(first + (1 << below), V)


def usual(more, less):
    """What a map has for how much followed on either side, before any token."""
    other = min(USUAL[1][less], USUAL[0][more])
    return (USUAL[0][more] + 0.4) / (USUAL[0][more] + other + 0.8)


def normalised(logits_V):
    """Log-probabilities in proportion."""
    return logits_V - np.log(np.exp(logits_V - logits_V.max()).sum()) - logits_V.max()


texts = st.lists(st.integers(0, 2), max_size=60) | st.lists(st.integers(0, V - 1), max_size=60)


@settings(max_examples=60, deadline=None)
@given(texts, st.sampled_from([1, 3, 8, 20, 100]), st.lists(st.integers(0, 60), max_size=3), st.randoms())
def test_distributions_are_those_of_the_reference(text, capacity, cuts, draw):
    """They sum to one, forget what is old, and a text may be cut anywhere, learned from or not."""
    experts = [rows_of(np.random.default_rng(0), len(text)) for _ in range(K)]
    memory, reference = started(K, capacity), Reference(capacity)
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
    """Two tokens, most of them the same: beyond 64 occurrences, and beyond the capacity."""
    text = np.random.default_rng(2).binomial(1, 0.1, 700).tolist()
    rows, memory, reference = (
        rows_of(np.random.default_rng(0), 700),
        started(1, 400),
        Reference(400, 1),
    )
    mixed, *_ = memory.mix([rows], text, Mode.LEARN)
    expected = [reference.step(rows[t][None], text[t], Mode.LEARN) for t in range(700)]
    np.testing.assert_allclose(mixed, expected, rtol=1e-4, atol=5e-4)


def test_deeper_decisions_are_those_of_the_reference(monkeypatch):
    """Of more than five levels; the last token's neighbours are no tokens."""
    monkeypatch.setattr(f"{__name__}.V", 100)
    monkeypatch.setattr(f"{__name__}.LEVELS", 7)
    monkeypatch.setattr(f"{__name__}.KINDS", bytes([TokenKind.LOWER, TokenKind.DIGIT]) * 50)
    text, experts = [97, 99, 1, 97, 98, 2] * 6, [rows_of(np.random.default_rng(k), 36, 100) for k in range(K)]
    mixed, *_ = started(K).mix(experts, text, Mode.LEARN)
    reference = Reference(100)
    expected = [
        reference.step(np.stack([rows[t] for rows in experts]), text[t], Mode.LEARN) for t in range(36)
    ]
    np.testing.assert_allclose(mixed, expected, atol=2e-4)


def test_counts_that_were_let_go_are_made_again(monkeypatch):
    """Three memories in turn, of which one is held: the same bits."""
    monkeypatch.setattr(memories, "HELD", 1)
    rows, text = rows_of(np.random.default_rng(1), 12), [1, 2, 3, 4] * 3
    several = [started() for _ in range(3)]
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
    _, then, _ = started(1, capacity).mix([one], before, Mode.LEARN)
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
    _, then, _ = started().mix([rows], before, Mode.LEARN)
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
    _, memory, _ = started().mix([rows], text, Mode.LEARN)
    looked, same, _ = memory.mix([rows[:6]], [1, 2, 5, 1, 2, 3], Mode.LOOK)
    later, *_ = memory.mix([rows[3:6]], [1, 2, 3], Mode.LOOK, context=[1, 2, 5])
    assert same is memory
    assert looked[3:].tobytes() == later.tobytes()
    context, *_ = memory.mix([rows[:6]], [1, 2, 5, 1, 2, 3], Mode.CONTEXT)
    assert context.tobytes() == looked.tobytes()


def test_what_is_stored_comes_back():
    """Beyond the capacity, counted or not, the same bits as without; of bytes, 9 bits a token."""
    config, draw = MemoryConfig(kinds_of(256)), np.random.default_rng(3)
    text, rows = draw.integers(32, 36, size=17_000).tolist(), rows_of(draw, 1_000, 256)
    memory = Memory.start(config, 1)
    for start in range(0, len(text), 1_000):
        mode = Mode.CONTEXT if start == 5_000 else Mode.LEARN
        memory = memory.mix([rows], text[start : start + 1_000], mode).memory
    stored = memory.stored()
    assert stored.nbytes == config.stored_bytes == 16_256 + 16_256 // 8
    back = Memory.restore(config, stored, memory.values, experts=1, remembered=16_256, read=memory.read)
    assert back.marked.tolist() == memory.marked.tolist()
    for mode in Mode:
        assert (
            back.mix([rows[:300]], text[:300], mode).log_probs_TV.tobytes()
            == memory.mix([rows[:300]], text[:300], mode).log_probs_TV.tobytes()
        )


@pytest.mark.parametrize("vocab_size", [300, 50_000, 70_000])
def test_any_vocabulary(vocab_size):
    """Sums are one, a repetition is known, and what is stored comes back."""
    config, rows = MemoryConfig(kinds_of(vocab_size)), rows_of(np.random.default_rng(0), 8, vocab_size)
    text = [vocab_size - 1, 0, vocab_size // 2, 7] * 2
    mixed, memory, _ = Memory.start(config, 1).mix([rows], text, Mode.LEARN)
    np.testing.assert_allclose(np.exp(mixed.astype(np.float64)).sum(1), 1, atol=1e-6)
    assert mixed[-1, 7] > rows[-1, 7] + 1
    stored = memory.stored()
    assert len(stored) == config.stored_bytes
    back = Memory.restore(config, stored, memory.values, experts=1, remembered=8, read=8)
    assert back.marked.tolist() == memory.marked.tolist()


def colliding(vocab_size):
    """Pairs of tokens whose contexts have one bucket: the hash of `src/memory.c`."""

    def scrambled(x):
        x ^= x >> np.uint64(33)
        x *= np.uint64(0xFF51AFD7ED558CCD)
        x ^= x >> np.uint64(29)
        x *= np.uint64(0xC4CEB9FE1A85EC53)
        return x ^ x >> np.uint64(32)

    newest, before = np.divmod(np.arange(vocab_size * vocab_size, dtype=np.uint64), np.uint64(vocab_size))
    hashes = np.full(len(newest), 0x9E3779B97F4A7C15, np.uint64)
    for token in (newest, before):
        hashes = scrambled(hashes + token + np.uint64(1))
    buckets = scrambled(hashes) & np.uint64(16_383)
    chosen = np.flatnonzero(buckets == buckets[0])
    return np.stack([before[chosen], newest[chosen]], 1).ravel().astype(int).tolist()


def test_contexts_of_one_bucket_cost_bounded_time():
    """1,023 places of a bucket are looked at, and no more: thousands of tokens in seconds."""
    text, rows = colliding(3_000) * 5, rows_of(np.random.default_rng(0), 100, 3_000)
    assert len(text) > 5_000
    memory, began = Memory.start(MemoryConfig(kinds_of(3_000)), 1), time.process_time()
    for start in range(0, len(text), 100):
        part = text[start : start + 100]
        mixed, memory, _ = memory.mix([rows[: len(part)]], part, Mode.LEARN)
        np.testing.assert_allclose(np.exp(mixed.astype(np.float64)).sum(1), 1, atol=1e-6)
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    "text", [[65] * 40_000, [*range(256)] * 160, [*np.random.default_rng(0).integers(256, size=40_000)]]
)
def test_hostile_texts_stay_bounded(text):
    """One byte for ever, one cycle, nothing twice: what is kept, how long it takes, and the sums."""
    memory, rows = Memory.start(MemoryConfig(kinds_of(256)), 1), rows_of(np.random.default_rng(0), 1_000, 256)
    began = time.perf_counter()
    for start in range(0, len(text), 1_000):
        part = text[start : start + 1_000]
        mixed, memory, _ = memory.mix([rows[: len(part)]], part, Mode.LEARN)
        np.testing.assert_allclose(np.exp(mixed.astype(np.float64)).sum(1), 1, atol=1e-6)
    assert time.perf_counter() - began < 40
    assert len(memory.marked) == memory.config.kept == 16_000 + 256
    assert np.isfinite(memory.values).all()


def test_what_is_wrong_is_refused():
    for orders in ((), (0,), (2, 2), (3, 1)):
        with pytest.raises(ValueError, match="orders must ascend"):
            Memory.start(MemoryConfig(KINDS, 100, orders), 1)
    for config, told in (
        (MemoryConfig(KINDS, 100, (1, 257)), "reaches back 256"),
        (MemoryConfig(KINDS, 1 << 15), "has 1 to 32511 tokens"),
        (MemoryConfig(bytes([8]), 100, ORDERS), "kind is 0 to 7"),
    ):
        with pytest.raises(ValueError, match=told):
            Memory.start(config, 1)
    memory = started()
    for tokens in ([V], [-1]):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            memory.mix([rows_of(np.random.default_rng(0), 1)], tokens, Mode.LEARN)
    assert not len(memory.marked)


@pytest.mark.parametrize("experts", [1, 2, 4])
def test_memories_of_bytes_begin_with_what_other_text_left(experts):
    """For one expert and for two: before any token, all experts alike, and within bounds."""
    config, rows = MemoryConfig(kinds_of(256)), rows_of(np.random.default_rng(0), 40, 256)
    begun = Memory.start(config, experts)
    assert (begun.values.tobytes() == memories.unlearned(config, experts).tobytes()) == (experts == 4)
    assert begun.values[: 1 + experts].tolist() == [0, *[1 / experts] * experts]
    stored = Memory.restore(config, begun.stored(), begun.values, experts=experts, remembered=0, read=0)
    mixed, *_ = stored.mix([rows] * experts, [*b"one line\n"] * 4 + [0] * 4, Mode.LEARN)
    np.testing.assert_allclose(np.exp(mixed.astype(np.float64)).sum(1), 1, atol=1e-6)
