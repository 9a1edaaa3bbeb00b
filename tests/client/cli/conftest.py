"""The command line in this process, against the real application."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from rlstm_client.cli import main

Run = Callable[..., tuple[Any, str, str]]


@pytest.fixture
def run(url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `rlstm` with these arguments: exit code, standard output, standard error."""
    monkeypatch.setenv("RLSTM_URL", url)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["rlstm", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return call
