"""A training run in progress: one optimiser step, one evaluation, and everything that changes by them.

Shape suffixes: T time, B batch rows, D dropout samples.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from rlstm_model.checkpoint import load
from rlstm_model.network.dropout import NO_DROPOUT, DropoutMasks, sample_masks
from rlstm_model.network.initialisation import initialise
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.network.state import State
from rlstm_training.averaging import Evaluated, Weights, make_average
from rlstm_training.batches import Batches, Ids, Texts
from rlstm_training.config import Recipe
from rlstm_training.evaluation.evaluation import striped_loss
from rlstm_training.objective import add_l2_gradient, language_model_loss, repeat_samples
from rlstm_training.ranks import ALONE, Ranks

CPU = torch.device("cpu")


class Trainer:
    """All that changes is in :meth:`tensors`, the average's header and the number of steps done."""

    def __init__(
        self,
        recipe: Recipe,
        texts: Texts,
        device: torch.device = CPU,
        ranks: Ranks = ALONE,
        *,
        model: LanguageModel | None = None,
    ) -> None:
        """``model`` with its present weights takes the place of the recipe's.

        Raises ValueError for texts that are too short or of other rows, RankError for unequal shares.
        """
        self.recipe = recipe
        self.texts = texts
        self.device = device
        self.ranks = ranks
        self.generator = torch.Generator(device).manual_seed(recipe.seed)
        self.model = (LanguageModel(recipe.model) if model is None else model).to(device)
        if model is None:
            _set_initial_weights(self.model, recipe, self.generator)
        self.parameters = list(self.model.parameters())
        self.optimizer = make_optimizer(self.parameters, recipe)
        self.average = make_average(recipe.averaging, self.parameters)
        self.batches = Batches(
            texts.train,
            recipe.window,
            batching=recipe.batching,
            jitter_lines=recipe.jitter_lines,
            eos_id=texts.eos_id,
            seed=recipe.seed,
        )
        if self.batches.rows != recipe.rows:
            raise ValueError(f"the texts have {self.batches.rows} rows, the recipe {recipe.rows}")
        self._rows = ranks.share(recipe.rows)
        samples = recipe.dropout_samples
        self._sample_rows = slice(self._rows.start * samples, self._rows.stop * samples)
        self.state = self._zero_state()
        self.step = 0

    def advance(self, rate_scale: float = 1.0) -> float:
        """One optimiser step. Returns the mean loss of its tokens in nats, without the L2 term.

        Raises FloatingPointError when the loss or the gradient is not finite; no weight has changed then.
        """
        samples, precision = self.recipe.dropout_samples, self.recipe.product_dtype
        inputs_TB, targets_TB = (ids_TB.to(self.device) for ids_TB in self.batches.next(self._rows))
        self._reset_some_states()
        repeated_TB, masks = repeat_samples(inputs_TB, samples), self._draw_masks()
        features, state = self.model(repeated_TB, self.state, masks, precision=precision)
        loss = language_model_loss(self.model.embedding, features, targets_TB, samples, precision)
        mean_loss = self._descend(loss, rate_scale)
        self.state = state.detach()
        self.step += 1
        self.average.update(self.parameters, self.step)
        return mean_loss

    def evaluate(self) -> tuple[Evaluated, dict[str, float]]:
        """Evaluate raw and averaged weights on the beginning of each validation text, in stripes.

        Returns the decision, and bits a token on each text under the reported weights. Neither the carried
        state nor the raw weights change.
        """
        seen: dict[float, list[float]] = {}
        counts = [len(ids) for ids in self._validation().values()]

        def mean_loss(weights: Weights) -> float:
            nats = self._losses_under(weights)
            mean = math.fsum(n * count for n, count in zip(nats, counts, strict=True)) / sum(counts)
            seen[mean] = nats
            return mean

        found = self.average.evaluate(mean_loss, self.parameters)
        nats = seen.get(found.loss, [found.loss] * len(counts))
        bits = [n / math.log(2) for n in nats]
        return found, dict(zip(self.texts.valid, bits, strict=True))

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the run: weights, moments, averages, carried state, positions, generator."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for moment, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer.{name}.{moment}"] = value
        for which, weights in self.average.tensors().items():
            for name, value in zip(self._names(), weights, strict=True):
                tensors[f"average.{which}.{name}"] = value
        tensors["state.h"], tensors["state.c"] = (self.ranks.gather_rows(part, 1) for part in self.state)
        for name in ("positions", "rounds"):
            tensors[name] = torch.from_numpy(getattr(self.batches, name).copy())
        tensors["generator"] = self.generator.get_state()
        return tensors

    def restore(self, tensors: Mapping[str, Tensor], average: Mapping[str, object], step: int) -> None:
        """Go on from a checkpoint's tensors and its average's header."""
        self.go_back(tensors, average)
        h, c = (tensors[f"state.{name}"][:, self._sample_rows] for name in ("h", "c"))
        self.state = State(h.to(self.device, copy=True), c.to(self.device, copy=True))
        for name in ("positions", "rounds"):
            setattr(self.batches, name, tensors[name].numpy().copy())
        self.generator.set_state(tensors["generator"])
        self.step = step

    def go_back(self, tensors: Mapping[str, Tensor], average: Mapping[str, object]) -> None:
        """Take weights, optimiser and averages from a checkpoint; the text goes on, with an empty state."""
        self.model.load_state_dict(_under("model.", tensors))
        for name, parameter in self.model.named_parameters():
            # The optimisers count their steps on the CPU, whatever the device of the moments.
            self.optimizer.state[parameter] = {
                moment: value.clone() if moment == "step" else value.to(self.device, copy=True)
                for moment, value in _under(f"optimizer.{name}.", tensors).items()
            }
        means = {which: _under(f"average.{which}.", tensors) for which in ("short", "long")}
        lists = {which: [mean[name] for name in self._names()] for which, mean in means.items() if mean}
        self.average.restore(lists, average)
        self.state = self._zero_state()

    def _descend(self, loss: Tensor, rate_scale: float) -> float:
        recipe = self.recipe
        self.optimizer.zero_grad(set_to_none=True)
        (loss * recipe.loss_factor).backward()  # type: ignore[no-untyped-call]
        gradients = [weight.grad for weight in self.parameters if weight.grad is not None]
        loss = loss.detach()
        self.ranks.mean_([loss, *gradients])
        add_l2_gradient(self.parameters, recipe.l2)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, recipe.clip_norm)
        mean_loss, mean_norm = loss.item(), norm.item()
        if not math.isfinite(mean_loss) or not math.isfinite(mean_norm):
            raise FloatingPointError(f"step {self.step + 1}: loss {mean_loss}, gradient norm {mean_norm}")
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.rate(self.step) * rate_scale
        self.optimizer.step()
        return mean_loss

    def _draw_masks(self) -> DropoutMasks:
        """Masks of this rank's rows, out of those drawn for all rows."""
        recipe = self.recipe
        if not recipe.dropout.any:
            return NO_DROPOUT
        masks = sample_masks(
            recipe.dropout,
            time=recipe.window,
            batch=recipe.rows * recipe.dropout_samples,
            layers=recipe.model.num_layers,
            hidden=recipe.model.hidden_size,
            like=self.state.h,
            generator=self.generator,
        )
        if self.ranks.size == 1:
            return masks
        mine = [None if mask is None else mask[..., self._sample_rows, :] for mask in masks]
        return DropoutMasks(*mine)

    def _reset_some_states(self) -> None:
        """Zero a row's state with the recipe's probability; all samples of a row together."""
        if self.recipe.reset_probability == 0:
            return
        drawn_B = torch.rand(self.recipe.rows, generator=self.generator, device=self.device)
        kept_B = drawn_B[self._rows] >= self.recipe.reset_probability
        self.state = self.state.where(kept_B.repeat_interleave(self.recipe.dropout_samples))

    def _zero_state(self) -> State:
        return self.model.initial_state(self._sample_rows.stop - self._sample_rows.start)

    def _validation(self) -> dict[str, Ids]:
        limit = self.recipe.validation_tokens
        return {name: ids[:limit] for name, ids in self.texts.valid.items()}

    def _losses_under(self, weights: Weights) -> list[float]:
        """Nats a token on each validation text; computed by the first rank, for all."""
        losses = [0.0] * len(self.texts.valid)
        if self.ranks.first:
            with self._using(weights):
                losses = [striped_loss(self.model, ids) for ids in self._validation().values()]
        return self.ranks.told_by_first(losses, self.device)

    @contextmanager
    def _using(self, weights: Weights) -> Iterator[None]:
        raw = [parameter.data for parameter in self.parameters]
        try:
            for parameter, value in zip(self.parameters, weights, strict=True):
                parameter.data = value.data
            yield
        finally:
            for parameter, own in zip(self.parameters, raw, strict=True):
                parameter.data = own

    def _names(self) -> list[str]:
        return [name for name, _ in self.model.named_parameters()]


def make_optimizer(parameters: Sequence[Tensor], recipe: Recipe) -> torch.optim.Optimizer:
    """Rectified Adam (Liu et al. 2020; docs/mathematics.md §4) or plain Adam, as torch has them.

    L2 is part of the loss, so there is no weight decay.
    """
    kind = torch.optim.RAdam if recipe.optimizer == "radam" else torch.optim.Adam
    betas = (recipe.beta1, recipe.beta2)
    return kind(parameters, lr=recipe.learning_rate, betas=betas, eps=recipe.epsilon, foreach=True)


def _set_initial_weights(model: LanguageModel, recipe: Recipe, generator: torch.Generator) -> None:
    if recipe.start_from is None:
        initialise(model, chrono_max=recipe.chrono_max, generator=generator)
        return
    start = LanguageModel.of(load(recipe.start_from).parameters)
    if start.config != recipe.model:
        raise ValueError(f"start_from: {recipe.start_from} is a model of another shape than the recipe's")
    model.load_state_dict(start.state_dict())


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
