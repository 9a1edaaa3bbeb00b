"""Shared by the tests of training: a small corpora folder, recipes of no weight, random models."""

import hashlib
import json
import lzma
import random
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from rlstm_client.cli.commands import build
from rlstm_model.config import ModelConfig
from rlstm_model.network.dropout import DropoutRates
from rlstm_model.network.language_model import LanguageModel
from rlstm_training.batches import Texts
from rlstm_training.config import Recipe, Source
from rlstm_training.corpora import ENVIRONMENT, SPLITS


def _words(count, seed):
    """Text of few words, which a model can learn: the same for the same seed."""
    draw = random.Random(seed)
    words = ["the", "sea", "was", "calm", "and", "cold", "ship", "sailed"]
    return " ".join(draw.choice(words) + draw.choice(["", "", "", ".\n"]) for _ in range(count)).encode()


def _record(folder, path, raw, dataset, role, **more):
    file = folder / path
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(lzma.compress(raw))
    return {
        "path": path,
        "dataset": dataset,
        "role": role,
        "licence": "public domain",
        "raw_bytes": len(raw),
        "raw_sha256": hashlib.sha256(raw).hexdigest(),
        **more,
    }


@pytest.fixture(scope="session")
def rlstm():
    """Types a command; the answer has exit_code, stdout and stderr."""
    commands = build()
    return lambda *words, stdin=None: CliRunner().invoke(commands, [*map(str, words)], input=stdin)


@pytest.fixture
def one_thread():
    """Has torch compute on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def curve_of():
    """The metrics of a run without what depends on the machine's speed."""

    def curve(run):
        timed = ("tokens_per_second", "seconds")
        return [{k: v for k, v in record.items() if k not in timed} for record in run.metrics()]

    return curve


@pytest.fixture(scope="session")
def words():
    return _words


def _make_corpora(folder):
    """A corpora folder: ``three`` (a file a split), ``one`` (byte ranges), ``kinds/letter`` and streams."""
    folder.mkdir()
    one = _words(600, 1)
    cuts = [0, len(one) - 600, len(one) - 300, len(one)]
    splits = {n: [a, b] for n, a, b in zip(SPLITS, cuts, cuts[1:], strict=False)}
    files = [
        *(_record(folder, f"three/{s}.txt.xz", _words(300, s), "three", s) for s in SPLITS),
        _record(folder, "one/one.txt.xz", one, "one", "all", splits=splits),
        _record(folder, "kinds/letter.txt.xz", _words(200, 9), "kinds", "domain"),
    ]
    segments = [
        {"file": "kinds/letter.txt.xz", "start": 100, "length": 200},
        {"file": "three/valid.txt.xz", "start": 0, "length": 150},
        {"file": "kinds/letter.txt.xz", "start": 300, "length": 50},
    ]
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "files": files}))
    (folder / "streams.json").write_text(json.dumps({"turns": {"about": "", "segments": segments}}))
    return folder


@pytest.fixture
def corpora(tmp_path, monkeypatch):
    """A corpora folder of a test's own, see :func:`_make_corpora`."""
    folder = _make_corpora(tmp_path / "corpora")
    monkeypatch.setenv(ENVIRONMENT, str(folder))
    return folder


@pytest.fixture(scope="session")
def shared_corpora(tmp_path_factory):
    """The same for all tests, to be read only."""
    return _make_corpora(tmp_path_factory.mktemp("shared") / "corpora")


def _make_own(folder):
    folder.mkdir()
    for split in SPLITS:
        (folder / f"{split}.txt").write_bytes(_words(300, split))
    return folder


@pytest.fixture
def own_folder(tmp_path):
    """A corpus of the user's own."""
    return _make_own(tmp_path / "own")


@pytest.fixture(scope="session")
def shared_own(tmp_path_factory):
    """The same for all tests, to be read only."""
    return _make_own(tmp_path_factory.mktemp("shared") / "own")


@pytest.fixture(scope="session")
def toy_recipe():
    """Builds a recipe that uses every part of the method and takes milliseconds a step."""

    def build(**changes):
        recipe = Recipe(
            name="toy",
            model=ModelConfig(
                vocab_size=256, hidden_size=12, num_layers=2, mogrifier_rounds=2, mogrifier_rank=3
            ),
            vocab="bytes",
            sources=(Source(corpus="three", rows=3), Source(corpus="one", rows=1)),
            window=8,
            steps=40,
            learning_rate=1e-2,
            decay="linear",
            beta1=0.9,
            l2=1e-4,
            dropout=DropoutRates(input=0.1, cell=0.1, state=0.1, output=0.1),
            dropout_samples=2,
            reset_probability=0.2,
            evaluate_every=20,
            validation_tokens=500,
            checkpoint_every=15,
        )
        return replace(recipe, **changes)

    return build


@pytest.fixture(scope="session")
def mean_over_tokens():
    """The same run stated for the mean over tokens: equal but for the optimiser's epsilon and first steps."""

    def restated(recipe):
        clip_norm, l2 = recipe.clip_norm / recipe.loss_factor, recipe.l2 / recipe.loss_factor
        return replace(recipe, loss_scale="mean_over_tokens", clip_norm=clip_norm, l2=l2)

    return restated


@pytest.fixture(scope="session")
def toy_texts():
    """The texts of a toy recipe without a corpora folder."""
    train, valid = (torch.frombuffer(bytearray(_words(400, s)), dtype=torch.uint8).numpy() for s in (1, 2))
    return Texts(train=[(train, 3), (valid, 1)], valid={"words": valid})


@pytest.fixture(scope="session")
def random_model():
    """Builds a model with random weights over ``vocab_size`` tokens."""

    def build(*, vocab_size=256, hidden_size=8, seed=0, scale=0.4):
        model = LanguageModel(
            ModelConfig(
                vocab_size=vocab_size,
                hidden_size=hidden_size,
                num_layers=2,
                mogrifier_rounds=2,
                mogrifier_rank=3,
            )
        )
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in model.parameters():
                weight.normal_(0.0, scale, generator=generator)
        return model.requires_grad_(False)

    return build
