"""Where ``rlstm`` finds its commands ``train``, ``calibrate`` and ``evaluate`` (entry points)."""

from rlstm_training.commands.calibrate import calibrate
from rlstm_training.commands.evaluate import evaluate
from rlstm_training.commands.train import train

__all__ = ["calibrate", "evaluate", "train"]
