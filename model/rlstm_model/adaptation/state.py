"""What a stream has left behind: a value that can be stored and restored, to the last bit.

Shape suffixes: R rows of a stream, U hidden units of all layers, K experts that learn, P fast weights.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from rlstm_model.adaptation.mixture import MixtureState
from rlstm_model.native.memory import Memory, MemoryConfig, kinds_of, size_of

EXPERT_RATES: Final = {1: (1.0,), 2: (1.0,), 4: (1 / 3, 1.0, 3.0)}
"""What the rates of the experts that learn are multiplied with, by the number of experts.

One expert learns; of several, the first is the frozen baseline: it never learns.
"""

Adapt: TypeAlias = Literal["weights", "memory", "both"]
"""What adapts to a text: fast weights, a memory of its newest tokens beside frozen weights, or both."""

Floats = NDArray[np.float32]


class NonFiniteState(ArithmeticError):
    """A state, or the slow weights' own output, holds NaN or infinity: nothing can be computed from it."""


class StateMismatch(ValueError):
    """Stored arrays that are no state of this model; the message names the array or field."""


@dataclass(frozen=True, kw_only=True)
class ExpertConfig:
    """The rows that read a stream: first the frozen baseline, where there is one, then those that learn.

    experts  how many are mixed: 1, 2 or 4; of several the frozen baseline is one
    static   whether the slow weights read along; beside a single expert they are a reference only
    adapt    with a memory, that is mixed as one expert more; without weights, the frozen baseline alone reads
    """

    experts: int = 1
    static: bool = True
    adapt: Adapt = "weights"

    def __post_init__(self) -> None:
        if type(self.experts) is not int or self.experts not in EXPERT_RATES:
            known = ", ".join(map(str, EXPERT_RATES))
            raise ValueError(f"experts must be one of {known}, not {self.experts!r}")
        if type(self.static) is not bool:
            raise ValueError(f"static must be true or false, not {self.static!r}")
        if self.experts > 1 and not self.static:
            raise ValueError("several experts include the frozen baseline: static must be true")
        if self.adapt not in get_args(Adapt):
            raise ValueError(f"adapt must be one of {', '.join(get_args(Adapt))}, not {self.adapt!r}")
        if self.adapt == "memory" and (self.experts > 1 or not self.static):
            raise ValueError("beside a memory without fast weights there is one expert, the frozen baseline")
        if self.adapt == "both" and self.experts == 1:
            raise ValueError("a memory beside fast weights needs the frozen baseline: 2 or 4 experts")

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """What the rates of the rows that learn are multiplied with."""
        return () if self.adapt == "memory" else EXPERT_RATES[self.experts]

    @cached_property
    def remembers(self) -> bool:
        """Whether a memory is mixed with the experts."""
        return self.adapt != "weights"

    @cached_property
    def guarded(self) -> bool:
        """Whether a single expert learns beside the frozen baseline: no mixture bounds its loss."""
        return self.static and self.experts == 1 and self.adapt == "weights"

    @cached_property
    def mixture_size(self) -> int:
        """How many are mixed: the experts, and the memory, which is the last."""
        return self.experts + self.remembers

    @cached_property
    def learning(self) -> slice:
        """The rows that learn."""
        return slice(int(self.static), self.rows)

    @cached_property
    def rows(self) -> int:
        """R."""
        return int(self.static) + len(self.rates)

    @cached_property
    def mixed(self) -> slice:
        """The rows that are mixed."""
        return slice(self.rows - self.experts, self.rows)


class Cursor(NamedTuple):
    """A place in a text: the recurrent states of some rows before ``last``, the newest token, has been read.

    states_R2U  h and c of all layers, side by side
    mixture     of the rows that are mixed, the last ones, and of a memory; None for a single expert
    context     tokens that were read since the memory's moment, as many as matter
    """

    states_R2U: Floats
    last: int
    mixture: MixtureState | None = None
    context: tuple[int, ...] = ()

    def of(self, rows: slice) -> "Cursor":
        """Where some rows are."""
        return Cursor(self.states_R2U[rows].copy(), self.last)

    @property
    def experts(self) -> int:
        """How many are mixed."""
        return 1 if self.mixture is None else self.mixture.experts


