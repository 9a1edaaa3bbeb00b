"""The curves of a run for TensorBoard."""

from pathlib import Path
from typing import Self

from torch.utils.tensorboard import SummaryWriter

from rlstm_training.reporting import Record, Silence


class TensorBoard(Silence):
    """Writes each record's numbers as scalars. A resumed run replaces what comes after its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def started(self, step: int, steps: int) -> None:
        """See :class:`rlstm_training.reporting.Reporter`."""
        self._writer = SummaryWriter(str(self._folder), purge_step=step + 1)

    def recorded(self, record: Record) -> None:
        """See :class:`rlstm_training.reporting.Reporter`."""
        assert self._writer is not None, "a run begins before it records"
        for name, value in record.items():
            if name in ("valid", "nats", "lengths"):
                for what, figure in value.items():
                    if figure is not None:
                        self._writer.add_scalar(f"{name}/{what}", figure, record["step"])
            elif name == "reset":
                self._writer.add_text("reset", value["why"], record["step"])
            elif name not in ("step", "seconds"):
                self._writer.add_scalar(f"train/{name}", value, record["step"])
