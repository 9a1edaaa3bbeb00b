"""Averages against an oracle that keeps every iterate and takes each mean from a range of them."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlstm_training.averaging import make_average
from rlstm_training.config import Averaging


class _KeepAll:
    """Algorithms 1 and 2 of Two-Tailed Averaging, by indices into a list of all iterates."""

    def __init__(self, patience):
        self.iterates, self.patience = [], patience
        self.short_from = self.long_from = self.heard = 0
        self.short_losses, self.long_losses = [], []

    def mean(self, start):
        return np.mean(self.iterates[start:], axis=0)

    def lengths(self):
        return len(self.iterates) - self.short_from, len(self.iterates) - self.long_from

    def evaluate(self, raw, short, long):
        now, period = len(self.iterates), len(self.iterates) - self.heard
        self.heard = now
        self.short_losses.append(short)
        self.long_losses.append(long)
        if short <= long or self._stagnates(self.long_losses):
            self.long_from, self.long_losses, long = self.short_from, self.short_losses, short
            self.short_from, self.short_losses = now, []
        elif self._stagnates(self.short_losses):
            self.short_from, self.short_losses = now, []
        length = now - self.long_from
        if length > 1 and raw <= long:
            if length == period:
                self.short_from = self.long_from = now
                self.short_losses, self.long_losses = [], []
            return "raw", raw, 1, self.iterates[-1]
        return "long", long, length, self.mean(self.long_from)

    def _stagnates(self, losses):
        """No loss of the last few is below every one before them."""
        before = losses[: -self.patience]
        return bool(before) and min(losses[-self.patience :]) >= min(before)


def _weights(values):
    """One iterate as a model has it: several tensors, of which one is a scalar."""
    return [torch.tensor(values[:2], dtype=torch.float64), torch.tensor(values[2], dtype=torch.float64)]


def _flat(weights):
    return np.concatenate([weight.numpy().reshape(-1) for weight in weights])


def _restored(average, config, weights):
    """What a checkpoint brings back: the header as JSON, the tensors as copies."""
    again = make_average(config, weights)
    tensors = {name: [tensor.clone() for tensor in mean] for name, mean in average.tensors().items()}
    again.restore(tensors, json.loads(json.dumps(average.header())))
    return again


def _storage(weights):
    return {weight.data_ptr() for weight in weights}


_LOSS = st.integers(0, 4).map(float)
_LOSSES = st.lists(st.tuples(_LOSS, _LOSS, _LOSS), min_size=1, max_size=25)


@given(
    losses=_LOSSES,
    every=st.integers(1, 3),
    iterates=st.integers(1, 4),
    patience=st.integers(1, 4),
    restores=st.sets(st.integers(1, 300), max_size=10),
    seed=st.integers(0, 99),
)
def test_oracle_e_two_tails_are_those_of_the_algorithm(losses, every, iterates, patience, restores, seed):
    """Every decision, length and mean is the oracle's, whatever the losses, through restores at any step.

    S <= L, both are multiples of the period unless the raw weights have restarted both, the raw weights stay
    as they are, and neither mean shares storage with the other or with them.
    """
    config = Averaging(kind="two_tailed", every=every, patience=patience)
    draw, oracle, period = np.random.default_rng(seed), _KeepAll(patience), every * iterates
    weights = _weights(np.zeros(3))
    average, step = make_average(config, weights), 0
    for raw, short, long in losses:
        for _ in range(period):
            step += 1
            values = draw.normal(size=3)
            for weight, new in zip(weights, _weights(values), strict=True):
                weight.copy_(new)
            average.update(weights, step)
            if step % every == 0:
                oracle.iterates.append(values)
            if step in restores:
                average = _restored(average, config, weights)
        lengths = oracle.lengths()
        long = short if lengths[0] == lengths[1] else long

        def loss(asked, raw=raw, short=short, long=long):
            if asked is weights:
                return raw
            for name, start in ((short, oracle.short_from), (long, oracle.long_from)):
                if np.allclose(_flat(asked), oracle.mean(start), rtol=0, atol=1e-12):
                    return name
            raise AssertionError("asked for the loss of weights that are no mean of the algorithm")

        before = [weight.clone() for weight in weights]
        found = average.evaluate(loss, weights)
        assert (found.raw, found.short, found.long) == (raw, short, long)
        assert (found.short_length, found.long_length) == lengths
        assert lengths[0] <= lengths[1]
        assert [length % iterates for length in lengths] == [0, 0]
        reported, value, length, mean = oracle.evaluate(raw, short, long)
        assert (found.reported, found.loss, found.length) == (reported, value, length)
        if reported == "long":
            np.testing.assert_allclose(_flat(average.long()), mean, rtol=0, atol=1e-12)
        assert all(torch.equal(*pair) for pair in zip(weights, before, strict=True))
        kept = [weights, *average.tensors().values()]
        assert len(set.union(*map(_storage, kept))) == sum(map(len, kept))


class _Scripted:
    """A two-tailed average of period 1 whose evaluations get losses from a list."""

    def __init__(self, **config):
        self.x = torch.zeros(1)
        self.average = make_average(Averaging(kind="two_tailed", **config), [self.x])
        self.step = 0

    def evaluate(self, raw, short, long, period=2):
        for _ in range(period):
            self.step += 1
            self.x.fill_(self.step)
            self.average.update([self.x], self.step)
        answers = iter((raw, short, long))
        return self.average.evaluate(lambda _: next(answers), [self.x])

    @property
    def lengths(self):
        header = self.average.header()
        return header["short"][0], header["long"][0]


def test_a_period_without_iterates_changes_no_mean():
    """Evaluated more often than iterates come, an empty average is never reported."""
    run = _Scripted(every=4)
    for _ in range(2):
        found = run.evaluate(1.0, math.nan, math.nan, period=1)
        assert (found.reported, found.loss, found.long, found.long_length) == ("raw", 1.0, math.inf, 0)
    assert run.evaluate(5.0, 0.5, math.nan).length == 1


def test_what_is_no_number_is_never_preferred():
    """A mean with an infinite iterate loses to finite raw weights."""
    found = _Scripted().evaluate(3.0, math.nan, math.nan)
    assert (found.reported, found.loss) == ("raw", 3.0)


@pytest.mark.parametrize("kind", ["tail", "two_tailed"])
def test_an_average_restored_from_before_forgets_what_was_no_number(kind):
    """After weights that were no numbers, an average that was empty in the checkpoint is clean again."""
    config, x = Averaging(kind=kind, latest=1), torch.zeros(2)
    average = make_average(config, [x])
    tensors, header = average.tensors(), average.header()
    average.update([torch.full((2,), math.nan)], 1)
    average.restore(tensors, header)
    average.update([torch.ones(2)], 2)
    average.evaluate(lambda _: 1.0, [x])
    if kind == "two_tailed":
        average.evaluate(lambda _: 0.5, [x])
    for mean in average.tensors().values():
        assert mean[0].isfinite().all()


def _tail(losses, **config):
    """A tail average under raw losses, evaluated every other step: its lengths, and its mean at the end."""
    x = torch.zeros(1, dtype=torch.float64)
    average = make_average(Averaging(kind="tail", **config), [x])
    found = []
    for step in range(1, 2 * len(losses) + 1):
        x.fill_(step)
        average.update([x], step)
        if step % 2 == 0:
            raw = losses[step // 2 - 1]
            found.append(average.evaluate(lambda w, raw=raw: raw if w[0] is x else 7.0, [x]))
    return found, average


def test_a_tail_begins_when_the_raw_weights_stagnate():
    """It holds every iterate from then on, never begins anew, and is what is reported."""
    found, average = _tail([5.0, 4.0, 4.0, 4.5, 1.0, 1.0], patience=2)
    assert [one.length for one in found] == [1, 1, 1, 1, 2, 4]
    assert [one.loss for one in found] == [5.0, 4.0, 4.0, 4.5, 7.0, 7.0]
    assert [one.reported for one in found] == ["raw"] * 4 + ["long"] * 2
    assert average.long()[0].item() == pytest.approx(np.mean([9, 10, 11, 12]))


def test_a_tail_begins_at_the_latest_and_may_skip_steps():
    """At the named step in a run that never stagnates; every third step is an iterate."""
    found, average = _tail([float(-n) for n in range(6)], latest=5, every=3)
    assert [one.long_length for one in found] == [0, 0, 1, 1, 2, 3]
    assert average.long()[0].item() == pytest.approx(np.mean([6, 9, 12]))


def test_without_an_average_the_raw_weights_count():
    """Nothing is kept and nothing else is evaluated."""
    x = torch.zeros(1)
    average = make_average(Averaging(), [x])
    average.update([x], 1)
    asked = []
    found = average.evaluate(lambda weights: asked.append(weights) or 2.5, [x])
    assert (found.reported, found.loss, found.length) == ("raw", 2.5, 1)
    assert len(asked) == 1
    assert (average.tensors(), average.header()) == ({}, {})
