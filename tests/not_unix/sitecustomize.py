"""Hides the modules that only Unix has, in every process of tests run with this folder on PYTHONPATH."""

import sys

for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty"):
    sys.modules[name] = None  # type: ignore[assignment]
