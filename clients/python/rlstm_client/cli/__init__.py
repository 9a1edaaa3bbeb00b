"""The command `rlstm`. `commands.py` is the place to start reading."""

from rlstm_client.cli.commands import main

__all__ = ["main"]
