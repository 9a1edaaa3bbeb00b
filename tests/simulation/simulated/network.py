"""The way between a replica and the store, on which everything happens that can happen to a message.

A request may be refused, lost, applied without a reply, applied late (after its sender has given up, and
after others that were sent later) or twice. Replies of two requests may change places.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

from rlstm_server.errors import DurabilityNotReached, OutcomeUnknown, ServerError, StoreUnavailable
from rlstm_server.settings import Durability
from rlstm_server.store.base import SessionStore, Stale
from simulated.loop import HOST, Host, SimulatedLoop, on
from simulated.storage import Storage
from simulated.told import ATTEMPT, Attempt

TIMEOUT_S: Final = 0.9
"""So long a replica waits for a reply."""

LATE_S: Final = 12.0
"""So late a message may still arrive."""

CHANGES: Final = frozenset({"create", "commit", "delete", "name_snapshot", "drop_snapshot", "sweep"})

Fate = Literal["arrives", "refused", "lost", "unanswered", "reset", "late", "twice"]
FAULTS: Final[tuple[Fate, ...]] = ("refused", "lost", "unanswered", "reset", "late", "twice")
Phase = Literal["sent", "applied", "answered", "over"]


@dataclass(eq=False)
class Call:
    """One request on its way, and how far it has come."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    host: Host
    attempt: Attempt | None
    fate: Fate
    future: "asyncio.Future[Any]"
    phase: Phase = "sent"
    dropped: bool = False
    outcome: Any = None

    def __repr__(self) -> str:
        return f"{self.name} of {self.attempt}"


@dataclass(eq=False)
class Network:
    """Delivers calls.

    rate    the share of them that something happens to; 0 when all is well
    slow_s  how long a message is on its way at most, where nothing happens to it
    watch   is told what happens to each call
    """

    loop: SimulatedLoop
    storage: Storage
    draw: random.Random
    rate: float
    slow_s: float
    watch: Callable[[str, Call], None]
    _flights: dict[Call, None] = field(default_factory=dict)

    def in_flight(self, host: Host) -> list[Call]:
        """What a host waits for."""
        return [call for call in self._flights if call.host is host]

    async def call(self, host: Host, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Send a request and wait for its reply."""
        call = Call(name, args, kwargs, host, ATTEMPT.get(), self._fate(name), self.loop.create_future())
        self._flights[call] = None
        self.watch("sent", call)
        timer = self.loop.call_later(TIMEOUT_S, self._give_up, call)
        if host.alive:
            self._send(call)
        try:
            return await call.future
        finally:
            timer.cancel()
            call.phase = "over"
            self._flights.pop(call, None)
            self.watch("over", call)

    def _fate(self, name: str) -> Fate:
        if name in ("check", "close"):
            return "arrives"
        if self.storage.down:
            return "refused" if self.draw.random() < 0.7 else "lost"
        if self.draw.random() >= self.rate:
            return "arrives"
        return FAULTS[int(self.draw.random() * len(FAULTS))]

    def _send(self, call: Call) -> None:
        between, later = on(None), self.loop.call_later
        delay = self.draw.random() * self.slow_s
        match call.fate:
            case "refused":
                later(delay, self._refuse, call, context=between)
            case "lost":
                self.watch("lost", call)
            case "late":
                later(TIMEOUT_S + self.draw.random() * LATE_S, self._arrive, call, context=between)
            case "twice":
                later(delay, self._arrive, call, context=between)
                again = self.draw.random() * (LATE_S if self.draw.random() < 0.5 else self.slow_s)
                later(delay + again, self._arrive_again, call, context=between)
            case _:
                later(delay, self._arrive, call, context=between)

    def _refuse(self, call: Call) -> None:
        self._answer(call, None, StoreUnavailable("the store cannot be reached"))

    def _arrive(self, call: Call) -> None:
        """The store does it. Whoever asked may be dead by now, or have given up."""
        if call.dropped or (self.storage.down and call.fate == "arrives"):
            return
        outcome, error = self._applied(call)
        call.outcome = error or outcome
        if call.phase == "sent":
            call.phase = "applied"
        self.watch("applied" if error is None else "refused", call)
        delay = self.draw.random() * self.slow_s
        if call.fate == "reset":
            outcome, error = None, _silence(call)
        if call.fate != "unanswered":
            self.loop.call_later(delay, self._answer, call, outcome, error)

    def _arrive_again(self, call: Call) -> None:
        if call.dropped or self.storage.down or isinstance(call.outcome, ServerError):
            return  # nobody sends again what was refused
        outcome, error = self._applied(call)
        call.outcome = error or outcome
        self.watch("again", call)

    def _applied(self, call: Call) -> tuple[Any, ServerError | None]:
        storage = self.storage
        waits = storage.durability == "replica" and call.name in CHANGES
        if waits and self.draw.random() < self.rate:
            storage.hold_back()
        elif waits:
            storage.catch_up()
        try:
            outcome = storage.call(call.name, call.args, call.kwargs, call.attempt)
        except ServerError as error:
            return None, error
        if waits and not isinstance(outcome, Stale) and storage.replicated < len(storage.applied):
            return None, DurabilityNotReached("no replica has it", version=0)
        return outcome, None

    def _answer(self, call: Call, outcome: Any, error: ServerError | None) -> None:
        if call.future.done() or not call.host.alive:
            return
        call.phase = "answered"
        self.watch("answered", call)
        if error is None:
            call.future.set_result(outcome)
        else:
            self._fail(call, error)

    def _give_up(self, call: Call) -> None:
        if not call.future.done():
            self.watch("silence", call)
            self._fail(call, _silence(call))

    def _fail(self, call: Call, error: ServerError) -> None:
        if call.attempt is not None and call.name == "load_head":
            call.attempt.blind = True
        call.future.set_exception(error)


def _silence(call: Call) -> ServerError:
    if call.name in CHANGES:
        return OutcomeUnknown("the store did not answer; repeat with the same key to learn the outcome")
    return StoreUnavailable("the store does not answer")


class Link:
    """One replica's store: all calls of a SessionStore, over the network."""

    def __init__(self, network: Network, host: Host) -> None:
        self._network, self._host = network, host

    @property
    def durability(self) -> Durability:
        """The store's."""
        return self._network.storage.durability

    def __getattr__(self, name: str) -> Any:
        if not hasattr(SessionStore, name):
            raise AttributeError(name)
        return partial(self._call, name)

    async def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if HOST.get() is not self._host:
            raise AssertionError("a replica's store is called from elsewhere")
        return await self._network.call(self._host, name, args, kwargs)
