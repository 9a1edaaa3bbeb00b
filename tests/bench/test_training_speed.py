"""Training speed, as ratios taken in one run. One thread; the figures go to standard output."""

import pytest
import torch

from benchmarks.train import Workload, measure

# Of the rate of one large product.
LEAST_OF_SGEMM = {256: 0.45, 512: 0.55}


@pytest.mark.bench
@pytest.mark.timeout(600)
@pytest.mark.parametrize("hidden", LEAST_OF_SGEMM)
def test_the_rlstm_trains_near_the_machines_rate(hidden):
    """At batch 128: a share of the sgemm rate, and at least 0.85 of our LSTM's speed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = measure(Workload(hidden=hidden, window=16), 60, torch.device("cpu"))
    finally:
        torch.set_num_threads(threads)
    for row in rows:
        print(row)
    for row in rows:
        if row.name.startswith("RLSTM"):
            assert row.sgemm >= LEAST_OF_SGEMM[hidden], row
            assert row.our_lstm >= 0.85, row
