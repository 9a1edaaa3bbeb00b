"""From a run directory to a checkpoint that can be used."""

from pathlib import Path

import torch

from rlstm_model.checkpoint import save
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.vocab import Vocab
from rlstm_training.cards import model_card
from rlstm_training.run import RunDirectory, RunError


def export(
    run: RunDirectory, folder: Path, vocab: Vocab, *, dtype: torch.dtype = torch.float32
) -> LanguageModel:
    """Write the model of the run's best evaluation to ``folder``, with its card; returns it.

    These are the weights that were reported there: raw, or their average. A run that has not evaluated yet
    gives its newest weights.

    The run may be going on in another process. Raises RunError without a checkpoint, CheckpointError
    when ``folder`` cannot be written.
    """
    saved = run.best()
    if saved is None:
        raise RunError(f"{run.folder}: has no checkpoint yet")
    recipe = run.recipe()
    model = LanguageModel(recipe.model)
    prefix = "average.long." if saved.header["reported"]["weights"] == "long" else "model."
    model.load_state_dict(
        {n.removeprefix(prefix): t for n, t in saved.tensors.items() if n.startswith(prefix)}
    )
    valid = [
        record["valid"] for record in run.metrics() if "valid" in record and record["step"] <= saved.step
    ]
    card = model_card(recipe, steps=saved.step, valid=valid[-1] if valid else {})
    save(folder, model, vocab, dtype=dtype, card=card)
    return model
