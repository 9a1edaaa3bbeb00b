"""Each benchmark in miniature: it runs to its end, and its figures are those of the library."""

import json
import lzma
import math
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.benchmarks.conftest import TEXT

from benchmarks import cases, compress, native, peers, rescore, train
from benchmarks.adapt import adapt, share
from benchmarks.cases import backend_on, evaluator_of
from benchmarks.gpu import Deadline, Material, compare, gpu, recipe_for_minutes
from benchmarks.memory import KINDS, memory, stored_bytes
from benchmarks.models import Subject
from benchmarks.rows import rows
from benchmarks.serve import serve
from benchmarks.watch import USUAL, Found, watch
from rlstm_model.compression import KINDS as COMPRESSED
from rlstm_model.config import ModelConfig
from rlstm_training.config import Averaging, Recipe
from rlstm_training.corpora import corpora_folder
from rlstm_training.recipes import RECIPES

LOGS = corpora_folder() / "logs"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Matrix products of no size, and no GPT-2."""
    for module in (cases, train):
        monkeypatch.setattr(module, "SGEMM_SIZE", 16)
    monkeypatch.setattr(peers, "gpt2", lambda config, context: None)


@pytest.fixture
def figures(type_command):
    """Types a benchmark with --json and gives what it told."""

    def call(function, *words):
        done = type_command(function, *words, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout.splitlines()[-1])

    return call


def test_train(figures, type_command):
    """One line a model, beside torch's own."""
    size = ["--hidden", 8, "--rank", 2, "--vocabulary", 11, "--batch", 2, "--window", 3, "--seconds", 0]
    told = figures(train.train, *size, "--precision", "bfloat16")
    assert told["workload"].items() >= {"hidden": 8, "vocabulary": 11, "precision": "bfloat16"}.items()
    names = [f"{cell}, {rounds} rounds" for rounds in (4, 0) for cell in ("RLSTM", "LSTM")]
    assert [row["name"] for row in told["rows"]] == [*names, train.TORCH]
    assert "RLSTM, 4 rounds" in type_command(train.train, *size).stdout


def test_peers(figures, type_command, checkpoint):
    """Every peer by name, on so many threads; an untrained model needs no checkpoint."""
    quick = ["--sessions", 2, "--rounds", 1, "--seconds", 0, "--threads", 2]
    told = figures(peers.main, checkpoint, *quick, "--rule", "subspace")
    assert [row["threads"] for row in told["rows"][:5]] == [2] * 5
    assert all(row["tokens_per_second"] > 0 and row["of_sgemm"] > 0 for row in told["rows"])
    assert told["ratios"]["learning/peer"] == pytest.approx(told["rows"][5]["ours"])
    shown = type_command(peers.main, *quick, "--hidden", 8).stdout
    assert "eager autograd: full weights, one session at a time" in shown


@pytest.mark.parametrize("backend", [[], ["--torch"]])
def test_rows(figures, checkpoint, backend):
    """Frozen texts and sessions, so many at once, on the CPU's backend and a rehearsal of the GPU's."""
    quick = ["--count", 1, "--count", 3, "--rounds", 1, "--seconds", 0, "--threads", 1]
    told = figures(rows, checkpoint, *quick, *backend)["rows"]
    each = ["frozen", *(f"sessions, experts: {experts}" for experts in (1, 2, 4))]
    assert [row["name"] for row in told[1:]] == [f"{count} {what}" for count in (1, 3) for what in each]


@pytest.mark.parametrize(
    ("part", "findings"), [("lone", 5), ("many", 7), ("training", 2), ("start", 2), ("follow", 1)]
)
def test_native(figures, subject, checkpoint, monkeypatch, part, findings):
    """All findings of a part, with what each is made of."""
    none = native.Targets(learning={1: 0.0}, static=0.0, eager=0.0)
    monkeypatch.setitem(native.MANY, "n = 192", none)
    monkeypatch.setattr(Subject, "untrained", lambda hidden: subject)
    quick = ["--rounds", 1, "--seconds", 0, "--share", 0.01, "--sessions", 2, "--hidden", 8]
    told = figures(native.native, checkpoint, *quick, "--part", part)["findings"]
    assert len({one["name"] for one in told}) == len(told) == findings
    assert all(one["value"] >= 0 and one["absolute"] for one in told)


