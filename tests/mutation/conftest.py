"""The mutants, and those of the simulation, are packages beside the tests."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "simulation")]
