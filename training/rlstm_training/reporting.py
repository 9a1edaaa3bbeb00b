"""Reporters: who is told how a training run gets on: people by a bar, programs by JSON, and TensorBoard."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TextIO

from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from rlstm_training.config import VocabKind

Record = Mapping[str, Any]


class Reporter:
    """Hears of a run's beginning, every step, every line of its metrics, and what else happens."""

    def started(self, step: int, steps: int) -> None:
        """Training begins after ``step`` of ``steps``."""

    def advanced(self, step: int, loss: float) -> None:
        """``step`` was done; ``loss`` in nats a token."""

    def recorded(self, record: Record) -> None:
        """A record was added to the metrics."""

    def noticed(self, message: str) -> None:
        """Something happened that a person should know of."""


class JsonLines(Reporter):
    """Writes every record to a file, a line each."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def recorded(self, record: Record) -> None:
        """See :class:`Reporter`."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()


def scalars(record: Record) -> Iterator[tuple[str, float]]:
    """The curves that a record of the metrics adds to, by TensorBoard's names, with their new values.

    A figure that is no number adds nothing.
    """
    for name, value in record.items():
        if name in ("valid", "nats", "lengths"):
            yield from ((f"{name}/{what}", figure) for what, figure in value.items() if figure is not None)
        elif name not in ("step", "seconds", "reset"):
            yield f"train/{name}", value


class TensorBoard(Reporter):
    """Writes curves for TensorBoard. A resumed run replaces what comes after its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def started(self, step: int, steps: int) -> None:
        """See :class:`Reporter`."""
        self._writer = SummaryWriter(str(self._folder), purge_step=step + 1)

    def recorded(self, record: Record) -> None:
        """See :class:`Reporter`."""
        assert self._writer is not None, "a run begins before it records"
        for name, value in scalars(record):
            self._writer.add_scalar(name, value, record["step"])
        if "reset" in record:
            self._writer.add_text("reset", record["reset"]["why"], record["step"])


class ProgressBar(Reporter):
    """A bar with speed and losses on standard error; on no terminal, a line for each record."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bar = tqdm(desc=name, unit=" steps", disable=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def started(self, step: int, steps: int) -> None:
        """See :class:`Reporter`."""
        self._bar.reset(steps)
        self._bar.update(step)
        if step:
            self.noticed(f"{self._name}: going on after step {step} of {steps}")

    def advanced(self, step: int, loss: float) -> None:
        """See :class:`Reporter`."""
        self._bar.update(step - self._bar.n)

    def recorded(self, record: Record) -> None:
        """See :class:`Reporter`."""
        if "valid" in record:
            texts = record["valid"].items()
            bits = ", ".join(f"{n} {'not finite' if v is None else f'{v:.4f}'}" for n, v in texts)
            averaged = record["lengths"]["reported"]
            which = f" (average of {averaged})" if averaged > 1 else ""
            self.noticed(f"step {record['step']}: bits a token on {bits}{which}")
        elif "loss" in record:
            figures = f"loss {record['loss']:.4f} nats, {record['tokens_per_second']:,.0f} tokens/s"
            self._bar.set_postfix_str(figures)
            if self._bar.disable:
                self.noticed(f"step {record['step']}: {figures}")

    def noticed(self, message: str) -> None:
        """See :class:`Reporter`."""
        tqdm.write(message, file=sys.stderr)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What is published for a kind of vocabulary, as a function of nats a token."""

    name: str
    of: Callable[[float], float]
    digits: int

    def text(self, nats: float | None) -> str:
        """For people; nothing for None."""
        return "" if nats is None else f"{self.of(nats):.{self.digits}f}"


def measure_of(vocab: VocabKind) -> Measure:
    """Bits per byte or character; perplexity per token for words and subwords."""
    if vocab in ("bytes", "characters"):
        return Measure(
            name=f"bits per {vocab.removesuffix('s')}", of=lambda nats: nats / math.log(2), digits=4
        )
    name = "perplexity" if vocab == "words" else "perplexity per subword"
    return Measure(name=name, of=lambda nats: math.exp(min(nats, 700.0)), digits=2)
