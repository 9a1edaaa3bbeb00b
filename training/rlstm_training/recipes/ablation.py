"""The ablation: a baseline with every part of the method, and runs that differ from it by one.

All have at most 600,000 weights and read the same tokens of enwiki6, byte by byte, in minutes on one core.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rlstm_model.config import ModelConfig
from rlstm_model.network.dropout import DropoutRates
from rlstm_training.config import Averaging, Recipe, Source

WEIGHTS = 600_000


def ablation_baseline() -> Recipe:
    """RLSTM, four layers, four rounds, residual, Chrono, RAdam, Two-Tailed Averaging; no dropout.

    A pass over the corpus is not completed, so nothing can overfit and dropout has nothing to do.
    """
    shape = ModelConfig(vocab_size=256, hidden_size=1, num_layers=4, mogrifier_rounds=4, mogrifier_rank=24)
    return Recipe(
        name="ablation-baseline",
        model=shape.with_budget(WEIGHTS),
        vocab="bytes",
        sources=(Source(corpus="enwiki6", rows=64),),
        window=50,
        steps=1_000,
        learning_rate=3e-3,
        beta1=0.9,
        clip_norm=1.0,
        chrono_max=50.0,
        averaging=Averaging(kind="two_tailed"),
        evaluate_every=100,
        validation_tokens=30_000,
        checkpoint_every=250,
    )


def _variant(name: str, *, model: dict[str, Any] | None = None, **changes: Any) -> Callable[[], Recipe]:
    def recipe() -> Recipe:
        base = ablation_baseline()
        shape = replace(base.model, **model).with_budget(WEIGHTS) if model else base.model
        return replace(base, name=f"ablation-{name}", model=shape, **changes)

    return recipe


_DROPOUT = DropoutRates(input=0.05, cell=0.05, state=0.05, output=0.05)

ABLATION: dict[str, Callable[[], Recipe]] = {
    "ablation-baseline": ablation_baseline,
    "ablation-lstm": _variant("lstm", model={"cell": "lstm"}),
    "ablation-rounds-0": _variant("rounds-0", model={"mogrifier_rounds": 0}),
    "ablation-rounds-2": _variant("rounds-2", model={"mogrifier_rounds": 2}),
    "ablation-rounds-6": _variant("rounds-6", model={"mogrifier_rounds": 6}),
    "ablation-skip": _variant("skip", model={"stacking": "skip"}),
    "ablation-plain": _variant("plain", model={"stacking": "plain"}),
    "ablation-plain-lstm": _variant(
        "plain-lstm", model={"cell": "lstm", "mogrifier_rounds": 0, "stacking": "plain"}
    ),
    "ablation-plain-lstm-2": _variant(
        "plain-lstm-2", model={"cell": "lstm", "mogrifier_rounds": 0, "stacking": "plain", "num_layers": 2}
    ),
    "ablation-no-chrono": _variant("no-chrono", chrono_max=None),
    "ablation-adam": _variant("adam", optimizer="adam"),
    "ablation-tail": _variant("tail", averaging=Averaging(kind="tail", latest=750)),
    "ablation-dropout-1": _variant("dropout-1", dropout=_DROPOUT),
    "ablation-dropout-4": _variant("dropout-4", dropout=_DROPOUT, dropout_samples=4),
}