def test_adapt(figures, type_command, checkpoint, own_folder, tmp_path):
    """All rules but full's, which is the yardstick; a later run takes its figures, of the same text alone."""
    quick = ["--corpus", own_folder, "--threads", 1, "--mixture"]
    told = figures(adapt, checkpoint, *quick, "--prefix", 3)
    found = [(row["rule"]["kind"], row["experts"]) for row in told["rows"]]
    assert found == [(kind, k) for kind in ("subspace", "output_bias") for k in (1, 2, 4)]
    (name,) = told["static"]
    full = min(rate["bits_per_byte"][name] for rate in told["full"]["rates"])
    for row in told["rows"]:
        expected = share(told["static"][name], full, row["bits_per_byte"][name])
        assert row["share"] == {name: expected, "streams": None, "all": expected}
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(told))
    assert figures(adapt, checkpoint, *quick, "--prefix", 3, "--full-from", earlier) == told
    other = type_command(adapt, checkpoint, *quick, "--prefix", 2, "--full-from", earlier)
    assert "another model, calibration or text" in other.stderr


def test_memory(figures, type_command, checkpoint, own_folder, subject):
    """Bits of a repeated line are those of a session read alone; a memory costs no more than it says."""
    words = [checkpoint, "--corpus", own_folder, "--prefix", len(TEXT) // 10]
    told = figures(memory, *words)
    (name,) = told["bits_per_byte"]["frozen"]
    bits = {kind: own[name] for kind, own in told["bits_per_byte"].items()}
    rule = subject.calibrated.choose()
    evaluator = evaluator_of(backend_on(torch.device("cpu"), subject, rule, 1), subject, rule)
    for kind, config in KINDS.items():
        start = evaluator.start(experts=config.experts, static=config.static, adapt=config.adapt)
        parts = list(evaluator.observe(start, list(TEXT)))
        nats = -math.fsum(float(part.scores.logprobs.sum(dtype=np.float64)) for part in parts)
        assert bits[kind] == pytest.approx(nats / math.log(2) / len(TEXT), abs=1e-5)
        # 880 tokens of segments of 6: the last is not finished.
        assert told["stored"][kind] == stored_bytes(evaluator, kind) == parts[-1].state.nbytes
    assert bits["both"] < bits["weights"] < bits["frozen"]
    assert "a full memory is loaded in" in type_command(memory, *words).stdout


def test_compress(figures, type_command, tiny_checkpoint, monkeypatch):
    """Every stream by every kind, which give it back; xz and PPMd beside."""
    monkeypatch.setattr(compress, "stream_names", lambda: ["one"])
    monkeypatch.setattr(compress, "load_stream", lambda name, prefix: [("", TEXT[:prefix]), ("", TEXT)])
    told = figures(
        compress.main, tiny_checkpoint, "--prefix", 40, "--back", "--beside", "cp", "--processes", 1
    )
    content = TEXT[:40] + TEXT
    xz = len(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    beside = [(each["bytes"], each["xz"], each["beside"]) for each in told["others"]]
    assert beside == [(len(content), xz, len(content))]
    assert [each["kind"] for each in told["ours"]] == [*COMPRESSED]
    for each in told["ours"]:
        assert each["bits"] / 8 < each["bytes"] < each["bits"] / 8 + 128
    shown = type_command(
        compress.main, tiny_checkpoint, "--whole", "--kind", "memory", "--stream", "one"
    ).stdout
    assert "xz -9e" in shown
    assert "frozen" not in shown


def test_rescore(figures, tiny_checkpoint, monkeypatch):
    """On the lists that no weight was found on; the best there is bounds all."""
    pytest.importorskip("jiwer", reason="it comes with the extra rescore")
    said = "The king spoke to Ignosi of the mountain road; we said nothing then. "
    others = "kind sing ignorance mountains load toad nothings spike then"
    texts = {rescore.NOVEL: "x" * rescore.BEGIN + ". " + said * 8, "other": others}
    monkeypatch.setattr(rescore, "novels", lambda _: texts)
    found = figures(rescore.rescore, tiny_checkpoint, "--lists", 3, "--weighed", 2)
    rates = {name: row["wer"] for name, row in found["rows"].items()}
    assert (found["lists"], set(found["weights"])) == (3, {"frozen", "adapted"})
    assert all(rates["best there is"] <= rates[name] for name in ("first pass", "frozen", "adapted"))
    assert rates["adapted - frozen"] == pytest.approx(rates["adapted"] - rates["frozen"])


SERVED = ["--bytes", 24, "--seconds", 0, "--threads", 1, "--rule", "output_bias"]


def test_serve(figures, tiny_checkpoint):
    """A row for each number of sessions and way, under which conditions; what a session takes."""
    counts = ["--sessions", 1, "--sessions", 3, "--resident", 3, "--experts", 4, "--rows", 32]
    told = figures(serve, tiny_checkpoint, *SERVED, *counts)
    conditions = told["conditions"]
    assert (conditions["bytes"], conditions["rows"], conditions["threads"]) == (24, 32, 1)
    assert (conditions["adaptation"]["kind"], conditions["adaptation"]["experts"]) == ("output_bias", 4)
    found = told["rows"]
    ways = [(row["sessions"], row["way"]) for row in found]
    assert ways == [(1, "engine"), (1, "http"), (3, "engine"), (3, "http")]
    for engine, http in (found[:2], found[2:]):
        assert engine["of_engine"] is None
        assert http["of_engine"] == pytest.approx(http["tokens_per_second"] / engine["tokens_per_second"])
    assert all(row["round_mean"] > 0 and 0 < row["rows_a_round"] <= 32 for row in found)
    assert told["resident"]["sessions"] == 3


def test_serve_refuses_more_than_the_machine_can_hold(type_command, tiny_checkpoint, monkeypatch):
    """Before anything is measured."""
    monkeypatch.setattr(os, "sysconf", lambda name: 2**10)
    done = type_command(serve, tiny_checkpoint, *SERVED, "--sessions", 100_000)
    assert (done.exit_code, "--sessions" in done.stderr) == (2, True)


@pytest.mark.jobs
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not LOGS.is_dir(), reason="no logs in RLSTM_CORPORA")
def test_watch_finds_lines_of_other_systems(figures):
    """In the first 150 lines of each log: nearly all of them, and hardly a usual line."""
    logs = figures(watch, "--lines", 150, "--every", 5)["logs"]
    found = Found.together([Found(**log) for log in logs.values()])
    print(found)
    assert found.share("foreign") >= 0.95
    assert found.share(USUAL) <= 0.01


@pytest.fixture
def recipe(own_folder):
    """A small one, on a folder of the user's own."""
    source = replace(RECIPES["tiny"]().sources[0], corpus=str(own_folder), rows=4)
    averaging = Averaging(kind="two_tailed", patience=2)
    model = ModelConfig(vocab_size=256, hidden_size=12, num_layers=2, mogrifier_rounds=2, mogrifier_rank=3)
    more = {"averaging": averaging, "window": 8, "learning_rate": 3e-2}
    return replace(RECIPES["tiny"](), model=model, sources=(source,), **more)


def test_gpu_gives_both_models_the_same_time(recipe):
    """As many weights, the same seconds of a clock; both learn."""
    clock = iter(range(10**9))
    ours, torchs = compare(
        recipe, Material.of(recipe), torch.device("cpu"), Deadline(500, lambda: next(clock))
    )
    assert torchs.weights == pytest.approx(ours.weights, rel=0.02)
    assert torchs.steps == pytest.approx(ours.steps, abs=2)
    for each in (ours, torchs):
        assert max(each.valid_perplexity, each.test_perplexity, each.static_perplexity) < 30
        assert each.adapted_perplexity != each.static_perplexity


def test_gpu_on_a_cpu(figures, own_folder):
    """Both models side by side, and what minutes change of a recipe."""
    quick = ["--corpus", own_folder, "--minutes", 0.01, "--threads", 1, "--device", "cpu"]
    told = figures(gpu, "--recipe", "tiny", *quick)
    found = Recipe.from_json(told["recipe"])
    assert (found.name, found.decay, told["device"]) == ("tiny", "constant", "cpu")
    assert [model["model"] for model in told["models"]] == ["RLSTM", train.TORCH]
    changed = recipe_for_minutes(RECIPES["words-small"](), torch.device("cuda"), 0.5)
    assert (changed.dropout.input, changed.precision, changed.validation_tokens) == (0.1, "bfloat16", 10_000)


@pytest.mark.gpu
def test_gpu_on_a_gpu(recipe):
    """In bfloat16, and with cuDNN's LSTM, in forward, backward and dynamic evaluation."""
    cuda = torch.device("cuda")
    short = recipe_for_minutes(recipe, cuda, 1.0)
    for each in compare(short, Material.of(short), cuda, Deadline(20.0)):
        assert max(each.valid_perplexity, each.static_perplexity) < 30
