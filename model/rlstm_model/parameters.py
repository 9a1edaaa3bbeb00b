"""A model's parameters as arrays, by the names that they have in a checkpoint.

============================  =========================  ====================================================
name                          shape                      there
============================  =========================  ====================================================
``embedding.input``           ``[V, H]``                 always; as wide as what layer 0 reads
``embedding.output``          ``[V, H]``                 unless tied: then it is the input's
``embedding.bias``            ``[V]``                    always
``embedding.mixture.*``       see :func:`shapes`         with several softmax components
``stack.layers.L.*``          see :func:`shapes`         always
============================  =========================  ====================================================
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlstm_model.config import ModelConfig


class Parameters(NamedTuple):
    """A model: its shape, and its weights as float16 or float32 arrays, in the order of :func:`shapes`."""

    config: ModelConfig
    arrays: Mapping[str, NDArray[Any]]

    @property
    def norm(self) -> float:
        """The norm of all weights together."""
        return math.sqrt(
            math.fsum(float(np.square(array.astype(np.float64)).sum()) for array in self.arrays.values())
        )

    @property
    def units(self) -> int:
        """Hidden units of all layers together."""
        return sum(self.arrays[f"stack.layers.{layer}.h"].shape[1] for layer in range(self.config.num_layers))


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter, in their order. Gates stand as blocks in the order i, j, f, o."""
    v, rank, widths = config.vocab_size, config.mogrifier_rank, config.layer_widths
    rlstm, rounds, components = config.cell == "rlstm", config.mogrifier_rounds, config.softmax_components
    named: dict[str, tuple[int, ...]] = {"embedding.input": (v, widths[0][0])}
    if not config.tie_embeddings:
        named["embedding.output"] = (v, widths[-1][1])
    named["embedding.bias"] = (v,)
    if components > 1:
        n = config.hidden_size
        named["embedding.mixture.projection"] = (components, n, n)
        named["embedding.mixture.projection_bias"] = (components, n)
        named["embedding.mixture.weights"] = (components, n)
    for layer, (below, n) in enumerate(widths):
        own: dict[str, tuple[int, ...]] = {
            "x": ((2 if rlstm else 4) * n, below),
            "h": ((3 if rlstm else 4) * n, n),
        }
        own |= {"u": (n, n), "c": (n, n)} if rlstm else {}
        own |= {"bias": (4 * n,), "mogrifier_up": (rounds, n, rank or n)}
        own |= {"mogrifier_down": (rounds, rank, n)} if rank else {}
        own |= {"mogrifier_bias": (rounds, n)} if config.mogrifier_bias else {}
        named |= {f"stack.layers.{layer}.{name}": shape for name, shape in own.items()}
    return named