@dataclass(frozen=True, kw_only=True, eq=False)
class AdaptedState:
    """Everything a stream has left behind: a value, never written to.

    expert_config   the rows that read it
    delta_KP        the fast weights of the rows that learn; None is zero for all
    now             where all rows are
    start           where those that learn were when the unfinished segment began: where they are when none is
                    pending
    mixture         of the experts and the memory; None for a single one
    memory          of the newest tokens; None without one
    pending         the tokens of the unfinished segment
    pending_learn   whether each may be learned from
    position        tokens read so far
    updates         segments learned from so far
    bad_steps       for each row that learns, steps skipped in a row because they were not finite
    rate_scale      multiplies the calibrated learning rate; 0 learns nothing and lets nothing decay
    """

    expert_config: ExpertConfig
    delta_KP: NDArray[Any] | None
    now: Cursor
    start: Cursor
    mixture: MixtureState | None = None
    memory: Memory | None = None
    pending: tuple[int, ...] = ()
    pending_learn: tuple[bool, ...] = ()
    position: int = 0
    updates: int = 0
    bad_steps: tuple[int, ...] = (0,)
    rate_scale: float = 1.0

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        start = self.start.states_R2U if self.pending else None
        parts = self.now.states_R2U, self.delta_KP, start, self.memory
        return sum([part.nbytes for part in parts if part is not None])

    @property
    def weights(self) -> tuple[float, ...]:
        """How much each expert counts in the next prediction; they sum to 1."""
        return (1.0,) if self.mixture is None else self.mixture.weights

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by name, C-contiguous, to be stored."""
        named: dict[str, NDArray[Any]] = {"now": self.now.states_R2U}
        if self.delta_KP is not None:
            named["delta"] = self.delta_KP
        if self.pending:
            named["start"] = self.start.states_R2U
        if self.memory is not None:
            named |= {"memory": self.memory.stored(), "mixing": self.memory.values}
        return {name: np.ascontiguousarray(array) for name, array in named.items()}

    def header(self) -> dict[str, Any]:
        """The rest, as a JSON object. Mixture weights are written so that they are read back bit by bit."""
        return {
            "experts": self.expert_config.experts,
            "static": self.expert_config.static,
            "adapt": self.expert_config.adapt,
            "remembered": 0 if self.memory is None else len(self.memory.marked),
            "read": 0 if self.memory is None else self.memory.read,
            "last": self.now.last,
            "start_last": self.start.last,
            "weights": list(self.weights),
            "weights_tokens": 0 if self.mixture is None else self.mixture.tokens,
            "pending": list(self.pending),
            "pending_learn": list(self.pending_learn),
            "position": self.position,
            "updates": self.updates,
            "bad_steps": list(self.bad_steps),
            "rate_scale": self.rate_scale,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class StateSchema:
    """What a state must look like to belong to one model and one token grid.

    units       U
    weights     P, and ``dtype`` what fast weights are kept in
    vocab_size  of the model
    segment     tokens of a step
    """

    units: int
    weights: int
    dtype: type
    vocab_size: int
    segment: int

    def restore(self, arrays: Mapping[str, NDArray[Any]], header: Mapping[str, Any]) -> AdaptedState:
        """The state whose arrays and header these are.

        Raises StateMismatch when shapes or fields are not this model's, NonFiniteState for NaN or infinity.
        """
        fields = _Fields(header, self.vocab_size)
        try:
            expert_config = ExpertConfig(
                **{name: fields.get(name) for name in ("experts", "static", "adapt")}
            )
            rate_scale = rate_scale_of(fields.get("rate_scale"))
        except ValueError as error:
            raise StateMismatch(str(error)) from error
        last, start_last = fields.token("last"), fields.token("start_last")
        pending = fields.all("pending", fields.is_token, "tokens of the vocabulary")
        pending_learn = fields.all("pending_learn", lambda flag: type(flag) is bool, "true or false")
        position = fields.count("position")
        if len(pending) != len(pending_learn):
            raise StateMismatch("pending and pending_learn differ in length")
        if len(pending) > (position % self.segment if expert_config.rates else 0):
            raise StateMismatch(f"pending holds more tokens than the segment at position {position} has had")
        if last != (pending[-1] if pending else start_last):
            raise StateMismatch("last is not the newest token")
        self._check(arrays, expert_config, pending=bool(pending))
        now, rows = Cursor(arrays["now"], last), len(expert_config.rates)
        return AdaptedState(
            expert_config=expert_config,
            delta_KP=arrays.get("delta"),
            now=now,
            start=Cursor(arrays["start"], start_last) if pending else now.of(expert_config.learning),
            mixture=fields.mixture(expert_config),
            memory=self._memory(arrays, expert_config, fields),
            pending=pending,
            pending_learn=pending_learn,
            position=position,
            updates=fields.count("updates"),
            bad_steps=fields.all("bad_steps", _is_count, f"{rows} counts", rows),
            rate_scale=rate_scale,
        )

    def layout(
        self, expert_config: ExpertConfig, *, pending: bool
    ) -> dict[str, tuple[tuple[int, ...], type]]:
        """Shape and dtype of each array that a state may have; all but ``delta`` must be there."""
        named: dict[str, tuple[tuple[int, ...], type]]
        named = {"now": ((expert_config.rows, 2, self.units), np.float32)}
        if pending and expert_config.rates:
            named["start"] = (len(expert_config.rates), 2, self.units), np.float32
        if expert_config.remembers:
            named["memory"] = (MemoryConfig(kinds_of(self.vocab_size)).stored_bytes,), np.uint8
            named["mixing"] = (size_of(self.vocab_size, expert_config.experts),), np.float32
        if expert_config.rates:
            named["delta"] = (len(expert_config.rates), self.weights), self.dtype
        return named

    def _memory(
        self, arrays: Mapping[str, NDArray[Any]], expert_config: ExpertConfig, fields: "_Fields"
    ) -> Memory | None:
        remembered, read = fields.count("remembered"), fields.count("read")
        if not expert_config.remembers:
            return None
        try:
            return Memory.restore(
                MemoryConfig(kinds_of(self.vocab_size)),
                arrays["memory"],
                arrays["mixing"],
                experts=expert_config.experts,
                remembered=remembered,
                read=read,
            )
        except ValueError as error:
            raise StateMismatch(f"memory: {error}") from error

    def _check(
        self, arrays: Mapping[str, NDArray[Any]], expert_config: ExpertConfig, *, pending: bool
    ) -> None:
        layout = self.layout(expert_config, pending=pending)
        for name in sorted(set(layout) - set(arrays) - {"delta"}):
            raise StateMismatch(f"array {name} is missing")
        for name in sorted(set(arrays) - set(layout)):
            raise StateMismatch(f"array {name} is not part of this state")
        for name, array in arrays.items():
            shape, dtype = layout[name]
            if array.shape != shape:
                raise StateMismatch(f"{name} has shape {list(array.shape)}, not {list(shape)}")
            if array.dtype != dtype:
                raise StateMismatch(f"{name} has dtype {array.dtype}, not {np.dtype(dtype)}")
            if not is_finite(array):
                raise NonFiniteState(f"{name} holds a value that is not finite")


def is_finite(array: NDArray[Any]) -> bool:
    """Whether an array holds neither NaN nor infinity."""
    return bool(np.isfinite(array).all())


def rate_scale_of(value: Any) -> float:
    """``value`` as a rate scale. Raises ValueError unless it is a finite number of at least 0."""
    if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:
        raise ValueError(f"rate_scale must be a finite number of at least 0, not {value!r}")
    return float(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


class _Fields:
    """A stored header, read strictly: JSON has no types to rely on, and ``true`` is no 1."""

    def __init__(self, header: Mapping[str, Any], vocab_size: int) -> None:
        if not isinstance(header, Mapping):
            raise StateMismatch(f"the header is no object but {type(header).__name__}")
        self._header = header
        self._vocab_size = vocab_size

    def get(self, name: str, valid: Callable[[Any], bool] = lambda value: True, wanted: str = "") -> Any:
        if name not in self._header:
            raise StateMismatch(f"the header lacks {name}")
        if not valid(self._header[name]):
            raise StateMismatch(f"{name} must hold {wanted}, not {self._header[name]!r}")
        return self._header[name]

    def all(
        self, name: str, valid: Callable[[Any], bool], wanted: str, length: int | None = None
    ) -> tuple[Any, ...]:
        """A list of as many such values, or of any number."""

        def fits(values: Any) -> bool:
            listed = isinstance(values, list | tuple) and length in (None, len(values))
            return listed and all(map(valid, values))

        return tuple(self.get(name, fits, wanted))

    def is_token(self, value: Any) -> bool:
        return type(value) is int and 0 <= value < self._vocab_size

    def token(self, name: str) -> int:
        return int(self.get(name, self.is_token, "a token of the vocabulary"))

    def count(self, name: str) -> int:
        return int(self.get(name, _is_count, "a 64-bit integer of at least 0"))

    def mixture(self, expert_config: ExpertConfig) -> MixtureState | None:
        size, tokens = expert_config.mixture_size, self.count("weights_tokens")
        if tokens > self.count("position"):
            raise StateMismatch(f"weights_tokens is {tokens}, beyond the position")
        weights = self.all("weights", lambda weight: type(weight) is float, f"{size} weights", size)
        mixture = MixtureState(weights, tokens)
        try:
            mixture.check()
        except ValueError as error:
            raise StateMismatch(f"weights: {error}") from error
        return None if size == 1 else mixture
