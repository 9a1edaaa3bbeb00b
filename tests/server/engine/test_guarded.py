import signal
import subprocess
import sys

import pytest
import torch
from rlstm_server.engine.guarded import guard_weights

from rlstm_model.checkpoint import load
from rlstm_server.engine.runner import weights_digest

CHILD = """
import sys
import torch
from rlstm_model.checkpoint import load
from rlstm_server.engine.guarded import guard_weights

model = load(sys.argv[1]).model
guard_weights(model)
print(float(next(model.parameters()).sum()), flush=True)
with torch.no_grad():
    {change}
print("changed", flush=True)
"""


def test_guarded_weights_are_the_same_weights(tiny_checkpoint):
    """To the last bit, laid out as before, and what is computed with them is."""
    free, guarded = load(tiny_checkpoint).model, load(tiny_checkpoint).model
    guard_weights(guarded)
    assert weights_digest([guarded]) == weights_digest([free])
    for before, after in zip(free.parameters(), guarded.parameters(), strict=True):
        assert after.data_ptr() % 64 == 0
        assert (after.stride(), after.requires_grad) == (before.stride(), before.requires_grad)
        assert torch.equal(before @ before.mT, after @ after.mT) if before.dim() == 2 else True


@pytest.mark.faults
@pytest.mark.parametrize(
    "change",
    ["next(model.parameters()).add_(1)", "list(model.parameters())[-1].data.view(-1)[-1:].zero_()"],
)
def test_a_write_to_a_base_weight_ends_the_process(tiny_checkpoint, change):
    """At the first of them and at the last; reading is no fault."""
    command = [sys.executable, "-c", CHILD.format(change=change), str(tiny_checkpoint)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    print(f"\nin-place write to a base weight: child died by {signal.Signals(-child.returncode).name}")
    assert child.returncode == -signal.SIGSEGV
    assert child.stdout.count("\n") == 1
