"""What a stream has left behind: a value that can be stored and restored, to the last bit.

Shape suffixes: P fast weights.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlstm_model.state import State


class NonFiniteState(ArithmeticError):
    """A state, or the slow weights' own output, holds NaN or infinity: nothing can be computed from it."""


class StateMismatch(ValueError):
    """Stored tensors that are no state of this model; the message names the tensor or field."""


class Cursor(NamedTuple):
    """A place in a text: the state of one row before ``last``, the newest token, has been read."""

    state: State
    last: int


@dataclass(frozen=True, kw_only=True, eq=False)
class AdaptedState:
    """Everything a stream has left behind: a value, never written to.

    delta_P         the fast weights; None is zero
    now             the cursor of the adapted weights
    start           their cursor at the start of the unfinished segment: ``now`` itself when none is pending
    static          the cursor of the slow weights; None where the reference is not carried
    pending         the tokens of the unfinished segment
    pending_learn   whether each may be learned from
    position        tokens read so far
    updates         steps taken so far
    bad_steps       steps skipped in a row because they were not finite
    rate_scale      multiplies the calibrated learning rate; 0 learns nothing and lets nothing decay
    """

    delta_P: Tensor | None
    now: Cursor
    start: Cursor
    static: Cursor | None
    pending: tuple[int, ...] = ()
    pending_learn: tuple[bool, ...] = ()
    position: int = 0
    updates: int = 0
    bad_steps: int = 0
    rate_scale: float = 1.0

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, to be stored. No two share memory, which safetensors would refuse."""
        named = {"now.h": self.now.state.h, "now.c": self.now.state.c}
        if self.delta_P is not None:
            named["delta"] = self.delta_P
        if self.pending:
            named["start.h"], named["start.c"] = self.start.state
        if self.static is not None:
            named["static.h"], named["static.c"] = self.static.state
        return named

    def header(self) -> dict[str, Any]:
        """The rest, as a JSON object. ``last`` is the newest token of the static cursor as well."""
        return {
            "last": self.now.last,
            "start_last": self.start.last,
            "pending": list(self.pending),
            "pending_learn": list(self.pending_learn),
            "position": self.position,
            "updates": self.updates,
            "bad_steps": self.bad_steps,
            "rate_scale": self.rate_scale,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class StateShape:
    """What a state must look like to belong to one model and one token grid.

    ``recurrent`` has the shape of one row's cursor, and dtype and device of all tensors; ``weights`` is P.
    """

    recurrent: State
    weights: int
    vocab_size: int
    segment: int

    def restore(self, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> AdaptedState:
        """The state that was stored. Raises StateMismatch, NonFiniteState."""
        fields = _Fields(header, self.vocab_size)
        last, start_last = fields.token("last"), fields.token("start_last")
        pending, pending_learn = fields.tokens("pending"), fields.flags("pending_learn")
        position = fields.count("position")
        if len(pending) != len(pending_learn):
            raise StateMismatch("pending and pending_learn differ in length")
        if len(pending) > position % self.segment:
            raise StateMismatch(f"pending holds more tokens than the segment at position {position} has had")
        if last != (pending[-1] if pending else start_last):
            raise StateMismatch("last is not the newest token")
        cursors = ["now", *(["start"] if pending else []), *(["static"] if "static.h" in tensors else [])]
        self._check(tensors, cursors)
        now = Cursor(self._state(tensors, "now"), last)
        return AdaptedState(
            delta_P=tensors["delta"].to(self.recurrent.h.device) if "delta" in tensors else None,
            now=now,
            start=Cursor(self._state(tensors, "start"), start_last) if pending else now,
            static=Cursor(self._state(tensors, "static"), last) if "static" in cursors else None,
            pending=pending,
            pending_learn=pending_learn,
            position=position,
            updates=fields.count("updates"),
            bad_steps=fields.count("bad_steps"),
            rate_scale=fields.rate("rate_scale"),
        )

    def _state(self, tensors: Mapping[str, Tensor], name: str) -> State:
        device = self.recurrent.h.device
        return State(tensors[f"{name}.h"].to(device), tensors[f"{name}.c"].to(device))

    def _check(self, tensors: Mapping[str, Tensor], cursors: Sequence[str]) -> None:
        expected = {f"{name}.{part}" for name in cursors for part in "hc"}
        for name in sorted(expected - set(tensors)):
            raise StateMismatch(f"tensor {name} is missing")
        for name in sorted(set(tensors) - expected - {"delta"}):
            raise StateMismatch(f"tensor {name} is not part of this state")
        for name, tensor in tensors.items():
            shape = [self.weights] if name == "delta" else list(self.recurrent.h.shape)
            if list(tensor.shape) != shape:
                raise StateMismatch(f"{name} has shape {list(tensor.shape)}, not {shape}")
            if tensor.dtype != self.recurrent.h.dtype:
                raise StateMismatch(f"{name} has dtype {tensor.dtype}, not {self.recurrent.h.dtype}")
            if not bool(torch.isfinite(tensor).all()):
                raise NonFiniteState(f"{name} holds a value that is not finite")


def rate_scale_of(value: Any) -> float:
    """``value`` as a rate scale. Raises ValueError unless it is a finite number of at least 0."""
    if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:
        raise ValueError(f"rate_scale must be a finite number of at least 0, not {value!r}")
    return float(value)


class _Fields:
    """A stored header, read strictly: JSON has no types to rely on, and ``true`` is no 1."""

    def __init__(self, header: Mapping[str, Any], vocab_size: int) -> None:
        if not isinstance(header, Mapping):
            raise StateMismatch(f"the header is no object but {type(header).__name__}")
        self._header = header
        self._vocab_size = vocab_size

    def count(self, name: str) -> int:
        value = self._get(name)
        if type(value) is not int or value < 0:
            raise StateMismatch(f"{name} must be an integer of at least 0, not {value!r}")
        return value

    def token(self, name: str) -> int:
        return self._token(name, self._get(name))

    def tokens(self, name: str) -> tuple[int, ...]:
        return tuple(self._token(name, value) for value in self._list(name))

    def flags(self, name: str) -> tuple[bool, ...]:
        values = self._list(name)
        for value in values:
            if type(value) is not bool:
                raise StateMismatch(f"{name} must hold true or false, not {value!r}")
        return tuple(values)

    def rate(self, name: str) -> float:
        try:
            return rate_scale_of(self._get(name))
        except ValueError as error:
            raise StateMismatch(str(error)) from error

    def _token(self, name: str, value: object) -> int:
        if type(value) is not int or not 0 <= value < self._vocab_size:
            raise StateMismatch(f"{name} must hold tokens of the vocabulary, not {value!r}")
        return value

    def _list(self, name: str) -> Sequence[Any]:
        value = self._get(name)
        if not isinstance(value, list | tuple):
            raise StateMismatch(f"{name} must be a list, not {value!r}")
        return value

    def _get(self, name: str) -> Any:
        if name not in self._header:
            raise StateMismatch(f"the header lacks {name}")
        return self._header[name]
