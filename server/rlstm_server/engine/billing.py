"""Charging work to the key that asked for it: when it is accepted, before it is done.

What took no effect is given back, and so is what was charged for tokens that were not written after all. But
whoever was shown the first of a text has had what was read for it, and as much of the text as he took.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field

from rlstm_server.engine.quotas import Allowance, TokenBucket
from rlstm_server.engine.steps import Event
from rlstm_server.errors import ServerError
from rlstm_server.schemas import EndEvent, GenerationSettings, TokenEvent


@dataclass(eq=False)
class Bill:
    """What one piece of work was charged so far, in tokens."""

    allowance: Allowance
    _charged: dict[TokenBucket, int] = field(default_factory=dict)
    _settled: bool = False

    def charge(
        self, *, tokens: int | None = None, learned: int | None = None, generated: int | None = None
    ) -> None:
        """Charge so much in all: work that is done again is charged once, and less than before given back.

        Raises RateLimited, having charged nothing.
        """
        limits = self.allowance
        wanted = ((limits.tokens, tokens), (limits.learned, learned), (limits.generated, generated))
        due = [(bucket, count) for bucket, count in wanted if bucket is not None and count is not None]
        for bucket, count in due:
            if count and bucket not in self._charged:
                bucket.check()
        for bucket, count in due:
            bucket.use(count - self._charged.get(bucket, 0))
            self._charged[bucket] = count

    def settle(self) -> None:
        """Give nothing back from now on: the work was of use."""
        self._settled = True

    def refund(self) -> None:
        """Give everything back, unless that is settled."""
        if self._settled:
            return
        for bucket, count in self._charged.items():
            bucket.use(-count)
        self._charged.clear()


@contextmanager
def billed(allowance: Allowance) -> Iterator[Bill]:
    """A bill for the work inside; it is given back when that fails and was not applied."""
    bill = Bill(allowance)
    try:
        yield bill
    except ServerError as error:
        if error.applied == "no":
            bill.refund()
        raise


async def paid(
    stream: AsyncGenerator[Event, None],
    settings: GenerationSettings,
    bill: Bill,
    *,
    learns: bool = False,
) -> AsyncGenerator[Event, None]:
    """Pass events on. All tokens that may come are charged first, and in the end those that came."""
    most, made = settings.choices * settings.max_tokens, 0
    bill.charge(generated=most, learned=most if learns else 0)
    try:
        async with aclosing(stream) as events:
            async for event in events:
                made += isinstance(event, TokenEvent)
                if isinstance(event, EndEvent) and event.replayed:
                    made = 0
                bill.settle()
                yield event
    finally:
        bill.charge(generated=made, learned=made if learns else 0)
