"""Shapes by chance: each row's bits against its own alone, whatever is beside it, and against the equations.

Also with address and undefined-behaviour sanitizers, where pieces of the core's own memory have gaps between
them and begin as NaN: no value that was not computed is ever read.
"""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.model import drawn

from rlstm_model import native
from rlstm_model.config import ModelConfig
from rlstm_model.native.library import digest
from rlstm_model.native.packed import PackedModel, Rule, Space

SOURCE = Path(native.__file__).parent / "src"
SETS = {
    "avx512": ["-mavx512f", "-mfma", "-mf16c"],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "portable": [],
}
CHECKED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-pthread"]

small = st.integers(1, 70)
sizes = small | st.sampled_from([127, 129, 200, 511])
configs = st.builds(
    ModelConfig,
    vocab_size=small | st.sampled_from([255, 257, 1000, 4099]),
    hidden_size=sizes,
    num_layers=st.integers(1, 3),
    cell=st.sampled_from(["rlstm", "lstm"]),
    mogrifier_rounds=st.integers(0, 5),
    mogrifier_rank=st.sampled_from([0, 1, 3, 17]),
    mogrifier_bias=st.booleans(),
    tie_embeddings=st.booleans(),
    stacking=st.sampled_from(["residual", "skip", "plain"]),
    softmax_components=st.sampled_from([1, 1, 1, 2, 17]),
)
rows = st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=30)


def draw_row(generator, model, config, length, own, *, learn=False):
    """A row, as a function that makes it anew."""
    ids = generator.integers(config.vocab_size, size=length + 1).astype(np.int32)
    state = drawn.draw(generator, (2, model.units), 0.5)
    delta = (
        drawn.draw(generator, model.fast_weights, 0.1).astype(model.dtype)
        if own and model.fast_weights
        else None
    )
    loss, rate = generator.random(length).astype(np.float32), float(generator.random() * 0.1)
    if not learn:
        return lambda: native.Row(ids[:-1], state, delta)
    return lambda: native.Row(ids[:-1], state, delta, ids[1:], loss, rate, True)


def bits(window):
    """Everything that a row gave."""
    step = [] if window.step is None else [window.step.delta_P.tobytes(), *map(repr, window.step[1:])]
    gradient = None if window.gradient_P is None else window.gradient_P.tobytes()
    return window.log_probs_TV.tobytes(), window.states_2U.tobytes(), gradient, step


def check_alone_and_in_company(generator, model, config, makers, threads):
    """In any order, beside any others, by any number of threads."""
    order = generator.permutation(len(makers))
    company = [makers[i]() for i in order]
    windows = native.pool(threads).window(model, company, temperature=0.9)
    for i, window in zip(order, windows, strict=True):
        alone = makers[i]()
        (expected,) = native.pool(1).window(model, [alone], temperature=0.9)
        assert np.isfinite(window.log_probs_TV).all()
        assert bits(window) == bits(expected)


def check(config, rows, learners, threads, half, seed):
    """A model of any shape, with all that its rows may add."""
    generator = np.random.default_rng(seed)
    weights = drawn.draw_weights(config, generator, np.float16 if half else np.float32)
    space = Space({}, ())
    if config.softmax_components == 1:
        space = drawn.draw_space(weights, generator)._replace(dtype=np.float16 if half else np.float32)
    model = PackedModel(config, weights, space, Rule(None, 0.01, 5.0))
    learners = learners if config.softmax_components == 1 else 0
    length = max(length for length, _ in rows)
    makers = [draw_row(generator, model, config, length, i % 3, learn=True) for i in range(learners)]
    makers += [draw_row(generator, model, config, own, adds) for own, adds in rows]
    check_alone_and_in_company(generator, model, config, makers, threads)


