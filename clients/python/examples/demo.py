"""A server reads a stream and learns; it is killed in the middle, and goes on as if nothing had happened.

    python demo.py [FILE] [--model MODEL]

Shows bits per byte of the model as loaded (static) and of the session that learns (adapted), part by part.
After the kill the session's version and the score of a probe text must be those from before; else exit 1.
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rlstm_client import AppendResult, Client, RLSTMError, Session
from rlstm_client.texts import TextError, read

SAMPLE = Path(__file__).with_name("five-kinds.txt")
PROBE = "And it came to pass, when the captain had spoken, that no man answered him."
PARTS = 20
LONGEST_PART = 16_384  # characters
START_SECONDS = 60.0
STOP_SECONDS = 15.0
GREETING = re.compile(r"^rlstm serving ([^,\s]+).* on (http://\S+)", re.MULTILINE)
# What a user's own server is told must not reach this one, but for what the machine needs.
KEPT_SETTINGS = {"RLSTM_DEVICE", "RLSTM_THREADS"}


class DemoError(Exception):
    """Something that the demo needs is not there, or a promise was not kept."""


class Server:
    """`rlstm serve` on a free port, its sessions in a folder that outlives it."""

    def __init__(self, folder: Path, model: str | None) -> None:
        self._output = folder / "server.log"
        command = Path(sys.executable).with_name("rlstm")
        if not command.exists():
            raise DemoError(f"{command} is not there: install the project first (make install)")
        self._arguments = [str(command), "serve", *([model] if model else []), "--port", "0"]
        self._arguments += ["--data-dir", str(folder / "data")]
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("RLSTM_") or name in KEPT_SETTINGS
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> tuple[str, str]:
        """Start it and return the model's name and the address, once it serves."""
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                self._arguments, env=self._environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            if greeting := GREETING.search(self._output.read_text("utf-8", "replace")):
                return greeting[1], greeting[2]
            time.sleep(0.05)
        raise DemoError(f"the server did not start; it said:\n{self._last_words()}")

    def kill(self) -> None:
        """End it as a power cut would: SIGKILL, no warning, no last word."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End it as one should; it takes its store down with it."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def _last_words(self) -> str:
        return "\n".join(self._output.read_text("utf-8", "replace").splitlines()[-8:])


@dataclass(frozen=True)
class Row:
    """Bytes, and bits under the weights as loaded and under the session's own, of a part or of all so far."""

    bytes: int = 0
    static: float = 0.0
    adapted: float = 0.0

    @classmethod
    def of(cls, answer: AppendResult) -> Self:
        """Return the figures of one append, which was answered in bits."""
        totals = answer.totals
        if totals is None or totals.static_logprob is None:
            raise DemoError("the server answered without static figures")
        return cls(totals.bytes, -totals.static_logprob, -totals.logprob)

    def __add__(self, other: "Row") -> "Row":
        return Row(self.bytes + other.bytes, self.static + other.static, self.adapted + other.adapted)

    @property
    def saved(self) -> float:
        """Bits that learning saved."""
        return self.static - self.adapted

    def __str__(self) -> str:
        static, adapted = self.static / self.bytes, self.adapted / self.bytes
        return f"static {static:.3f}  adapted {adapted:.3f}  ({100 * self.saved / self.static:+.1f} %)"


def say(words: str) -> None:
    """Tell an event."""
    print(f"-- {words}", flush=True)


@dataclass(frozen=True)
class Fingerprint:
    """What must be the same after the kill: the session's version, and how it scores a probe text."""

    version: int
    probe_nats: float

    @classmethod
    def of(cls, session: Session) -> Self:
        """Ask the session; nothing changes."""
        ranking = session.score([PROBE])
        return cls(ranking.version, ranking.candidates[0].logprob)


class Demo:
    """The story: read half, kill, start again, compare, read on, sum up."""

    def __init__(self, server: Server, text: str) -> None:
        size = min(LONGEST_PART, -(-len(text) // PARTS))
        self._parts = [text[start : start + size] for start in range(0, len(text), size)]
        self._server = server
        self._total = Row()
        self._position = 0

    def run(self) -> str:
        """Tell the story and return its one-line summary."""
        half = len(self._parts) // 2
        client = self._connect("the server is up with {model}")
        with client:
            session = client.sessions.create()
            self._read(session, self._parts[:half])
            before = Fingerprint.of(session)
        self._server.kill()
        say("killed with SIGKILL in the middle of the stream; starting it again")
        with self._connect("the server is up again, on the same folder") as client:
            session = client.sessions.get(session.id)
            after = Fingerprint.of(session)
            say(f"before the kill {_print(before)}; after it {_print(after)}")
            if after != before:
                raise DemoError(f"the session changed: {_print(before)} before, {_print(after)} after")
            self._read(session, self._parts[half:])
            info = session.info()
        if info.position != self._position or info.totals.bytes != self._total.bytes:
            raise DemoError(f"the session holds {info.totals.bytes:,} bytes, {self._total.bytes:,} were sent")
        return self._summary(before)

    def _connect(self, words: str) -> Client:
        started = time.monotonic()
        model, address = self._server.start()
        say(f"{words.format(model=model)} ({time.monotonic() - started:.1f} s)")
        return Client(address)

    def _read(self, session: Session, parts: list[str]) -> None:
        for part in parts:
            answer = session.append(part, unit="bits", scores="totals")
            row = Row.of(answer)
            self._total += row
            self._position = answer.position
            print(f"{self._total.bytes:>9,} bytes   part: {row}   total: {self._total}", flush=True)

    def _summary(self, fingerprint: Fingerprint) -> str:
        total = self._total
        return (
            f"{total.bytes:,} bytes, bits per byte: {total}; {total.saved:,.0f} bits saved; "
            f"1 kill -9 survived with {_print(fingerprint)} the same before and after"
        )


def _print(fingerprint: Fingerprint) -> str:
    return f"version {fingerprint.version} and probe {fingerprint.probe_nats:.6f} nats"


def the_text(file: Path) -> str:
    """Read the stream.

    Raises:
        DemoError: it cannot be read, is no text, or is too short to be killed in the middle of.
    """
    try:
        text = "".join(read(file))
    except OSError as error:
        raise DemoError(f"{file}: {error.strerror}") from error
    except TextError as error:
        raise DemoError(str(error)) from error
    if len(text) < 2:
        raise DemoError(f"{file} is too short")
    return text


@contextlib.contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that what was started is stopped."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def a_folder() -> Iterator[Path]:
    """Make a folder for the time of the demo."""
    with tempfile.TemporaryDirectory(prefix="rlstm-demo-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def main() -> int:
    """Run the demo; 0 when every promise was kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, default=SAMPLE, help="the text to read (UTF-8)")
    parser.add_argument("--model", help="a shipped model's name or a checkpoint folder")
    arguments = parser.parse_args()
    try:
        text = the_text(arguments.file)
        with (
            sigterm_as_exit(),
            a_folder() as folder,
            Server(folder, arguments.model) as server,
        ):
            summary = Demo(server, text).run()
    except (DemoError, RLSTMError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
