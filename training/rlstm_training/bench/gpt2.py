"""GPT-2 of a given size, where the library ``transformers`` is installed: a peer that cannot learn."""

import importlib
import importlib.util
import math
from dataclasses import dataclass
from typing import Any

LIBRARY = "transformers"
EXTRA = "peers"
WIDTH_OVER_DEPTH = 64
HEAD = 64
_MOST_LAYERS = 48
_STEP = 8


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A GPT-2: units of a layer, layers, heads of one, and the tokens that it can look back on."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    context: int

    @property
    def weights(self) -> int:
        """Attention has 4 d^2 weights a layer, what follows it 8 d^2; tokens and places have embeddings."""
        d = self.width
        return self.layers * (12 * d * d + 13 * d) + (self.vocabulary + self.context + 2) * d

    @property
    def multiply_adds(self) -> int:
        """Of a token: one for every weight that is multiplied; what attention itself takes is not counted."""
        return self.layers * 12 * self.width * self.width + self.vocabulary * self.width


def shape_of_size(weights: int, *, vocabulary: int, context: int) -> Shape:
    """The shape of at most so many weights whose proportions are closest to GPT-2's own, 64 units a layer.

    Raises ValueError when the embeddings alone have more.
    """
    shapes = []
    for layers in range(1, _MOST_LAYERS + 1):
        width = _greatest_width(weights, layers, vocabulary + context + 2)
        if width:
            heads = _heads(width)
            shapes.append(
                Shape(vocabulary=vocabulary, width=width, layers=layers, heads=heads, context=context)
            )
    if not shapes:
        raise ValueError(f"there is no GPT-2 of {weights:,} weights over {vocabulary:,} tokens")
    return min(shapes, key=lambda shape: abs(math.log(shape.width / shape.layers / WIDTH_OVER_DEPTH)))


def is_installed() -> bool:
    """Whether there is a library to build it with."""
    return importlib.util.find_spec(LIBRARY) is not None


def build(shape: Shape) -> Any:
    """The model, with random weights, ready to read: it maps ids ``[B, T]`` to ``logits`` ``[B, T, V]``."""
    library = importlib.import_module(LIBRARY)
    config = library.GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=shape.context,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return library.GPT2LMHeadModel(config).eval().requires_grad_(False)


def _greatest_width(weights: int, layers: int, embedded: int) -> int:
    """The root of 12 L d^2 + (13 L + E) d = weights, to whole steps below."""
    linear = 13 * layers + embedded
    root = (math.sqrt(linear * linear + 48 * layers * weights) - linear) / (24 * layers)
    return int(root) // _STEP * _STEP


def _heads(width: int) -> int:
    """The number whose heads are closest to GPT-2's, of those that divide the width."""
    divisors = [count for count in range(1, width + 1) if width % count == 0]
    return min(divisors, key=lambda count: abs(math.log(width / count / HEAD)))
