"""The command `rlstm`. `main.py` is the place to start reading."""

from rlstm_client.cli.main import main

__all__ = ["main"]
