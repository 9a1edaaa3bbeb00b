"""Runs on disk that nobody trained: their records are made up."""

import pytest
import torch

from rlstm_training.run import RunDirectory


@pytest.fixture
def make_run(tmp_path, toy_recipe):
    """Writes a run directory: an evaluation of ``losses`` (nats a token) every ten steps of forty."""

    def make(place="run", losses=(3.0, 2.0), *, finished=False, records=(), **changes):
        recipe = toy_recipe(**{"steps": 40, "window": 8, "evaluate_every": 10, **changes})
        with RunDirectory.open(tmp_path / place, recipe) as run:
            for step, nats in zip(range(10, 50, 10), losses, strict=False):
                run.log({"step": step, "loss": nats + 0.5, "rate": 0.01, "tokens_per_second": 64.0 + step})
                run.log(
                    {
                        "step": step,
                        "valid": {"text": 9.0},
                        "nats": {"raw": nats + 0.1, "short": None, "long": nats, "reported": nats},
                        "lengths": {"short": 0, "long": step, "reported": step},
                        "seconds": step * 2.0,
                    }
                )
            for record in records:
                run.log(record)
            if losses:
                run.save(10 * len(losses), {"w": torch.zeros(1)}, {"finished": finished})
        return run.folder

    return make
