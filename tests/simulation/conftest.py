"""The simulation's own modules, and the faults that it must notice, are packages beside the tests."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "mutation")]
