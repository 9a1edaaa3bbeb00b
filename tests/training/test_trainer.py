"""A run in progress: its steps against the objective read off the text, its evaluations, and going back."""

import math
from dataclasses import replace

import pytest
import torch

from rlstm_model.config import ModelConfig
from rlstm_model.network.dropout import DropoutRates
from rlstm_training.config import Averaging
from rlstm_training.evaluation.evaluation import striped_loss
from rlstm_training.trainer import Trainer, make_optimizer

pytestmark = pytest.mark.usefixtures("one_thread")

PLAIN = {"dropout": DropoutRates(), "dropout_samples": 1, "l2": 0.0, "reset_probability": 0.0}


def test_the_loss_is_the_text_read_by_the_model(toy_recipe, toy_texts):
    """Without dropout, a step's loss is the plain loss of the window, from the carried state."""
    trainer = Trainer(toy_recipe(**PLAIN), toy_texts)
    for _ in range(3):
        state, positions = trainer.state, trainer.batches.positions.copy()
        inputs_TB, targets_TB = trainer.batches.next()
        trainer.batches.positions = positions
        with torch.no_grad():
            features, _ = trainer.model(inputs_TB, state)
            logits = trainer.model.logits(features).flatten(0, 1)
        expected = torch.nn.functional.cross_entropy(logits, targets_TB.flatten()).item()
        assert trainer.advance() == pytest.approx(expected, abs=1e-5)


def test_the_state_is_carried_and_cut_from_its_history(toy_recipe, toy_texts):
    """A window begins where the last one ended; no gradient reaches back."""
    trainer = Trainer(toy_recipe(**PLAIN), toy_texts)
    trainer.advance()
    assert trainer.state.h.abs().sum() > 0
    assert not trainer.state.h.requires_grad


def test_pitfall_18_a_row_is_reset_with_all_its_copies(toy_recipe, toy_texts):
    """Hidden and cell values of all layers and all D samples of a row are zeroed together."""
    trainer = Trainer(toy_recipe(reset_probability=0.5), toy_texts)
    seen = set()
    for _ in range(12):
        trainer.state = type(trainer.state)(
            torch.ones_like(trainer.state.h), torch.ones_like(trainer.state.c)
        )
        trainer._reset_some_states()
        kept_LBH = torch.stack(trainer.state)
        kept_B = kept_LBH.amax((0, 1, 3))
        assert torch.equal(kept_LBH.amin((0, 1, 3)), kept_B)
        assert torch.equal(kept_B[0::2], kept_B[1::2])
        seen.update(kept_B.tolist())
    assert seen == {0.0, 1.0}


@pytest.mark.parametrize("kind", ["none", "tail", "two_tailed"])
def test_pitfall_16_validation_leaves_training_alone(toy_recipe, toy_texts, kind):
    """Looking at validation texts, under averages too, changes no number of the run, nor its state."""
    looking = Trainer(toy_recipe(averaging=Averaging(kind=kind, latest=1)), toy_texts)
    blind = Trainer(toy_recipe(), toy_texts)
    for _ in range(6):
        looking.evaluate()
        assert looking.advance() == blind.advance()
        assert torch.equal(looking.state.c, blind.state.c)


@pytest.mark.gpu
def test_a_run_on_a_gpu_learns_the_same(toy_recipe, toy_texts):
    """Without dropout, whose masks differ by device, losses on CUDA are those of the CPU."""
    recipe = toy_recipe(**PLAIN)
    cpu, gpu = Trainer(recipe, toy_texts), Trainer(recipe, toy_texts, torch.device("cuda"))
    gpu.model.load_state_dict(cpu.model.state_dict())
    for _ in range(20):
        assert gpu.advance() == pytest.approx(cpu.advance(), abs=1e-3)


def test_texts_of_other_rows_are_refused(toy_recipe, toy_texts):
    """Texts and recipe must agree on the batch."""
    with pytest.raises(ValueError, match="the texts have 4 rows, the recipe 3"):
        Trainer(toy_recipe(sources=toy_recipe().sources[:1]), toy_texts)


