"""Reporters: who is told how a training run gets on."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Record = Mapping[str, Any]


class Reporter(Protocol):
    """Hears of a run's beginning, every step, every line of its metrics, and what else happens."""

    def started(self, step: int, steps: int) -> None:
        """Training begins after ``step`` of ``steps``."""

    def advanced(self, step: int, loss: float) -> None:
        """``step`` was done; ``loss`` in nats a token."""

    def recorded(self, record: Record) -> None:
        """A record was added to the metrics."""

    def noticed(self, message: str) -> None:
        """Something happened that a person should know of."""


class Silence:
    """Tells nobody."""

    def started(self, step: int, steps: int) -> None:
        """See :class:`Reporter`."""

    def advanced(self, step: int, loss: float) -> None:
        """See :class:`Reporter`."""

    def recorded(self, record: Record) -> None:
        """See :class:`Reporter`."""

    def noticed(self, message: str) -> None:
        """See :class:`Reporter`."""


class Several:
    """Tells several reporters, in order."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self._reporters = reporters

    def started(self, step: int, steps: int) -> None:
        """See :class:`Reporter`."""
        for reporter in self._reporters:
            reporter.started(step, steps)

    def advanced(self, step: int, loss: float) -> None:
        """See :class:`Reporter`."""
        for reporter in self._reporters:
            reporter.advanced(step, loss)

    def recorded(self, record: Record) -> None:
        """See :class:`Reporter`."""
        for reporter in self._reporters:
            reporter.recorded(record)

    def noticed(self, message: str) -> None:
        """See :class:`Reporter`."""
        for reporter in self._reporters:
            reporter.noticed(message)


class JsonLines(Silence):
    """Writes every record to a file, a line each."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def recorded(self, record: Record) -> None:
        """See :class:`Reporter`."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()


class ProgressBar:
    """A bar with speed and losses on standard error; on no terminal, a line for each record."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(name, figures="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def started(self, step: int, steps: int) -> None:
        """See :class:`Reporter`."""
        self._progress.update(self._task, completed=step, total=steps)
        if step:
            self.noticed(f"{self._name}: going on after step {step} of {steps}")

    def advanced(self, step: int, loss: float) -> None:
        """See :class:`Reporter`."""
        self._progress.update(self._task, completed=step)

    def recorded(self, record: Record) -> None:
        """See :class:`Reporter`."""
        if "valid" in record:
            bits = ", ".join(f"{name} {_figure(value)}" for name, value in record["valid"].items())
            averaged = record["lengths"]["reported"]
            which = f" (average of {averaged})" if averaged > 1 else ""
            self.noticed(f"step {record['step']}: bits a token on {bits}{which}")
            return
        if "reset" in record:
            return
        figures = f"loss {record['loss']:.4f} nats, {record['tokens_per_second']:,.0f} tokens/s"
        self._progress.update(self._task, figures=figures)
        if not self._console.is_terminal:
            self.noticed(f"step {record['step']}: {figures}")

    def noticed(self, message: str) -> None:
        """See :class:`Reporter`."""
        self._console.print(message, highlight=False, soft_wrap=True, markup=False)


def _figure(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"
