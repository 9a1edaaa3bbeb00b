"""What memories of bytes begin with: `python training/memory_start.py` in a checkout.

A shipped model reads what `rlstm calibrate` chooses rules on, all in one session; shares, maps and weights of
the mixing are kept as they are then, for one expert and for two. They are of any model of bytes.
"""

from dataclasses import replace

import numpy as np
import typer
from safetensors.numpy import save

from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.adaptation.state import Adapt
from rlstm_model.checkpoint import load
from rlstm_model.files import replace_file
from rlstm_model.local import LocalModel
from rlstm_model.native.memory import START, unlearned
from rlstm_training.commands.calibrate import CHANGING, ON, passages_held_out
from rlstm_training.commands.given import sources_of

MODEL, LENGTH = "bytes-small", 8_000
KINDS: dict[int, Adapt] = {1: "memory", 2: "both"}


def memory_start() -> None:
    """Write the file that the library reads."""
    checkpoint = load(MODEL)
    calibration = LocalModel(checkpoint).calibrated.choose()
    evaluator = DynamicEvaluator.of(
        checkpoint.parameters, calibration, bos_id=checkpoint.vocab.bos_id, logprobs_only=True
    )
    passages = passages_held_out(checkpoint, sources_of(MODEL, None), ON, LENGTH)
    (passage,) = [each for each in passages if each.name == CHANGING]
    learned = {}
    for experts, adapt in KINDS.items():
        state = evaluator.start(experts=experts, adapt=adapt)
        assert state.memory is not None
        values = unlearned(state.memory.config, experts)
        state = replace(state, memory=state.memory._replace(values=values))
        for observed in evaluator.observe(state, passage.ids):
            state = observed.state
        assert state.memory is not None
        values = state.memory.values.copy()
        values[0], values[1 : 1 + experts] = 0, 1 / experts  # no token was read, and all experts count alike
        learned[str(experts)] = np.ascontiguousarray(values)
    replace_file(START, save(learned))


if __name__ == "__main__":
    typer.run(memory_start)