def test_pitfall_5_every_window_and_row_has_state_masks_of_its_own(toy_recipe, toy_texts):
    """Masks are drawn anew for each window, and all rows, copies and layers have different ones."""
    trainer = Trainer(toy_recipe(dropout=DropoutRates(state=0.5)), toy_texts)
    first, second = (trainer._draw_masks().state for _ in range(2))
    layers, rows = first.shape[:2]
    assert (layers, rows) == (2, 4 * 2)
    assert len({tuple(row.tolist()) for mask in (first, second) for row in mask.flatten(0, 1)}) == 2 * 2 * 8


def test_pitfall_11_the_copies_of_a_row_have_states_of_their_own(toy_recipe, toy_texts):
    """Under their different masks the D samples of a row carry different states on; each row has its own."""
    trainer = Trainer(toy_recipe(dropout_samples=3, reset_probability=0.0), toy_texts)
    trainer.advance()
    c_BH = trainer.state.c[-1]
    assert len(c_BH) == 4 * 3
    assert len({tuple(row.tolist()) for row in c_BH}) == 4 * 3
    before = trainer.state
    inputs_TB, _ = trainer.batches.next()
    copied = before.rows(slice(0, 3))
    with torch.no_grad():
        _, together = trainer.model(inputs_TB.repeat_interleave(3, 1), before)
        _, alone = trainer.model(inputs_TB[:, :1].expand(-1, 3), copied)
    torch.testing.assert_close(together.rows(slice(0, 3)).c, alone.c)


def _gradients(trainer):
    return [weight.grad.clone() for weight in trainer.parameters]


@pytest.mark.parametrize("clip_norm", [1e-3, 1e6])
def test_pitfall_12_loss_scales_are_converted(toy_recipe, mean_over_tokens, toy_texts, clip_norm):
    """The gradient of the sum over T tokens, clipped or not, is T times that of the mean, L2 included."""
    recipe = toy_recipe(loss_scale="sum_over_time", clip_norm=clip_norm, l2=0.3)
    summed, mean = (Trainer(one, toy_texts) for one in (recipe, mean_over_tokens(recipe)))
    assert summed.advance() == mean.advance()
    for left, right in zip(_gradients(summed), _gradients(mean), strict=True):
        torch.testing.assert_close(left, recipe.window * right, rtol=1e-4, atol=1e-9)
    norm = torch.cat([gradient.flatten() for gradient in _gradients(summed)]).norm().item()
    assert (norm == pytest.approx(clip_norm, rel=1e-3)) == (clip_norm < 1)


def test_pitfall_13_l2_is_clipped_with_the_rest(toy_recipe, toy_texts):
    """The clipped gradient points where the gradient of loss and penalty together does."""
    clipped, whole, plain = (
        Trainer(toy_recipe(l2=l2, clip_norm=clip), toy_texts)
        for l2, clip in ((2.0, 1e-2), (2.0, 1e9), (0.0, 1e9))
    )
    weights = [weight.detach().clone() for weight in plain.parameters]
    assert clipped.advance() == whole.advance() == plain.advance()
    expected = [g + 2.0 * w for g, w in zip(_gradients(plain), weights, strict=True)]
    torch.testing.assert_close(_gradients(whole), expected)
    norm = torch.cat([gradient.flatten() for gradient in expected]).norm()
    torch.testing.assert_close(_gradients(clipped), [g * 1e-2 / norm for g in expected], rtol=1e-3, atol=1e-8)


def _averaged_trainer(toy_recipe, toy_texts, kind="two_tailed"):
    """Thirty steps so noisy that their mean is far better than the last of them."""
    recipe = toy_recipe(
        averaging=Averaging(kind=kind, latest=1),
        optimizer="adam",
        beta1=0.0,
        learning_rate=0.3,
        decay="constant",
    )
    trainer = Trainer(recipe, toy_texts)
    for _ in range(30):
        trainer.advance()
    return trainer


