"""The command `rlstm`. `main.py` is the place to start reading."""

from rlstm_client.cli.main import app, main

__all__ = ["app", "main"]
