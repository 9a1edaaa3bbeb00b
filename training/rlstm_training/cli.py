"""Where ``rlstm`` finds its commands ``train``, ``calibrate``, ``evaluate`` and others (entry points)."""

from rlstm_training.commands.calibrate import calibrate
from rlstm_training.commands.corpora import corpora
from rlstm_training.commands.evaluate import evaluate
from rlstm_training.commands.train import train

__all__ = ["calibrate", "corpora", "evaluate", "train"]