@pytest.mark.parametrize("kind", ["tail", "two_tailed"])
def test_an_evaluation_gives_the_loss_of_the_weights_that_count(toy_recipe, toy_texts, kind):
    """The long mean's loss is that of a model with these weights; the raw ones are back afterwards."""
    valid = {"words": toy_texts.valid["words"], "few": toy_texts.valid["words"][:100]}
    trainer = _averaged_trainer(toy_recipe, replace(toy_texts, valid=valid), kind)
    raw = [weight.detach().clone() for weight in trainer.parameters]
    found, bits = trainer.evaluate()
    assert (found.reported, found.length) == ("long", 30)
    assert all(torch.equal(*pair) for pair in zip(trainer.parameters, raw, strict=True))
    for weights, loss in ((trainer.average.long(), found.loss), (raw, found.raw)):
        model = Trainer(trainer.recipe, trainer.texts).model
        with torch.no_grad():
            for weight, value in zip(model.parameters(), weights, strict=True):
                weight.copy_(value)
        nats = [striped_loss(model, ids[:500]) for ids in valid.values()]
        assert loss == pytest.approx((nats[0] * 500 + nats[1] * 100) / 600)
        if loss == found.loss:
            assert list(bits.values()) == pytest.approx([n / math.log(2) for n in nats])


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_nothing_changes_when_a_step_is_not_finite(toy_recipe, toy_texts, monkeypatch, what):
    """Loss or gradient: the error names the step; weights, moments, average and state are as before it."""
    trainer = _averaged_trainer(toy_recipe, toy_texts)
    before = {name: tensor.clone() for name, tensor in trainer.tensors().items()}
    header = trainer.average.header()

    def spoilt(embedding, features, *rest):
        nothing = (features.sum() * 0).sqrt()  # Its gradient is infinity times zero.
        return nothing if what == "gradient" else nothing * math.nan

    monkeypatch.setattr("rlstm_training.trainer.language_model_loss", spoilt)
    with pytest.raises(FloatingPointError, match="step 31: loss"):
        trainer.advance()
    now = trainer.tensors()
    for name in (name for name in now if name.startswith(("model.", "optimizer.", "average."))):
        assert torch.equal(now[name], before[name])
    assert trainer.average.header() == header
    assert trainer.step == 30


@pytest.mark.parametrize("rate_scale", [1.0, 0.81])
def test_a_step_goes_at_the_recipes_rate_times_the_scale(toy_recipe, toy_texts, rate_scale):
    """With Adam and no momentum the first step moves every weight by the rate, up or down."""
    recipe = toy_recipe(optimizer="adam", beta1=0.0, epsilon=1e-30, l2=1.0, clip_norm=1e9)
    trainer = Trainer(recipe, toy_texts)
    before = [weight.detach().clone() for weight in trainer.parameters]
    trainer.advance(rate_scale)
    for weight, old in zip(trainer.parameters, before, strict=True):
        moved = (weight.detach() - old).abs()[weight.grad != 0]
        torch.testing.assert_close(
            moved, torch.full_like(moved, recipe.learning_rate * rate_scale), rtol=1e-3, atol=1e-6
        )


def test_a_mixture_of_softmaxes_is_trained(toy_recipe, toy_texts):
    """Its projections and mixing weights get gradients, and the loss falls."""
    shape = ModelConfig(
        vocab_size=256, hidden_size=12, num_layers=2, softmax_components=2, tie_embeddings=True
    )
    recipe = toy_recipe(model=shape, **PLAIN, learning_rate=3e-2, decay="constant")
    trainer = Trainer(recipe, toy_texts)
    losses = [trainer.advance() for _ in range(60)]
    assert sum(losses[-10:]) / 10 < losses[0] - 1.5
    assert all(weight.grad.any() for weight in trainer.model.embedding.mixture.parameters())


@pytest.mark.parametrize("optimizer", ["radam", "adam"])
def test_pitfall_13_no_weight_decay_outside_the_loss(toy_recipe, optimizer):
    """L2 is part of the gradient: the optimiser itself lets a weight without gradient be."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = make_optimizer([weight], toy_recipe(optimizer=optimizer, l2=0.5))
    weight.grad = torch.zeros(3)
    optimizer.step()
    assert weight.tolist() == [1.0] * 3
