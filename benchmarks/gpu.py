"""Minutes on one GPU, in which an RLSTM and cuDNN's LSTM learn the same text: ``python -m benchmarks.gpu``.

Both have the same number of weights, read the same batches, have the same optimiser, objective, averages
and seconds, and are then evaluated alike, without and with learning. Every part keeps to its share of the
time: a faster device gets further.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import click
import numpy as np
import torch

from benchmarks.models import TorchLSTM, lstm_of_equal_size
from rlstm_client.cli import inputs
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.network.language_model import LanguageModel
from rlstm_training.averaging import Evaluated
from rlstm_training.batches import Texts
from rlstm_training.commands import console
from rlstm_training.commands.console import show_json, show_table
from rlstm_training.commands.given import Compute, recipe_named
from rlstm_training.config import Recipe
from rlstm_training.corpora.reading import load_corpus
from rlstm_training.corpora.texts import Passage, in_form, on_corpus, passage, prepare, validation_passages
from rlstm_training.evaluation.evaluation import evaluator_of, static_loss, striped_loss
from rlstm_training.evaluation.measurements import Measurements, Statistics
from rlstm_training.evaluation.monte_carlo import scaled
from rlstm_training.evaluation.search import Grid, search, session_losses
from rlstm_training.run import Diverged
from rlstm_training.trainer import Trainer

# Shares of the time, for each of the two. What is left is for reading the whole test text, and for overruns.
TRAINING, CALIBRATION, READING = 0.34, 0.04, 0.08
LOOKS, LOOK_TOKENS, SEARCH_TOKENS = 10, 10_000, 1_000
WARM_UP_STEPS = 3
STRIPES = 32
STATISTICS = Statistics(heads=8, segments=20)

Clock = Callable[[], float]


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

    @classmethod
    def of(cls, recipe: Recipe) -> "Material":
        """The recipe's texts, and validation and test text of its first source."""
        texts, vocab = prepare(recipe)
        source = recipe.sources[0]
        (valid,) = validation_passages(vocab, [source.corpus], SEARCH_TOKENS)
        raw = in_form(load_corpus(source.corpus, "test"), source.form)
        test = passage(vocab, raw, f"{source.corpus} test")
        return cls(texts=texts, bos_id=vocab.bos_id, valid=valid, test=test)


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


def compare(recipe: Recipe, material: Material, device: torch.device, deadline: Deadline) -> list[Reached]:
    """Train and evaluate both, in the time until ``deadline``.

    Raises FloatingPointError when a loss is not finite.
    """
    seconds, reached = deadline.left, []
    for name, start in (("RLSTM", Trainer), ("torch.nn.LSTM", torch_lstm)):
        training = _Training(start(recipe, material.texts, device), name)
        training.until(deadline.after(TRAINING * seconds))
        calibration = calibrate(training.trainer, material, deadline.after(CALIBRATION * seconds))
        reached.append(_evaluate(training, calibration, material, deadline.after(READING * seconds)))
        # Two models' weights, moments and averages are not to lie side by side.
        del training, calibration
    return reached


def torch_lstm(recipe: Recipe, texts: Texts, device: torch.device) -> Trainer:
    """torch.nn.LSTM of as many weights, to be trained by the same recipe: it has no dropout of states."""
    shape = lstm_of_equal_size(recipe.model)
    dropout = replace(recipe.dropout, state=0.0)
    model = TorchLSTM(shape, dropout=dropout.cell)
    model.initialise(chrono_max=recipe.chrono_max, generator=torch.Generator().manual_seed(recipe.seed))
    return Trainer(replace(recipe, model=shape, dropout=dropout), texts, device, model=model)


class _Training:
    """A trainer, the seconds of its steps, and what its last look at validation text found."""

    def __init__(self, trainer: Trainer, name: str) -> None:
        self.trainer = trainer
        self.name = name
        self.found: Evaluated
        self._seconds: list[float] = []

    @property
    def tokens_per_second(self) -> float:
        """Without the first few steps, which are slow, where there have been more."""
        counted = self._seconds[WARM_UP_STEPS:] or self._seconds
        return self.trainer.recipe.tokens_per_step * len(counted) / math.fsum(counted)

    def until(self, deadline: Deadline) -> None:
        """Train for that long, at least a step, with looks at validation text on the way and at the end."""
        period = deadline.left / LOOKS
        while True:
            self._steps(deadline.after(min(period, deadline.left)))
            self.found, _ = self.trainer.evaluate()
            told = f"{self.name}: step {self.trainer.step:,}, {self.tokens_per_second:,.0f} tokens/s"
            click.echo(f"{told}, validation perplexity {_perplexity(self.found.loss):.1f}", err=True)
            if deadline.passed:
                break
        if self.found.reported == "long":
            with torch.no_grad():
                for weight, mean in zip(self.trainer.parameters, self.trainer.average.long(), strict=True):
                    weight.copy_(mean)

    def _steps(self, deadline: Deadline) -> None:
        while True:
            before = time.perf_counter()
            self.trainer.advance()
            self._seconds.append(time.perf_counter() - before)
            if deadline.passed:
                break


