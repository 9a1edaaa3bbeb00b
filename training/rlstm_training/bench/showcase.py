"""The showcase: in so many minutes on one device, what an RLSTM and torch's own LSTM learn of the same text.

Both have the same number of weights, read the same batches, have the same optimiser, objective, averages
and seconds, and are then evaluated alike, without and with learning. Every part keeps to its share of the
time: a faster device gets further.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.network.language_model import LanguageModel
from rlstm_training.averaging import Evaluated
from rlstm_training.batches import Texts
from rlstm_training.bench.torch_lstm import TorchLSTM, lstm_of_equal_size
from rlstm_training.config import Recipe
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.calibrate import Grid, search, session_losses
from rlstm_training.evaluation.evaluation import static_loss, striped_loss
from rlstm_training.evaluation.measurements import Measurements, Statistics
from rlstm_training.evaluation.monte_carlo import scaled
from rlstm_training.trainer import Trainer

# Shares of the time, for each of the two. What is left is for reading the whole test text, and for overruns.
TRAINING, CALIBRATION, READING = 0.34, 0.04, 0.08
LOOKS = 10
LOOK_TOKENS = 10_000
WARM_UP_STEPS = 3
STRIPES = 32
STATISTICS = Statistics(heads=8, segments=20)

Clock = Callable[[], float]
Tell = Callable[[str], None]


class Deadline:
    """The end of a share of the time."""

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds until it, at least 0."""
        return max(0.0, self._end - self._clock())

    @property
    def passed(self) -> bool:
        """Whether it is over."""
        return self.left == 0.0

    def after(self, seconds: float) -> "Deadline":
        """That of ``seconds`` from now on the same clock."""
        return Deadline(seconds, self._clock)


@dataclass(frozen=True, kw_only=True, eq=False)
class Material:
    """What is read: texts to train on, the token before all text, validation text for a search, test text."""

    texts: Texts
    bos_id: int
    valid: Passage
    test: Passage


@dataclass(frozen=True, kw_only=True)
class Reached:
    """How far a model got.

    tokens_per_second   of training, evaluations and the first steps apart
    averaged            iterates in the average of weights that is evaluated; 1 are the raw weights
    valid_perplexity    of the beginning of the validation text, in stripes
    test_perplexity     of the whole test text, in stripes
    read_tokens         of the beginning of the test text, read token after token for the last two
    static_perplexity   of these, with weights as trained
    adapted_perplexity  of these, by dynamic evaluation at ``rate``
    """

    model: str
    weights: int
    steps: int
    tokens_per_second: float
    averaged: int
    valid_perplexity: float
    test_perplexity: float
    read_tokens: int
    static_perplexity: float
    adapted_perplexity: float
    rate: float


def recipe_for_minutes(recipe: Recipe, device: torch.device, dropout_scale: float) -> Recipe:
    """``recipe`` as it is trained here.

    A text that is read a few times is hardly overfitted, so dropout may be less; nobody knows how many
    steps there will be, so the learning rate is constant; looks at validation text are short; a GPU
    multiplies bfloat16. Raises ValueError for a rate of dropout that leaves [0, 1).
    """
    return replace(
        recipe,
        decay="constant",
        dropout=scaled(recipe.dropout, dropout_scale),
        validation_tokens=min(recipe.validation_tokens, LOOK_TOKENS),
        precision="bfloat16" if device.type == "cuda" else recipe.precision,
    )


def compare(
    recipe: Recipe, material: Material, device: torch.device, deadline: Deadline, tell: Tell
) -> list[Reached]:
    """Train and evaluate both, in the time until ``deadline``; ``tell`` hears how they get on.

    Raises FloatingPointError when a loss is not finite.
    """
    seconds = deadline.left
    reached = []
    for name, start in (("RLSTM", rlstm), ("torch.nn.LSTM", torch_lstm)):
        training = _Training(start(recipe, material.texts, device), name, tell)
        training.until(deadline.after(TRAINING * seconds))
        calibration = _calibrate(training.trainer, material, deadline.after(CALIBRATION * seconds))
        reached.append(_evaluate(training, calibration, material, deadline.after(READING * seconds)))
        # Two models' weights, moments and averages are not to lie side by side.
        del training, calibration
    return reached


def rlstm(recipe: Recipe, texts: Texts, device: torch.device) -> Trainer:
    """The recipe's own model, at its beginning."""
    return Trainer(recipe, texts, device)


def torch_lstm(recipe: Recipe, texts: Texts, device: torch.device) -> Trainer:
    """torch.nn.LSTM of as many weights, to be trained by the same recipe: it has no dropout of states."""
    shape = lstm_of_equal_size(recipe.model)
    dropout = replace(recipe.dropout, state=0.0)
    model = TorchLSTM(shape, dropout=dropout.cell)
    model.initialise(chrono_max=recipe.chrono_max, generator=torch.Generator().manual_seed(recipe.seed))
    return Trainer(replace(recipe, model=shape, dropout=dropout), texts, device, model=model)


