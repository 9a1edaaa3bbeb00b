"""A thread pool: threads that do the batches of a round side by side.

A matrix product of a round is small. Split between threads it gains little, or loses: what pays is that each
thread does products of its own, over rows of its own (adaptation: §6). A row's bits do not depend on which
rows share its batch, so a thread pool of any size gives the same ones.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

_Item = TypeVar("_Item")
_Outcome = TypeVar("_Outcome")


class ThreadPool:
    """So many threads, each of which has its products to itself.

    Nothing outlives a call: when it returns or raises, no thread is at work any more.
    """

    def __init__(self, threads: int) -> None:
        """Raises ValueError without a thread."""
        if threads < 1:
            raise ValueError(f"a thread pool has at least 1 thread, not {threads}")
        self.threads = threads
        self._pool = ThreadPoolExecutor(
            threads, "thread_pool", initializer=torch.set_num_threads, initargs=(1,)
        )

    def __enter__(self) -> "ThreadPool":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def map(self, act: Callable[[_Item], _Outcome], items: Sequence[_Item]) -> list[_Outcome]:
        """What ``act`` gives for each item, in their order. A single one is done on the calling thread.

        When it raises, all others are done before the first error is raised here.
        """
        if len(items) < 2:
            return [act(item) for item in items]
        futures = [self._pool.submit(act, item) for item in items]
        try:
            wait(futures)
        except BaseException:  # an interrupt: what has not begun never will
            for future in futures:
                future.cancel()
            wait(futures)
            raise
        return [future.result() for future in futures]


@contextmanager
def single_threaded_products() -> Iterator[int]:
    """While it lasts, torch splits no product between threads. Gives how many threads it would have used.

    That holds for the calling thread and for those that first use torch later. Uses must nest.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)