@given(configs, rows, st.integers(0, 9), st.sampled_from([1, 2, 3]), st.booleans(), st.integers(0, 99))
def test_a_row_has_the_bits_that_it_has_alone(config, rows, learners, threads, half, seed):
    check(config, rows, learners, threads, half, seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("hidden", [1, 2, 17, 192, 400, 512, 1000, 1023, 2048])
def test_great_shapes_have_the_bits_too(hidden):
    """Sums longer than what is added at once, and vocabularies beyond one cut of the softmax."""
    for number, (vocab, cell, rank) in enumerate([(257, "rlstm", 8), (50_001, "lstm", 0)]):
        layers = 1 if hidden > 600 else 2
        config = ModelConfig(
            vocab_size=vocab,
            hidden_size=hidden,
            num_layers=layers,
            cell=cell,
            mogrifier_rounds=2,
            mogrifier_rank=rank,
        )
        for threads in (2, 3):
            check(config, [(2, True), (1, False), (3, True)] * 2, 3, threads, number == 0, hidden)


@given(st.lists(st.integers(1, 40), min_size=2, max_size=4), st.sampled_from([1, 2]))
def test_layers_may_differ_in_width(widths, threads):
    """A row has the bits that it has alone; what they are shows the comparison with torch."""
    lstms = {"cell": "lstm", "cap_input_gate": False, "mogrifier_rounds": 0, "stacking": "plain"}
    shape = {"hidden_size": max(widths), "num_layers": len(widths) - 1, "widths": tuple(widths)}
    config, generator = drawn.config_of(**lstms, **shape), np.random.default_rng(len(widths))
    weights = drawn.draw_weights(config, generator)
    model = PackedModel(config, weights, Space({}, ("embedding.bias", "stack.layers.0.bias")))
    makers = [draw_row(generator, model, config, 4, i % 2, learn=i < 3) for i in range(7)]
    check_alone_and_in_company(generator, model, config, makers, threads)


@pytest.mark.parametrize("name", ["stack.layers.0.x", "embedding.bias"])
def test_weights_of_another_config_are_refused(name):
    """The core reads as far as the config says."""
    config = drawn.config_of()
    weights = drawn.draw_weights(config, np.random.default_rng(0))
    for wrong in ({**weights, name: weights[name][:-1]}, {n: w for n, w in weights.items() if n != name}):
        with pytest.raises(ValueError, match="not those of the model's config"):
            PackedModel(config, wrong)


def test_axes_that_do_not_fit_and_what_cannot_learn_are_refused():
    config = drawn.config_of()
    generator = np.random.default_rng(0)
    weights = drawn.draw_weights(config, generator)
    space = drawn.draw_space(weights, generator)
    for name in ("embedding.input", "stack.layers.0.h"):
        axes = space.axes[name]
        for wrong in (
            axes._replace(left=axes.left[:-1]),
            axes._replace(left=axes.left[:, :0]),
            axes._replace(right=axes.right[:, :-1]),
        ):
            with pytest.raises(ValueError, match=f"none of {name}"):
                PackedModel(config, weights, Space({name: wrong}, ()))
    mixture = drawn.config_of(softmax_components=2)
    weights = drawn.draw_weights(mixture, generator)
    for space in (Space({}, ("embedding.bias",)), Space({}, (), whole=True)):
        with pytest.raises(ValueError, match="mixture of softmaxes"):
            PackedModel(mixture, weights, space)


# ---- with sanitizers --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checked_library(tmp_path_factory):
    """The core, built with address and undefined-behaviour sanitizers."""
    folder = tmp_path_factory.mktemp("checked")
    sets = SETS if platform.machine() == "x86_64" else {"portable": []}
    parts = [
        ("core.c", []),
        ("memory.c", []),
        ("tree.c", []),
        *(("kernels.c", [f"-DRL_SET={s}", *f]) for s, f in sets.items()),
    ]
    flags = ["-std=c11", "-O1", "-g", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", *CHECKED]
    flags.append(f'-DRL_SOURCES="{digest(SOURCE)}"')
    objects = [f"{folder}/{number}.o" for number in range(len(parts))]
    for (source, own), built in zip(parts, objects, strict=True):
        subprocess.run(["cc", *flags, *own, "-c", SOURCE / source, "-o", built], check=True)
    subprocess.run(["cc", "-shared", *CHECKED, *objects, "-o", f"{folder}/librlstm.so"], check=True)
    return f"{folder}/librlstm.so"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(shutil.which("cc") is None or sys.platform != "linux", reason="needs a C compiler")
@pytest.mark.parametrize("instructions", SETS)
def test_nothing_is_read_or_written_outside_of_its_buffers(checked_library, instructions):
    """All tests of the native core, and shapes by chance, with every access checked."""
    preload = [
        subprocess.run(
            ["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--hypothesis-profile",
            "long",
            "--timeout",
            "3000",
            Path(__file__).parent,
        ],
        env={
            **os.environ,
            "RLSTM_NATIVE": checked_library,
            "RLSTM_INSTRUCTIONS": instructions,
            "LD_PRELOAD": ":".join(preload),
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    if "RLSTM_INSTRUCTIONS: " in done.stdout:
        pytest.skip(f"this processor has no {instructions}")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
