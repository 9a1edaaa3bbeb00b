"""From an old state to a newer one: the operations of the log are done again, one after the other.

Nothing is decided again (:mod:`rlstm_server.engine.record`). No log leads through a restore, whose commit
brought the state with it: who would have to go through one has a base from before it. After each operation
the digest of the state is compared with the one from then. The same numerics give the same bits, so a state
that differs there is damaged, or came from a fault of ours. Where other numerics had a part in it, or a
device whose sums come in any order, a state that is finite is taken, and marked `approx`.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from rlstm_model.adaptation.loss_guard import LossGuard
from rlstm_server.engine.learning import read_again
from rlstm_server.engine.record import Record, read_record
from rlstm_server.engine.snapshot import SessionState, digest
from rlstm_server.engine.steps import Steps
from rlstm_server.engine.text import Place
from rlstm_server.errors import StateCorrupt
from rlstm_server.schemas import ResetScope


class ReplayDiffers(StateCorrupt):
    """The log, done again by the same numerics, led to another state."""


class Rebuilt(NamedTuple):
    """A state of the log. `exact`: only our own numerics computed since the base, so its bits are known."""

    state: SessionState
    exact: bool


def replay(rebuilt: Rebuilt, records: Iterable[bytes]) -> Steps[Any, Rebuilt]:
    """Do operations again, in their order, on the device thread. Raises StateCorrupt, ReplayDiffers."""
    served = rebuilt.state.served
    for stored in records:
        record = read_record(stored)
        try:
            state = yield from _again(rebuilt.state, record)
        except (ValueError, TypeError) as error:
            raise StateCorrupt("a record of the log cannot be done again") from error
        exact = rebuilt.exact and record.numerics == served.numerics
        # A state that is not finite raises here, whoever computed it.
        same = (yield from digest(state)) == record.state
        if exact and not same and served.reproducible:
            raise ReplayDiffers("the session's log leads to another state than it did")
        exact = exact and same
        rebuilt = Rebuilt(state if exact else replace(state, approx=True), exact)
    return rebuilt


def reset(state: SessionState, scope: ResetScope) -> SessionState:
    """Forget fast weights, recurrent state, or both; position and sums go on."""
    recurrent, fast_weights = scope in ("recurrent", "both"), scope in ("fast_weights", "both")
    return replace(
        state,
        adapted=state.evaluator.reset(state.adapted, fast_weights=fast_weights, recurrent=recurrent),
        place=_past_unread(state.place) if recurrent else state.place,
        watch=LossGuard() if fast_weights else state.watch,
    )


def _again(state: SessionState, record: Record) -> Steps[Any, SessionState]:
    if record.op == "restore":
        raise StateCorrupt("the log cannot be followed through a restore")
    for reading in record.readings:
        state = yield from read_again(state, reading)
    if record.scope is not None:
        state = reset(state, record.scope)
    return replace(state, place=record.place, totals=record.totals).measured()


def _past_unread(place: Place) -> Place:
    """The place behind text that will never become tokens."""
    skipped = len(place.pending) + (1 if place.unfinished else 0)
    return Place(characters=place.characters + skipped)
