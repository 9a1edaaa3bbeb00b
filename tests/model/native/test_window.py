"""The native core: against the equations in float64, and each row's bits against its own alone."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.model.drawn import config_of, draw, draw_space, draw_weights, expected, merged

from rlstm_model import native
from rlstm_model.native.packed import PackedModel, Rule, Space

TIME = 5


class Case:
    """A model with random weights, and rows of random text from random states."""

    def __init__(self, config, *, seed=0, rows=3, time=TIME, dtype=np.float32, ranks=(3, 2)):
        generator = np.random.default_rng(seed)
        self.config, self.generator = config, generator
        self.weights = draw_weights(config, generator, dtype)
        self.space = draw_space(self.weights, generator, ranks)
        if config.softmax_components > 1:
            self.space = Space({}, ())
        self.model = PackedModel(config, self.weights, self.space)
        self.elements_ND = draw(generator, (rows, self.model.fast_weights), 0.3)
        self.ids_NT = generator.integers(config.vocab_size, size=(rows, time + 1)).astype(np.int32)
        self.loss_NT = generator.random((rows, time)).astype(np.float32)
        units = config.num_layers * config.hidden_size
        self.states_N2S = draw(generator, (rows, 2, units), 0.5)

    def row(self, number, *, learn=True, length=None, own=True):
        """A row of its own, with a state that nobody else writes to."""
        ids = self.ids_NT[number, : None if length is None else length + 1]
        return native.Row(
            ids=np.ascontiguousarray(ids[:-1]),
            states_2U=self.states_N2S[number].copy(),
            delta_P=self.elements_ND[number].copy() if own and not self.model.struct.whole else None,
            targets=np.ascontiguousarray(ids[1:]) if learn else (),
            loss_weights=self.loss_NT[number].copy() if learn else (),
            gradient=learn,
        )

    def loss(self, number, elements_D, temperature):
        """The weighted loss of a row whose cores and biases these are."""
        config = self.config
        h, c = self.states_N2S[number].astype(np.float64).reshape(2, config.num_layers, -1)
        weights = merged(self.weights, self.space, elements_D)
        ids = self.ids_NT[number]
        log_probs, *_ = expected(config, weights, ids[:-1], h, c, temperature)
        return -(log_probs[np.arange(len(ids) - 1), ids[1:]] * self.loss_NT[number]).sum()


CONFIGS = [
    config_of(),
    config_of(mogrifier_rank=0, mogrifier_bias=False),
    config_of(mogrifier_rounds=0),
    config_of(mogrifier_rounds=1, tie_embeddings=True),
    config_of(mogrifier_rounds=5, num_layers=3, stacking="skip"),
    config_of(stacking="plain", num_layers=1),
    config_of(cell="lstm", stacking="plain", num_layers=3),
    config_of(cell="lstm", cap_input_gate=False, mogrifier_rounds=0, stacking="plain"),
    config_of(hidden_size=16, vocab_size=32),
    config_of(hidden_size=1, vocab_size=2, mogrifier_rank=1),
]


@pytest.fixture(params=[1, 2])
def pool(request):
    pool = native.Pool(request.param)
    yield pool
    pool.close()


@pytest.mark.parametrize("config", [*CONFIGS, config_of(softmax_components=3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_log_probabilities_and_states_are_those_of_the_equations(pool, config, dtype):
    case = Case(config, dtype=dtype)
    rows = [case.row(number, learn=False, own=config.softmax_components == 1) for number in range(3)]
    windows = pool.window(case.model, rows, temperature=0.9)
    for number, (row, window) in enumerate(zip(rows, windows, strict=True)):
        h, c = case.states_N2S[number].astype(np.float64).reshape(2, config.num_layers, -1)
        weights = merged(case.weights, case.space, case.elements_ND[number].astype(np.float64))
        log_probs, h, c = expected(config, weights, row.ids, h, c, 0.9)
        np.testing.assert_allclose(window.log_probs_TV, log_probs, atol=2e-5, rtol=0)
        np.testing.assert_allclose(window.states_2U, np.array([h, c]).reshape(2, -1), atol=1e-5, rtol=0)
        np.testing.assert_allclose(np.exp(window.log_probs_TV.astype(np.float64)).sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("config", CONFIGS)
def test_gradients_are_slopes_of_the_loss(pool, config):
    case = Case(config)
    windows = pool.window(case.model, [case.row(number) for number in range(3)], temperature=1.2)
    for number, window in enumerate(windows):
        elements = case.elements_ND[number].astype(np.float64)
        for _ in range(3):
            direction = case.generator.normal(size=elements.size)
            ahead, behind = (case.loss(number, elements + step * direction, 1.2) for step in (1e-5, -1e-5))
            slope = (ahead - behind) / 2e-5
            assert window.gradient_P @ direction == pytest.approx(slope, rel=2e-4, abs=2e-4)


def test_whole_models_learn_every_weight(pool):
    """Rows of the kind "full": the weights are packed for the row, and the gradient is of each of them."""
    case = Case(config_of(tie_embeddings=True))
    space = Space({}, (), whole=True)
    case.model = PackedModel(case.config, case.weights, space)
    case.space = Space({}, list(case.weights))
    case.elements_ND = np.zeros((3, case.model.fast_weights), np.float32)
    (window,) = pool.window(case.model, [case.row(0)])
    gradient = window.gradient_P
    order = np.concatenate([np.full(case.weights[name].size, i) for i, name in enumerate(case.model.names)])
    laid = draw(case.generator, gradient.size, 0.1)
    case.model.lay(laid)
    (changed,) = pool.window(case.model, [case.row(0)])
    parts = np.split(laid, np.cumsum([weight.size for weight in case.weights.values()])[:-1])
    sums = {n: w + part.reshape(w.shape) for (n, w), part in zip(case.weights.items(), parts, strict=True)}
    (plain,) = pool.window(PackedModel(case.config, sums, space), [case.row(0)])
    np.testing.assert_allclose(changed.log_probs_TV, plain.log_probs_TV, atol=1e-5)
    np.testing.assert_allclose(changed.gradient_P, plain.gradient_P, atol=1e-5)
    case.model.lay(np.zeros_like(laid))
    (again,) = pool.window(case.model, [case.row(0)])
    assert again.gradient_P.tobytes() == gradient.tobytes()
    for number, name in enumerate(case.model.names):
        direction = np.where(order == number, case.generator.normal(size=gradient.size), 0.0)
        by_name = np.concatenate([direction[order == case.model.names.index(n)] for n in case.space.biases])
        ahead, behind = (case.loss(0, step * by_name, 1.0) for step in (1e-5, -1e-5))
        assert gradient @ direction == pytest.approx((ahead - behind) / 2e-5, rel=2e-4, abs=2e-4), name


def test_a_step_is_that_of_the_rule():
    """In float32 and, for values that half precision can hold, in float16; some rows are cut back."""
    case = Case(config_of())
    size = case.model.fast_weights
    rule = Rule(case.generator.random(size).astype(np.float32) * 3, 0.01, 1.5)
    for dtype, tolerance in ((np.float32, 1e-6), (np.float16, 2e-3)):
        space = case.space._replace(dtype=dtype, chosen_P=np.arange(size)[::2].copy())
        model = PackedModel(
            case.config, case.weights, space, rule._replace(precision_P=rule.precision_P[::2])
        )
        case.model = model
        elements, case.elements_ND = case.elements_ND, (case.elements_ND[:, ::2] / 4).astype(dtype)
        rows = [case.row(number)._replace(rate=rate) for number, rate in enumerate((0.5, 0.01, 0.0))]
        for threads in (1, 2):
            for row, window in zip(rows, native.Pool(threads).window(model, rows), strict=True):
                delta, step = row.delta_P.astype(np.float64), window.step
                moved = delta * 0.99 - row.rate * window.gradient_P * rule.precision_P[::2].astype(np.float64)
                norm = np.linalg.norm(moved)
                assert step.norm == pytest.approx(norm, rel=1e-5)
                assert step.gradient_norm == pytest.approx(np.linalg.norm(window.gradient_P), rel=1e-5)
                assert step.scale == pytest.approx(min(1.0, 1.5 / norm), rel=1e-5)
                np.testing.assert_allclose(step.delta_P, moved * step.scale, atol=tolerance, rtol=tolerance)
                assert step.taken
                assert step.delta_P.dtype == dtype
        case.elements_ND = elements


def test_a_step_that_is_not_finite_is_not_taken():
    case = Case(config_of())
    for dtype in (np.float32, np.float16):
        case.model = PackedModel(case.config, case.weights, case.space._replace(dtype=dtype))
        row = case.row(0)._replace(delta_P=case.elements_ND[0].astype(dtype), rate=1e38)
        (window,) = native.Pool(1).window(case.model, [row])
        assert not window.step.taken
        assert window.step.delta_P.tobytes() == row.delta_P.tobytes()
        (window,) = native.Pool(1).window(case.model, [case.row(0)._replace(delta_P=None, rate=1e38)])
        assert not window.step.delta_P.any()


def test_half_precision_is_rounded_to_the_nearest():
    """Every half survives a step that moves nothing, and what lies between goes to the even one."""
    config = config_of(vocab_size=70_000, hidden_size=1, num_layers=1, mogrifier_rounds=0)
    weights = draw_weights(config, np.random.default_rng(0))
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    model = PackedModel(
        config,
        weights,
        Space({}, ["embedding.bias"], np.arange(len(halves)), np.float16),
        Rule(shrink_P=0.25),
    )
    ids, loss = np.zeros(1, np.int32), np.zeros(1, np.float32)
    state = np.zeros((2, 1), np.float32)
    (window,) = native.Pool(1).window(model, [native.Row(ids, state, halves, ids, loss, rate=0.0)])
    wide = halves.astype(np.float32)
    assert (
        window.step.delta_P.view(np.uint16)
        == (wide - wide * np.float32(0.25)).astype(np.float16).view(np.uint16)
    ).all()


def test_instruction_sets_of_one_identity_have_the_same_bits():
    code = (
        "import hashlib, numpy as np, sys; sys.path.insert(0, sys.argv[1]);"
        "import tests.model.native.test_window as t; from rlstm_model import native;"
        "case = t.Case(t.config_of(hidden_size=40, vocab_size=50), rows=15);"
        "windows = native.Pool(1).window(case.model, [case.row(n) for n in range(15)]);"
        "bits = b''.join(w.log_probs_TV.tobytes() + w.gradient_P.tobytes() for w in windows);"
        "print(native.instructions(), native.identity(), hashlib.sha256(bits).hexdigest())"
    )
    seen = {}
    for name in ("avx512", "avx2", "portable"):
        result = subprocess.run(
            [sys.executable, "-c", code, str(Path(__file__).parents[3])],
            env={**os.environ, "RLSTM_INSTRUCTIONS": name},
            capture_output=True,
            text=True,
            check=False,
        )
        if "RLSTM_INSTRUCTIONS" in result.stderr:  # the processor has no such set
            continue
        chosen, identity, bits = result.stdout.split()
        seen.setdefault(identity, {})[chosen] = bits
    for identity, by_set in seen.items():
        assert len(set(by_set.values())) == 1, (identity, by_set)


def test_rows_that_do_not_fit_are_refused():
    case = Case(config_of())
    pool = native.Pool(1)
    good = case.row(0)
    outside = good.ids.copy()
    outside[2] = case.config.vocab_size
    bad = [
        good._replace(ids=outside),
        good._replace(targets=outside),
        good._replace(ids=np.full_like(good.ids, -1)),
        good._replace(ids=good.ids[:0], targets=good.targets[:0], loss_weights=good.loss_weights[:0]),
        good._replace(targets=()),
        good._replace(loss_weights=()),
        good._replace(states_2U=good.states_2U[:, :-1]),
        good._replace(delta_P=good.delta_P[:-1]),
        good._replace(delta_P=good.delta_P.astype(np.float64)),
    ]
    for row in bad:
        with pytest.raises(ValueError, match=r"rows do not fit|an array must be|no gradient"):
            pool.window(case.model, [row])
    for rows in ([], [good, case.row(1, length=3)]):
        with pytest.raises(ValueError, match=r"rows do not fit|an array must be|no gradient"):
            pool.window(case.model, rows)
    mixture = Case(replace(case.config, softmax_components=2))
    with pytest.raises(ValueError, match=r"rows do not fit|an array must be|no gradient"):
        pool.window(mixture.model, [mixture.row(0)])
    pool.close()
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        pool.window(case.model, [good])


def test_values_that_are_not_finite_stay_in_their_row():
    case = Case(config_of(), rows=4)
    pool = native.Pool(2)
    rows = [case.row(number) for number in range(4)]
    rows[1].states_2U[0, 0] = np.nan
    rows[2].delta_P[:] = np.inf
    windows = pool.window(case.model, rows)
    assert [bool(np.isfinite(window.log_probs_TV).all()) for window in windows] == [True, False, False, True]
    assert [bool(np.isfinite(window.gradient_P).all()) for window in windows] == [True, False, False, True]
