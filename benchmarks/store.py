"""`python -m benchmarks.store`: what a commit takes on the embedded store, each on disk before it is told.

One session commits after the other, states of several sizes; beside them what the disk itself takes for so
many bytes. Commits of 2 kB are measured a second time while another session commits the largest.
"""

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path

import click

from rlstm_server.store.base import (
    Commit,
    Committed,
    Creation,
    Revision,
    SessionKey,
    new_id,
)
from rlstm_server.store.embedded import EmbeddedValkey
from rlstm_server.store.redis_store import RedisStore

SMALL = 2_000
BODY = b"b" * 32


class Session:
    """A session that commits states of one size; how long each took, in milliseconds."""

    def __init__(self, store: RedisStore, size: int) -> None:
        self._store, self._state = store, b"s" * size
        self._key = SessionKey("bench", new_id())
        self._at: Revision | None = None
        self.took_ms: list[float] = []

    async def commit(self) -> None:
        """Commit once; the first time the session is made."""
        if self._at is None:
            creation = Creation(
                key=self._key,
                operation_id=new_id(),
                body_hash=BODY,
                name=None,
                info=b"{}",
                state=self._state,
                ttl_ms=3_600_000,
                answer=b"",
            )
            await self._store.create(creation)
            self._at = creation.revision
        commit = Commit(
            key=self._key,
            operation_id=new_id(),
            body_hash=BODY,
            if_match=None,
            expects=self._at,
            info=b"i" * 500,
            state=self._state,
            ttl_ms=3_600_000,
            summary=b"s" * 50,
            details=b"a" * 500,
        )
        began = time.perf_counter()
        outcome = await self._store.commit(commit)
        self.took_ms.append((time.perf_counter() - began) * 1_000)
        if not isinstance(outcome, Committed):
            raise TypeError(f"the commit had another outcome: {outcome}")
        self._at = outcome.revision

    async def commit_for(self, seconds: float) -> None:
        """Commit without pause."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            await self.commit()

    @property
    def told(self) -> str:
        """Median, 99th percentile and number."""
        took = sorted(self.took_ms)
        p50, p99 = (took[min(len(took) - 1, int(share * len(took)))] for share in (0.5, 0.99))
        return f"p50 {p50:.2f}, p99 {p99:.2f} ms ({len(took):,} commits)"


def disk_ms(folder: Path, size: int) -> float:
    """How long the disk itself takes for so many bytes, at the median."""
    took = []
    with (folder / "disk").open("wb", buffering=0) as file:
        for _ in range(100):
            file.write(b"d" * size)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1_000)
    return sorted(took)[50]


async def measure(folder: Path, sizes: list[int], seconds: float) -> None:
    """Print a line a size."""
    server = EmbeddedValkey(folder, maxmemory_bytes=1 << 30)
    await server.start()
    store = RedisStore(server.url)
    await store.check()
    for size in sizes:
        session = Session(store, size)
        await session.commit_for(seconds)
        click.echo(
            f"commit of {size:,} bytes: {session.told}; the disk alone: p50 {disk_ms(folder, size):.2f} ms"
        )
    small, large = Session(store, SMALL), Session(store, max(sizes))
    await asyncio.gather(small.commit_for(seconds), large.commit_for(seconds))
    click.echo(f"commit of {SMALL:,} bytes beside those of {max(sizes):,}: {small.told}")
    await store.close()
    await server.stop()


def main() -> None:
    """Measure on a store of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, action="append", help="bytes of a state [2000, 100000, 2 MiB]")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each size")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sizes = chosen.size or [SMALL, 100_000, 2 << 20]
        asyncio.run(measure(Path(folder), sizes, chosen.seconds))


if __name__ == "__main__":
    main()
