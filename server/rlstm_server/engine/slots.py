"""Memory that holds sessions' states: whose each piece is, and zeroed before anybody else can have it.

A state is an immutable value, and a newer state of the same session shares what has not changed with it. So
a slot belongs to every live state that it is part of, all of one session. Whoever computes with a state
holds it, a job in its frame, the cache in its copy; when the last such state is gone, the device thread,
which alone may write to tensors, zeroes the slot between two rounds and lets it go.
"""

import threading
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from rlstm_server.engine.snapshot import SessionState
from rlstm_server.store.base import SessionKey

Address: TypeAlias = tuple[int, int]
"""Where a slot begins, and its bytes."""


@dataclass(eq=False)
class _Slot:
    """`memory` keeps the address from being given to another tensor while the slot is in the books."""

    owner: SessionKey
    memory: Tensor
    states: int = 0


@dataclass(eq=False)
class Slots:
    """The books of all slots. Any thread may call `own`; `wipe` belongs to the device thread."""

    _slots: dict[Address, _Slot] = field(default_factory=dict)
    _left: deque[tuple[Address, ...]] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _live: int = 0

    def __len__(self) -> int:
        return len(self._slots)

    def own(self, key: SessionKey, state: SessionState) -> None:
        """Enter a state's memory as its session's. Raises ValueError when any of it is another's."""
        tensors = {(t.data_ptr(), t.nbytes): t for t in state.adapted.tensors().values() if t.nbytes}
        with self._lock:
            if any(self._slots[at].owner != key for at in tensors if at in self._slots):
                raise ValueError("two sessions share memory")
            for at, tensor in tensors.items():
                self._slots.setdefault(at, _Slot(key, tensor.detach())).states += 1
            self._live += len(tensors)
        # What runs when the state is collected may run anywhere, within `own` too: it takes no lock.
        weakref.finalize(state, self._left.append, tuple(tensors)).atexit = False

    def wipe(self) -> int:
        """Zero and release what no live state holds; how many slots that were."""
        with self._lock:
            released = [slot for addresses in self._taken() for slot in self._release(addresses)]
        with torch.no_grad():
            for slot in released:
                slot.memory.zero_()
        return len(released)

    def check(self) -> None:
        """Raise ValueError unless every slot belongs to as many states as hold it, or waits to be zeroed."""
        with self._lock:
            held = sum(slot.states for slot in self._slots.values())
            if held != self._live or any(slot.states < 1 for slot in self._slots.values()):
                raise ValueError(f"slots are held {held} times, the books say {self._live}")

    def check_owned(self, key: SessionKey, state: SessionState) -> None:
        """Raise ValueError unless all memory of a live state is in the books as its session's."""
        with self._lock:
            for tensor in state.adapted.tensors().values():
                slot = self._slots.get((tensor.data_ptr(), tensor.nbytes))
                if tensor.nbytes and (slot is None or slot.owner != key):
                    raise ValueError("memory of a live session is not in its name")

    def _taken(self) -> Iterable[tuple[Address, ...]]:
        while self._left:
            yield self._left.popleft()

    def _release(self, addresses: tuple[Address, ...]) -> list[_Slot]:
        free = []
        for at in addresses:
            slot = self._slots[at]
            slot.states -= 1
            self._live -= 1
            if not slot.states:
                free.append(self._slots.pop(at))
        return free
