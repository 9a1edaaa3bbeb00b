"""The training loop.

Shape suffixes: T time, B batch rows, D dropout samples.
"""

import math
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlstm_model.dropout import NO_DROPOUT, sample_masks
from rlstm_model.initialisation import initialise
from rlstm_model.language_model import LanguageModel
from rlstm_model.state import State
from rlstm_training.batches import Batches, Texts
from rlstm_training.config import Recipe
from rlstm_training.evaluation import striped_loss
from rlstm_training.objective import l2_penalty, multi_sample_loss, repeat_samples
from rlstm_training.optimizer import radam
from rlstm_training.reporting import Reporter
from rlstm_training.run import RunDirectory, RunError

LOG_EVERY = 50
CPU = torch.device("cpu")


class Trainer:
    """A run in progress. All that changes is in :meth:`tensors` and the number of steps done."""

    def __init__(self, recipe: Recipe, texts: Texts, device: torch.device = CPU) -> None:
        """Raises ValueError when the rows of ``texts`` are not the recipe's, or a text is too short."""
        self.recipe = recipe
        self.texts = texts
        self.device = device
        self.generator = torch.Generator(device).manual_seed(recipe.seed)
        self.model = LanguageModel(recipe.model).to(device)
        initialise(self.model, chrono_max=recipe.chrono_max, generator=self.generator)
        self.optimizer = radam(self.model.parameters(), recipe)
        self.batches = Batches(texts.train, recipe.window)
        if self.batches.rows != recipe.rows:
            raise ValueError(f"the texts have {self.batches.rows} rows, the recipe {recipe.rows}")
        self.state = self.model.initial_state(recipe.rows * recipe.dropout_samples)
        self.step = 0

    def advance(self) -> float:
        """One optimiser step. Returns the mean loss of its tokens in nats, without the L2 term.

        Raises FloatingPointError when the loss or the gradient is not finite; no weight has changed then.
        """
        recipe = self.recipe
        inputs_TB, targets_TB = (ids_TB.to(self.device) for ids_TB in self.batches.next())
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
        drawn_B = torch.rand(self.recipe.rows, generator=self.generator, device=self.device)
        kept_B = drawn_B >= self.recipe.reset_probability
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
            moments = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
            # RAdam counts its steps on the CPU, whatever the device of the moments.
            self.optimizer.state[parameter] = {
                name: value.clone() if name == "step" else value.to(self.device, copy=True)
                for name, value in moments.items()
            }
        self.state = State(tensors["state.h"].to(self.device), tensors["state.c"].to(self.device))
        self.batches.positions = tensors["positions"].numpy().copy()
        self.generator.set_state(tensors["generator"])
        self.step = step


def train(
    recipe: Recipe, texts: Texts, run: RunDirectory, reporter: Reporter, *, device: torch.device = CPU
) -> LanguageModel:
    """Run ``recipe`` to its end, from the newest whole checkpoint if there is one. Returns the model.

    Raises RunError when all checkpoints are damaged, the disk refuses, or the loss is no longer finite.
    """
    trainer = Trainer(recipe, texts, device)
    losses = _resume(trainer, run, reporter)
    began, counted = time.monotonic(), trainer.step
    reporter.started(trainer.step, recipe.steps)

    def record(**figures: Any) -> None:
        run.log({"step": trainer.step, **figures})
        reporter.recorded({"step": trainer.step, **figures})

    while trainer.step < recipe.steps:
        try:
            losses.append(trainer.advance())
        except FloatingPointError as error:
            raise RunError(f"{run.folder}: training diverged; {error}") from error
        step, last = trainer.step, trainer.step == recipe.steps
        reporter.advanced(step, losses[-1])
        if step % LOG_EVERY == 0 or last:
            speed = recipe.tokens_per_step * (step - counted) / (time.monotonic() - began)
            rate = recipe.rate(step - 1)
            record(loss=sum(losses) / len(losses), rate=rate, tokens_per_second=speed)
            began, counted, losses = time.monotonic(), step, []
        if step % recipe.evaluate_every == 0 or last:
            record(valid=trainer.validate())
        if step % recipe.checkpoint_every == 0 or last:
            run.save(step, trainer.tensors(), {"recipe": recipe.name, "losses": losses})
    return trainer.model


def _resume(trainer: Trainer, run: RunDirectory, reporter: Reporter) -> list[float]:
    """Bring ``trainer`` to the newest whole checkpoint. Returns the losses not yet in a metrics record."""
    saved = run.newest()
    if saved is None:
        run.forget_after(0)
        return []
    for damage in saved.damaged:
        reporter.noticed(f"{damage}; going back to step {saved.step}")
    trainer.restore(saved.tensors, saved.step)
    run.forget_after(saved.step)
    return list(saved.header.get("losses", []))
