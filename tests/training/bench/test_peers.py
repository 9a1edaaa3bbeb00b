"""Peers: ratios are taken within a round, at each peer's fastest number of threads."""

import pytest
import torch

from rlstm_training.bench import peers as module
from rlstm_training.bench.peers import Peer, figures, measure

CPU = torch.device("cpu")


def _peer(name, task="learning", work=lambda: 1, threads=(1,)):
    return Peer(name=name, task=task, weights=10, work=work, threads=threads)


def test_each_is_compared_with_ours_of_its_task_within_a_round():
    """A machine ten times slower in one round changes the speeds of that round and no ratio."""
    found = [_peer("ours"), _peer("eager"), _peer("our scoring", "static"), _peer("lstm", "static")]
    fast = {"ours": 90.0, "eager": 3.0, "our scoring": 50.0, "lstm": 100.0}
    slow = {name: rate / 10 for name, rate in fast.items()}
    told = figures(found, [fast, slow, slow])
    assert [row.ours for row in told] == pytest.approx([1.0, 30.0, 1.0, 0.5])
    assert (told[0].slowest, told[0].tokens_per_second, told[0].fastest) == (9.0, 9.0, 90.0)


def test_the_fastest_number_of_threads_counts(monkeypatch):
    """Of those that a peer is to try; afterwards the process has as many as before."""
    monkeypatch.setattr(
        module, "_rate", lambda work, threads, seconds, device: {1: 5.0, 2: 9.0, 3: 7.0}[threads]
    )
    before, done = torch.get_num_threads(), []
    found = [_peer("ours"), _peer("eager", threads=(1, 2, 3))]
    told = measure(found, rounds=2, seconds=0, device=CPU, on_round=done.append)
    assert [row.tokens_per_second for row in told] == [5.0, 9.0]
    assert done == [1, 2]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("threads", [1, 2])
def test_a_rate_is_tokens_over_time(threads):
    """Counted from a second call on: the first, which is slow, only warms up."""
    calls = []

    def work():
        calls.append(torch.get_num_threads())
        return 100

    (told,) = measure([_peer("ours", work=work, threads=(threads,))], rounds=1, seconds=0.02, device=CPU)
    assert set(calls) == {threads}
    assert 0 < told.tokens_per_second <= 100 * (len(calls) - 1) / 0.02
