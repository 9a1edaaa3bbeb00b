"""The training loop.

Shape suffixes: T time, B batch rows, D dropout samples.
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rlstm_model.dropout import NO_DROPOUT, sample_masks
from rlstm_model.initialisation import initialise
from rlstm_model.language_model import LanguageModel
from rlstm_training.batches import Batches, Texts
from rlstm_training.config import Recipe
from rlstm_training.evaluation import striped_loss
from rlstm_training.objective import l2_penalty, multi_sample_loss, repeat_samples
from rlstm_training.optimizer import radam
from rlstm_training.run import RunDirectory, RunError

Report = Callable[[Mapping[str, Any]], None]


class Trainer:
    """A run in progress. All that changes is in :meth:`tensors` and :meth:`header`."""

    def __init__(self, recipe: Recipe, texts: Texts) -> None:
        self.recipe = recipe
        self.texts = texts
        self.generator = torch.Generator().manual_seed(recipe.seed)
        self.model = LanguageModel(recipe.model)
        initialise(self.model, chrono_max=recipe.chrono_max, generator=self.generator)
        self.optimizer = radam(self.model.parameters(), recipe)
        self.batches = Batches(texts.train, recipe.window)
        self.state = self.model.initial_state(recipe.rows * recipe.dropout_samples)
        self.step = 0

    def advance(self) -> float:
        """One optimiser step. Returns the mean loss of its tokens in nats, without the L2 term.

        Raises FloatingPointError when the loss or the gradient is not finite; no weight has changed then.
        """
        recipe = self.recipe
        inputs_TB, targets_TB = self.batches.next()
        self._reset_some_states()
        masks = NO_DROPOUT
        if recipe.dropout.any:
            masks = sample_masks(
                recipe.dropout,
                time=recipe.window,
                batch=self.state.batch,
                layers=recipe.model.num_layers,
                hidden=recipe.model.hidden_size,
                like=self.state.h,
                generator=self.generator,
            )
        inputs_TB = repeat_samples(inputs_TB, recipe.dropout_samples)
        features, state = self.model(inputs_TB, self.state, masks)
        loss = multi_sample_loss(self.model.logits(features), targets_TB, recipe.dropout_samples)
        self._descend(loss)
        self.state = state.detach()
        self.step += 1
        return loss.item()

    def _descend(self, loss: Tensor) -> None:
        parameters = list(self.model.parameters())
        self.optimizer.zero_grad(set_to_none=True)
        objective = loss + l2_penalty(parameters, self.recipe.l2) if self.recipe.l2 else loss
        objective.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.recipe.clip_norm)
        if not math.isfinite(loss.item()) or not math.isfinite(norm.item()):
            raise FloatingPointError(f"step {self.step}: loss {loss.item()}, gradient norm {norm.item()}")
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate(self.step)
        self.optimizer.step()

    def _reset_some_states(self) -> None:
        """Zero a row's state with the recipe's probability; all samples of a row together."""
        if self.recipe.reset_probability == 0:
            return
        kept_B = torch.rand(self.recipe.rows, generator=self.generator) >= self.recipe.reset_probability
        self.state = self.state.where(kept_B.repeat_interleave(self.recipe.dropout_samples))

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Bits per token of the beginning of each validation text, in stripes (a running estimate)."""
        limit = self.recipe.validation_tokens
        return {
            name: striped_loss(self.model, ids[:limit]) / math.log(2)
            for name, ids in self.texts.valid.items()
        }

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the run: weights, moments, carried state, positions, generator."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for moment, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer.{name}.{moment}"] = value
        tensors["state.h"], tensors["state.c"] = self.state
        tensors["positions"] = torch.from_numpy(self.batches.positions.copy())
        tensors["generator"] = self.generator.get_state()
        return tensors

    def restore(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Go on from a checkpoint's tensors."""
        weights = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
        self.model.load_state_dict(weights)
        for name, parameter in self.model.named_parameters():
            prefix = f"optimizer.{name}."
            self.optimizer.state[parameter] = {
                key.removeprefix(prefix): value.clone()
                for key, value in tensors.items()
                if key.startswith(prefix)
            }
        self.state = type(self.state)(tensors["state.h"], tensors["state.c"])
        self.batches.positions = tensors["positions"].numpy().copy()
        self.generator.set_state(tensors["generator"])
        self.step = step


def train(recipe: Recipe, texts: Texts, run: RunDirectory, report: Report) -> LanguageModel:
    """Run ``recipe`` to its end, from the newest checkpoint if there is one. Returns the model.

    ``report`` receives each metrics record. Raises RunError when a checkpoint is damaged or the loss is
    no longer finite.
    """
    trainer = Trainer(recipe, texts)
    saved = run.saved_steps()
    if saved:
        tensors, _ = run.load(saved[-1])
        trainer.restore(tensors, saved[-1])
        run.forget_after(trainer.step)
    began, losses = time.monotonic(), []
    while trainer.step < recipe.steps:
        try:
            losses.append(trainer.advance())
        except FloatingPointError as error:
            raise RunError(f"{run.folder}: training diverged; {error}") from error
        step = trainer.step
        if step % 50 == 0 or step == recipe.steps:
            seconds = time.monotonic() - began
            record: dict[str, Any] = {
                "step": step,
                "loss": sum(losses) / len(losses),
                "rate": recipe.rate(step - 1),
                "tokens_per_second": recipe.tokens_per_step * len(losses) / seconds,
            }
            run.log(record)
            report(record)
            began, losses = time.monotonic(), []
        if step % recipe.evaluate_every == 0 or step == recipe.steps:
            record = {"step": step, "valid": trainer.validate()}
            run.log(record)
            report(record)
        if step % recipe.checkpoint_every == 0 or step == recipe.steps:
            run.save(step, trainer.tensors(), {"recipe": recipe.name})
    return trainer.model
