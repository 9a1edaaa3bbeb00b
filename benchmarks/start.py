"""How long a start takes, and whether a session keeps up with a log that grows."""

import contextlib
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import httpx

from benchmarks.lone import prose
from benchmarks.serving.process import Server, command_of, environment_of, running

LINE_BYTES = 80


def ready_seconds(model: str, python: Path = Path(sys.executable)) -> float:
    """From `rlstm serve` until it says that it listens, with a store on disk."""
    began = time.perf_counter()
    with running({"model": model}, python=python):
        return time.perf_counter() - began


def local_seconds(model: str, python: Path = Path(sys.executable)) -> float:
    """Of `rlstm score --local`, a short text. Raises CalledProcessError."""
    with TemporaryDirectory() as folder:
        environment = environment_of({"data_dir": folder})
        began = time.perf_counter()
        subprocess.run(  # noqa: S603
            [command_of(python), "score", "--local", "--model", model, "It was the best of times."],
            env=environment,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return time.perf_counter() - began


class Followed(NamedTuple):
    """How far behind a log its session was: seconds of the log, as seen once a second.

    ``lag`` is the median of the last half, ``most`` the greatest of it; ``grows`` whether the last quarter
    is later than the one before by more than a second: then it falls behind.
    """

    lag: float
    most: float
    grows: bool

    @classmethod
    def of(cls, lags: list[float]) -> "Followed":
        """From all looks, at least four."""
        quarter = len(lags) // 4
        before, last = lags[-2 * quarter : -quarter], lags[-quarter:]
        grows = statistics.median(last) > statistics.median(before) + 1
        return cls(statistics.median(before + last), max(before + last), grows)


def follow(model: str, *, bytes_per_second: int, seconds: float) -> Followed:
    """`tail -F` of a log that grows by so much, through `rlstm session stream`, served by one core."""
    with TemporaryDirectory() as name, running({"model": model, "threads": 1}) as server:
        _pin(server)
        headers = {"authorization": f"Bearer {server.keys[0]}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
            path = f"/sessions/{client.post('/sessions', json={}).raise_for_status().json()['id']}"
            log = Path(name) / "log"
            log.touch()
            with _streaming(server, log, path.rpartition("/")[2]), log.open("a", buffering=1) as file:
                lags = []
                written, began = 0, time.monotonic()
                look = began + 1
                while (now := time.monotonic()) < began + seconds:
                    while written < (now - began) * bytes_per_second:
                        file.write(prose(LINE_BYTES - 1, seed=written) + "\n")
                        written += LINE_BYTES
                    if now >= look:
                        read = client.get(path).raise_for_status().json()["position"]
                        lags.append((written - read) / bytes_per_second)
                        look += 1
                    time.sleep(LINE_BYTES / bytes_per_second)
                return Followed.of(lags)


def _pin(server: Server) -> None:
    """The server, with all its threads and its store, to one core."""
    core = {max(os.sched_getaffinity(0))}
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    for pid in (str(server.pid), *children):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), core)


@contextlib.contextmanager
def _streaming(server: Server, log: Path, session: str):  # type: ignore[no-untyped-def]
    environment = environment_of({"url": server.url, "api_key": server.keys[0]})
    with (
        subprocess.Popen(  # noqa: S603
            ["tail", "-n", "+1", "-F", str(log)],  # noqa: S607
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as tail,
        subprocess.Popen(  # noqa: S603
            [command_of(), "session", "stream", session],
            stdin=tail.stdout,
            stdout=subprocess.DEVNULL,
            env=environment,
        ) as reader,
    ):
        try:
            yield
        finally:
            tail.terminate()
            reader.terminate()
