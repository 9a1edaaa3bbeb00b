"""A range coder (Martin 1979) for tokens, of the library constriction, and what it is given.

A token of probability p has the weight 2^(30 - k / 1024), rounded to a whole number, k = round(-1024 log2 p),
by arithmetic that IEEE 754 rounds in one way only. The library scales weights to 2^24 parts and gives every
token one part at least. Sums of whole numbers are exact, so all of it is the same on every machine. It costs
some V / 2^24 nats a token. Shape suffixes: T tokens, V vocabulary.
"""

from decimal import Decimal
from typing import Final

import constriction
import numpy as np
from numpy.typing import NDArray

from rlstm_model.scores import Floats

_STEPS: Final = 1024
_OCTAVES: Final = 31
_LN_2: Final = 0.6931471805599453


def _powers() -> NDArray[np.float64]:
    """The weight for each k."""
    whole = np.array([round(2 ** (_OCTAVES - 1 - Decimal(k) / _STEPS)) for k in range(_STEPS)])
    powers = [np.maximum(whole >> octave, 1) for octave in range(_OCTAVES)]
    return np.concatenate(powers, dtype=np.float64)


_POWERS: Final = _powers()


def weights(log_probs: Floats) -> NDArray[np.float64]:
    """Whole numbers, nearly in proportion to the probabilities. Raises ArithmeticError for NaN."""
    if np.isnan(log_probs).any():
        raise ArithmeticError("the model's output is not finite")
    k = np.rint(log_probs.astype(np.float64) * (-_STEPS / _LN_2))
    return _POWERS[np.clip(k, 0, len(_POWERS) - 1).astype(np.intp)]


class Encoder:
    """Tokens to bytes."""

    def __init__(self) -> None:
        self._coder = constriction.stream.queue.RangeEncoder()
        self._family = constriction.stream.model.Categorical(perfect=False)

    def encode(self, ids: NDArray[np.int32], log_probs_TV: Floats) -> None:
        """The next tokens, and what each of them is coded by."""
        self._coder.encode(ids, self._family, weights(log_probs_TV))

    def data(self) -> bytes:
        """All of it so far."""
        return np.asarray(self._coder.get_compressed(), "<u4").tobytes()


class Decoder:
    """Bytes to tokens."""

    def __init__(self, data: bytes) -> None:
        self._coder = constriction.stream.queue.RangeDecoder(np.frombuffer(data, "<u4").astype(np.uint32))

    def decode(self, log_probs_V: Floats) -> int:
        """The next token, which was coded by this; some token for bytes that come from elsewhere."""
        model = constriction.stream.model.Categorical(weights(log_probs_V), lazy=True)
        try:
            return int(self._coder.decode(model))
        except AssertionError:  # nothing is coded so
            return 0
