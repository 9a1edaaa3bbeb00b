"""Hides the modules that only Unix has, in every process of tests run with this folder on PYTHONPATH."""

import sys
import warnings

for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty"):
    sys.modules[name] = None  # type: ignore[assignment]
warnings.filterwarnings("ignore", "only soft file lock")  # Windows has locks of its own
