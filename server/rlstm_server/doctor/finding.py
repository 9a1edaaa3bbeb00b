"""What one look found: a line for a person, and a status for a program."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """`advice` says what to do; it is empty where nothing has to be done."""

    name: str
    status: Status
    said: str
    advice: str = ""

    def line(self) -> str:
        """One line, whatever was said."""
        told = f"{self.said}: {self.advice}" if self.advice else self.said
        return f"{self.status:<5} {self.name:<12} {' '.join(told.split())}"
