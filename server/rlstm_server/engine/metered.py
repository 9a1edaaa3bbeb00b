"""The store as the engine calls it: every call is timed, every fault is counted."""

import functools
import time
from typing import Any, Final, cast

from rlstm_server.errors import OutcomeUnknown, ServerError, StateCorrupt, StoreFull, StoreUnavailable
from rlstm_server.metrics import STORE_OPERATIONS, Metrics
from rlstm_server.store.base import SessionStore

NAMES: Final = {"load_head": "load"}
"""What calls are counted as, where that is not their name."""

FAULTS: Final[dict[type[ServerError], str]] = {
    StoreUnavailable: "unavailable",
    StoreFull: "full",
    OutcomeUnknown: "timeout",
    StateCorrupt: "corrupt",
}
"""Errors that are faults of the store. With any other the store did its work and the answer is an error."""


class _Metered:
    def __init__(self, store: SessionStore, metrics: Metrics) -> None:
        self.store, self._metrics = store, metrics

    def __getattr__(self, name: str) -> Any:
        """A call of the store, measured; what is no call, and is not counted, as it is."""
        operation = NAMES.get(name, name)
        if operation not in STORE_OPERATIONS:
            return getattr(self.store, name)
        measured = functools.partial(self._measured, operation, name)
        setattr(self, name, measured)
        return measured

    async def _measured(self, operation: str, name: str, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return await getattr(self.store, name)(*args, **kwargs)
        except ServerError as error:
            reason = next((FAULTS[kind] for kind in type(error).__mro__ if kind in FAULTS), None)
            if reason is not None:
                self._metrics.store_errors.labels(operation, reason).inc()
            raise
        except Exception:
            self._metrics.store_errors.labels(operation, "other").inc()
            raise
        finally:
            self._metrics.store_seconds.labels(operation).observe(time.perf_counter() - began)


def metered(store: SessionStore, metrics: Metrics) -> SessionStore:
    """The same store, whose calls are counted."""
    return cast("SessionStore", _Metered(store, metrics))
