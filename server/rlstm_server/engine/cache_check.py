"""A look after cached copies: of a session that has ended no server keeps anything for long.

Every copy is compared with the store once in each look at all of them. One whose session was deleted, has
expired, or has moved on elsewhere is dropped, and the device thread zeroes its memory within the next second
or round.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from rlstm_server.engine.cache import SessionCache
from rlstm_server.engine.description import SessionCopy
from rlstm_server.errors import Gone, NotFound, ServerError
from rlstm_server.store.base import SessionStore

logger = logging.getLogger(__name__)

PASS_SECONDS: Final = 12.0
"""How long one look at all copies takes. A copy may be the first of one look and, used since, the last of the
next: two of them have to fit into the 30 s within which it is to be zeroed."""

AT_ONCE: Final = 16
"""So many copies are compared at once; the store hears nothing for the rest of the time."""


@dataclass(eq=False)
class CacheCheck:
    """Drops copies of sessions that are no more, or no more at this version."""

    store: SessionStore
    cache: SessionCache
    pass_seconds: float = PASS_SECONDS
    _task: "asyncio.Task[None] | None" = None

    def start(self) -> None:
        """Look at all copies again and again, until `close`."""
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except ServerError:
                await asyncio.sleep(1.0)  # counted where the store is called; the next pass begins anew
            except Exception as error:
                logger.error("the check of cached copies failed", exc_info=error)
                await asyncio.sleep(1.0)

    async def look(self) -> None:
        """Look at all copies there are now, evenly over the seconds of a pass."""
        copies = self.cache.copies()
        groups = [copies[first : first + AT_ONCE] for first in range(0, len(copies), AT_ONCE)] or [[]]
        clock = asyncio.get_running_loop().time
        began = clock()
        for number, group in enumerate(groups, start=1):
            await asyncio.gather(*(self._compare(copy) for copy in group))
            due = began + self.pass_seconds * number / len(groups)
            await asyncio.sleep(due - clock())  # at once where the store took its time

    async def _compare(self, copy: SessionCopy) -> None:
        if not self.cache.holds(copy):
            return
        try:
            head = await self.store.load_head(copy.key, with_state=False)
        except (Gone, NotFound):
            self.cache.drop(copy.key)
            self.cache.count_eviction("gone")
            return
        if head.version > copy.position.version and self.cache.holds(copy):
            self.cache.drop(copy.key)
            self.cache.count_eviction("moved")
