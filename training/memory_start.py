"""What memories of bytes begin with: `python training/memory_start.py` in a checkout.

A shipped model reads what `rlstm calibrate` chooses rules on, all in one session; shares, maps and weights of
the tree are kept as they are then, for one expert and for two. They are of any model of bytes. The blend's
weights begin as they did: their sum is one, so that before anything was counted a memory says what its
experts do.
"""

from dataclasses import replace

import numpy as np
from safetensors.numpy import save

from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.adaptation.state import Adapt
from rlstm_model.checkpoint import load
from rlstm_model.files import replace_file
from rlstm_model.local import LocalModel
from rlstm_model.native.memory import ORDERS, START, TokenKind, size_of, unlearned
from rlstm_training.commands.calibrate import CHANGING, ON, passages_held_out
from rlstm_training.commands.given import sources_of

TEXT = 5
"""Contexts of text (`memory.c`)."""
MODEL, LENGTH = "bytes-small", 8_000
LARGE = 257
"""A vocabulary without a tree: what is learned of it ends with the blend's weights."""
KINDS: dict[int, Adapt] = {1: "memory", 2: "both"}


def weights_of_blend(experts: int) -> int:
    """For each input: of all tokens, of either chain's depth, and of kinds (`memory.c`)."""
    return (1 + 2 * (TEXT + 1) + 2 * (len(ORDERS) + 1) + len(TokenKind) ** 2) * (experts + 2)


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
        weights = slice(size_of(LARGE, experts) - weights_of_blend(experts), size_of(LARGE, experts))
        values[weights] = unlearned(state.memory.config, experts)[weights]
        learned[str(experts)] = np.ascontiguousarray(values)
    replace_file(START, save(learned))


if __name__ == "__main__":
    memory_start()