def _evaluate(
    training: _Training, calibration: Calibration, material: Material, deadline: Deadline
) -> Reached:
    trainer, found = training.trainer, training.found
    static, adapted, tokens = read(trainer.model, calibration, material, deadline)
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


def calibrate(trainer: Trainer, material: Material, deadline: Deadline) -> Calibration:
    """The rule with the best of the usual rates on validation text, of those that there is time to try."""
    model = trainer.model.requires_grad_(False)
    usual = Grid.usual(trainer.recipe.vocab)
    grid = replace(usual, decays=usual.decays[:1], epsilons=usual.epsilons[:1], segments=usual.segments[:1])
    measurements = Measurements(model, material.texts.train, bos_id=material.bos_id, statistics=STATISTICS)
    static = static_loss(model, material.valid, bos_id=material.bos_id)
    bits = {material.valid.name: static.bits_per_byte(static.static_nats or 0.0)}
    for trials in search(session_losses(measurements, [material.valid]), grid, bits):
        chosen = trials.best.setting
        if deadline.passed:
            break
    return measurements.under(chosen)


def read(
    model: LanguageModel, calibration: Calibration, material: Material, deadline: Deadline
) -> tuple[float, float, int]:
    """Nats of the test text without and with learning, and the tokens that there was time for."""
    evaluator = evaluator_of(model, calibration, bos_id=material.bos_id)
    static: list[float] = []
    adapted: list[float] = []
    tokens = 0
    for observed in evaluator.observe(evaluator.start(static=True), material.test.ids):
        assert observed.static_logprobs is not None
        static.append(-float(observed.static_logprobs.sum(dtype=np.float64)))
        adapted.append(-observed.scores.total)
        tokens += len(observed.scores)
        if deadline.passed:
            break
    return math.fsum(static), math.fsum(adapted), tokens


def _perplexity(nats_a_token: float) -> float:
    return math.exp(min(nats_a_token, 700.0))


@console.command()
@click.option("--recipe", default="wikitext-2-35m-rlstm", help="The RLSTM to train.")
@click.option("--corpus", help="Instead of the recipe's.")
@click.option(
    "--minutes", type=click.FloatRange(0.01), default=8.5, help="For everything, reading the corpus too."
)
@click.option(
    "--dropout-scale",
    type=click.FloatRange(0),
    default=0.5,
    help="Multiplies the recipe's dropout, which is made for days.",
)
@inputs.given("compute", Compute, device="cuda")
@inputs.as_json
def gpu(
    recipe: str,
    corpus: str | None,
    minutes: float,
    dropout_scale: float,
    compute: Compute,
    as_json: bool,
) -> None:
    """Train a recipe as far as it gets, beside torch.nn.LSTM of equal size, and evaluate both.

    Perplexities of test text, static and learning, and tokens a second of training.
    """
    deadline, target = Deadline(60 * minutes), compute.prepare()
    if target.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        named = recipe_named(recipe) if corpus is None else on_corpus(recipe_named(recipe), corpus)
        chosen = recipe_for_minutes(named, target, dropout_scale)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--dropout-scale") from error
    try:
        reached = compare(chosen, Material.of(chosen), target, deadline)
    except FloatingPointError as error:
        raise Diverged(f"training diverged: {error}") from error
    if as_json:
        on = torch.cuda.get_device_name(target) if target.type == "cuda" else "cpu"
        under = {"recipe": chosen.to_json(), "minutes": minutes, "device": on, "torch": torch.__version__}
        show_json({**under, "models": [asdict(model) for model in reached]})
        return
    rows = [
        (name.replace("_", " "), *(f"{asdict(each)[name]:,.6g}" for each in reached))
        for name in asdict(reached[0])
        if name != "model"
    ]
    show_table(("", *(each.model for each in reached)), rows)


if __name__ == "__main__":
    gpu()
