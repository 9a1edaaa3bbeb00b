"""When to send a call again, and after how long. Pure arithmetic: no clock, no sleep, no random source.

A call may be repeated when the server cannot take it twice: it reads, or it carries an idempotency key, and
the repetition has the same key and the same body. A stream is repeated before its first event; afterwards it
goes on where the server keeps its text.
"""

from dataclasses import dataclass
from typing import Any

from rlstm_client._call import Call
from rlstm_client.errors import (
    DrainingError,
    GatewayError,
    InFlightError,
    NoAnswerError,
    OutcomeUnknownError,
    OverloadedError,
    RLSTMError,
    SlowConsumerError,
    StoreUnavailableError,
    TimedOutError,
)

_WAIT_WHEN_TOLD = {409, 429, 503}
_INTERRUPTIONS = (
    DrainingError,
    OverloadedError,
    StoreUnavailableError,
    SlowConsumerError,
    OutcomeUnknownError,
)


@dataclass(frozen=True, kw_only=True)
class Retries:
    """How often and how long; ``Retries(attempts=1)`` sends everything once.

    attempts          how often a call is sent at most
    first_wait_s      seconds before the second attempt, doubled for each further one
    longest_wait_s    a server that asks for more is not waited for; its error is raised
    """

    attempts: int = 5
    first_wait_s: float = 0.25
    longest_wait_s: float = 30.0

    def wait(self, call: Call[Any], error: RLSTMError, attempt: int, chance: float) -> float | None:
        """Return the seconds to wait after failed ``attempt`` (1 is the first), or None to give up.

        ``chance`` in [0, 1) spreads clients that failed together over the wait's upper half, and over half
        as much again where the server named the time.
        """
        if attempt >= self.attempts or not repeatable(call, error):
            return None
        backoff: float = min(self.first_wait_s * 2 ** (attempt - 1), self.longest_wait_s)
        if error.retry_after is None:
            return backoff * (1 + chance) / 2
        if error.retry_after > self.longest_wait_s:
            return None
        return error.retry_after + backoff * chance / 2


def repeatable(call: Call[Any], error: RLSTMError) -> bool:
    """Whether the same call may succeed later and cannot do harm."""
    if call.resumable and isinstance(error, _INTERRUPTIONS):
        return True
    if error.applied == "yes":
        return False
    if isinstance(error, TimedOutError):
        # Work without a key would be done from the start again: repeating it adds load and no chance.
        return call.keyed or call.method != "POST"
    if isinstance(error, NoAnswerError | InFlightError | OutcomeUnknownError | GatewayError):
        return True
    return error.status in _WAIT_WHEN_TOLD and error.retry_after is not None


def still_open(error: RLSTMError, before: bool) -> bool:
    """Whether it is open, after this error too, if the call took effect; the error then says so.

    An attempt that reached nobody tells nothing of one before it; a server that answers has looked.
    """
    if before and isinstance(error, NoAnswerError) and error.applied == "no":
        error.applied = "unknown"
    return error.applied == "unknown"


DEFAULT_RETRIES = Retries()
