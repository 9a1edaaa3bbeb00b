"""What computes: rows of a batch are read by it, and learn.

:class:`NativeBackend` is that of a CPU. A row's numbers are its own, to the last bit, whatever is in the
batch beside it. Shape suffixes: T tokens, U hidden units of all layers, V vocabulary, P fast weights.
"""

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Protocol

import numpy as np

from rlstm_model import native
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.native import PackedModel, Row, Window
from rlstm_model.native.packed import Space
from rlstm_model.parameters import Parameters


class Backend(Protocol):
    """A model under a calibration, or without one, on one device."""

    @property
    def vocab_size(self) -> int:
        """V."""

    @property
    def units(self) -> int:
        """U."""

    @property
    def fast_weights(self) -> int:
        """P; 0 without a calibration."""

    @property
    def dtype(self) -> type:
        """What fast weights are kept in between segments."""

    def read(self, rows: Sequence[Row]) -> list[Window]:
        """Read a window in each row, then learn where there are targets: all of these of one length.

        Every log-probability is that of the weights before the step.
        A row without targets may be longer or shorter.
        """


class NativeBackend:
    """The native core. ``temperature`` multiplies the logits, in scores and in the loss."""

    def __init__(
        self,
        parameters: Parameters,
        calibration: Calibration | None = None,
        *,
        temperature: float = 1.0,
        threads: int | None = None,
    ) -> None:
        """Raises ValueError where the statistics allow no rule, or the model cannot learn."""
        if calibration is not None and parameters.config.softmax_components > 1:
            raise ValueError("a model with a mixture of softmaxes is only scored: nothing in it can learn")
        self.vocab_size = parameters.config.vocab_size
        self.units = parameters.units
        self._parameters, self._calibration = parameters, calibration
        self._rule = None if calibration is None else calibration.rule(parameters.norm)
        self._temperature, self._threads = temperature, threads
        self.fast_weights = 0 if calibration is None else calibration.config.num_fast_weights
        self.dtype: type = np.float32 if calibration is None else calibration.space.dtype

    def read(self, rows: Sequence[Row]) -> list[Window]:
        """See :class:`Backend`."""
        if self._calibration is not None and self._calibration.space.whole:
            return [self._read_whole(row) for row in rows]
        learned = max((len(row.ids) for row in rows if row.targets), default=None)
        longer = [i for i, row in enumerate(rows) if learned is not None and len(row.ids) > learned]
        window = partial(native.pool(self._threads).window, self._packed, temperature=self._temperature)
        if not longer:
            return window(rows)
        # No row of a window is longer than those that learn: the others are read by themselves.
        rest = [i for i in range(len(rows)) if i not in set(longer)]
        done = dict(zip(longer, window([rows[i] for i in longer]), strict=True))
        done |= zip(rest, window([rows[i] for i in rest]), strict=True)
        return [done[i] for i in range(len(rows))]

    @cached_property
    def _packed(self) -> PackedModel:
        calibration = self._calibration
        space = None if calibration is None else calibration.space
        return PackedModel(self._parameters.config, self._parameters.arrays, space, self._rule)

    @cached_property
    def _plain(self) -> PackedModel:
        return PackedModel(self._parameters.config, self._parameters.arrays, Space({}, ()))

    def _read_whole(self, row: Row) -> Window:
        """A row of the kind ``full``: its fast weights are laid over a model that is kept for that."""
        packed = self._plain if row.delta_P is None and not row.targets else self._packed
        if packed is self._packed:
            packed.lay(np.zeros(self.fast_weights, np.float32) if row.delta_P is None else row.delta_P)
        return native.pool(self._threads).window(packed, [row], temperature=self._temperature)[0]