class _Training:
    """A trainer, how fast it is, and what its last look at validation text found."""

    def __init__(self, trainer: Trainer, name: str, tell: Tell) -> None:
        self.trainer = trainer
        self.name = name
        self.tokens_per_second = 0.0
        self.found: Evaluated
        self._tell = tell

    def until(self, deadline: Deadline) -> None:
        """Train for that long, at least a step, with looks at validation text on the way and at the end."""
        period, timed = deadline.left / LOOKS, _Timed()
        while True:
            self._steps(deadline.after(min(period, deadline.left)), timed)
            self._look(timed)
            if deadline.passed:
                break
        self._take_reported_weights()

    def _steps(self, deadline: Deadline, timed: "_Timed") -> None:
        while True:
            before = time.perf_counter()
            self.trainer.advance()
            timed.add(time.perf_counter() - before)
            if deadline.passed:
                break

    def _look(self, timed: "_Timed") -> None:
        self.found, _ = self.trainer.evaluate()
        self.tokens_per_second = timed.steps_per_second * self.trainer.recipe.tokens_per_step
        self._tell(
            f"{self.name}: step {self.trainer.step:,}, {self.tokens_per_second:,.0f} tokens/s, "
            f"validation perplexity {_perplexity(self.found.loss):.1f}"
        )

    @torch.no_grad()
    def _take_reported_weights(self) -> None:
        if self.found.reported == "long":
            for weight, mean in zip(self.trainer.parameters, self.trainer.average.long(), strict=True):
                weight.copy_(mean)


class _Timed:
    """Seconds of steps, without the first few, which are slow."""

    def __init__(self) -> None:
        self._seconds: list[float] = []

    def add(self, seconds: float) -> None:
        """One more step."""
        self._seconds.append(seconds)

    @property
    def steps_per_second(self) -> float:
        """Of all steps where there have been no more than those few."""
        counted = self._seconds[WARM_UP_STEPS:] or self._seconds
        return len(counted) / math.fsum(counted)


def _evaluate(
    training: _Training, calibration: Calibration, material: Material, deadline: Deadline
) -> Reached:
    trainer, found = training.trainer, training.found
    static, adapted, tokens = _read(trainer.model, calibration, material, deadline)
    whole = striped_loss(trainer.model, np.array(material.test.ids), stripes=STRIPES)
    return Reached(
        model=training.name,
        weights=sum(weight.numel() for weight in trainer.parameters),
        steps=trainer.step,
        tokens_per_second=training.tokens_per_second,
        averaged=found.length,
        valid_perplexity=_perplexity(found.loss),
        test_perplexity=_perplexity(whole),
        read_tokens=tokens,
        static_perplexity=_perplexity(static / tokens),
        adapted_perplexity=_perplexity(adapted / tokens),
        rate=calibration.config.rate,
    )


def _calibrate(trainer: Trainer, material: Material, deadline: Deadline) -> Calibration:
    """The rule with the best of the usual rates on validation text, of those that there is time to try."""
    model = trainer.model.requires_grad_(False)
    usual = Grid.usual(trainer.recipe.vocab)
    grid = replace(usual, decays=usual.decays[:1], epsilons=usual.epsilons[:1], segments=usual.segments[:1])
    measurements = Measurements(model, material.texts.train, bos_id=material.bos_id, statistics=STATISTICS)
    read = static_loss(model, material.valid, bos_id=material.bos_id)
    static = {material.valid.name: read.bits_per_byte(read.static_nats or 0.0)}
    for trials in search(session_losses(measurements, [material.valid]), grid, static):
        chosen = trials.best.setting
        if deadline.passed:
            break
    return measurements.under(chosen)


def _read(
    model: LanguageModel, calibration: Calibration, material: Material, deadline: Deadline
) -> tuple[float, float, int]:
    """Nats of the test text without and with learning, and the tokens that there was time for."""
    evaluator = DynamicEvaluator(model, calibration, bos_id=material.bos_id, logprobs_only=True)
    static: list[float] = []
    adapted: list[float] = []
    tokens = 0
    for observed in evaluator.observe(evaluator.start(static=True), material.test.ids):
        assert observed.static_logprobs is not None
        static.append(-float(observed.static_logprobs.double().sum()))
        adapted.append(-observed.scores.total)
        tokens += len(observed.scores)
        if deadline.passed:
            break
    return math.fsum(static), math.fsum(adapted), tokens


def _perplexity(nats_a_token: float) -> float:
    return math.exp(min(nats_a_token, 700.0))
