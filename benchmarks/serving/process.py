"""A server as its users run it: ``rlstm serve`` in a process of its own, for as long as it is measured."""

import hashlib
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.serving.load import Rounds
from rlstm_server.settings import PREFIX

ADDRESS: Final = re.compile(r"http://\S+:\d+")
PATIENCE_SECONDS: Final = 30.0
ROUNDS: Final = "rlstm_batch_step_seconds"
ROWS: Final = "rlstm_batch_size"
TENANTS: Final = ("crowd", "stranger")


class NoServer(Exception):
    """No server came up; says what it wrote."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that listens at ``url``, and the keys of two tenants; the first one's may read metrics."""

    pid: int
    url: str
    keys: tuple[str, str]

    def resident_bytes(self) -> int:
        """What the process has in memory. Raises NoServer where the system does not say so."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except OSError as error:
            raise NoServer(f"the memory of the server's process cannot be read: {error}") from error
        return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def running(settings: Mapping[str, object], python: Path = Path(sys.executable)) -> Iterator[Server]:
    """A server with these settings, of the environment of a Python; nothing of ours sets any.

    Raises NoServer.
    """
    with TemporaryDirectory(prefix="rlstm-bench-") as name:
        folder = Path(name)
        keys = (secrets.token_hex(16), secrets.token_hex(16))
        given = {"port": 0, "log_level": "warning", "data_dir": folder / "data", **settings}
        environment = environment_of(given | {"api_keys_file": _write_keys(folder, keys)})
        with (
            (folder / "errors").open("w+") as errors,
            subprocess.Popen(  # noqa: S603
                [command_of(python), "serve"],
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
            ) as process,
        ):
            try:
                yield Server(pid=process.pid, url=_url(process, folder / "errors"), keys=keys)
            finally:
                _end(process)


def rounds_of(metrics: str) -> Rounds:
    """The rounds that a server's metrics, in Prometheus' text form, tell of."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics):
        if family.name in (ROUNDS, ROWS):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return Rounds(int(sums[f"{ROUNDS}_count"]), sums[f"{ROWS}_sum"], sums[f"{ROUNDS}_sum"])


def command_of(python: Path = Path(sys.executable)) -> str:
    """The command `rlstm` that is installed beside a Python. Raises NoServer."""
    command = python.with_name("rlstm")
    if not command.exists():
        raise NoServer(f"the command rlstm is not installed beside {python}")
    return str(command)


def environment_of(settings: Mapping[str, object]) -> dict[str, str]:
    """What this process has, with these settings of ours and no others."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return kept | {PREFIX + name.upper(): str(value) for name, value in settings.items() if value is not None}


def _write_keys(folder: Path, keys: tuple[str, str]) -> Path:
    records = [
        {
            "sha256": hashlib.sha256(key.encode()).hexdigest(),
            "tenant": tenant,
            "scopes": ["score", "generate", "sessions", *(["admin"] if tenant == TENANTS[0] else [])],
        }
        for key, tenant in zip(keys, TENANTS, strict=True)
    ]
    path = folder / "keys.json"
    path.write_text(json.dumps(records))
    return path


def _url(process: "subprocess.Popen[str]", errors: Path) -> str:
    """What the server's first line says, which it writes when it listens."""
    found = ADDRESS.search(process.stdout.readline()) if process.stdout is not None else None
    if found is None:
        process.wait(PATIENCE_SECONDS)
        raise NoServer(errors.read_text().strip() or "the server ended without a word")
    return found[0]


def _end(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
