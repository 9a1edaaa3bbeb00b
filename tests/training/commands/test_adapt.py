"""`rlstm bench adapt`: what it says, keeps and refuses."""

import json

import pytest
import typer
from typer.testing import CliRunner

from rlstm_model.adaptation.calibration import load_calibration, save_calibration
from rlstm_model.checkpoint import load
from rlstm_model.vocab import ByteVocab
from rlstm_training.bench.shares import digest
from rlstm_training.commands.adapt import bench_adapt
from rlstm_training.corpora import load_corpus
from rlstm_training.corpora.texts import passage

QUICK = ["--stream", "turns", "--corpus", "one", "--prefix", 20, "--threads", 1]


@pytest.fixture
def adapt(with_rules, corpora):
    """Types the command for a model with three rules."""
    app = typer.Typer()
    app.command()(bench_adapt)

    def call(*words):
        return CliRunner().invoke(app, [str(word) for word in (with_rules, *words)])

    call.folder = with_rules
    return call


@pytest.fixture
def figures(adapt):
    """The JSON that comes of it."""

    def call(*words):
        done = adapt(*QUICK, *words, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    return call


def _evaluated(rlstm, folder, *words):
    done = rlstm("evaluate", folder, *words, "--dynamic", "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["texts"][0]


def test_figures_are_those_of_evaluate(adapt, rlstm, figures):
    """One expert of full fast weights: a stream is one session over its segments, a corpus is longer."""
    told = figures("--rule", "full", "--experts", 1)
    assert (told["model"], told["prefix"], list(told["static"])) == ("tiny", 20, ["turns", "one test"])
    stream = _evaluated(rlstm, adapt.folder, "--stream", "turns", "--prefix", 20)
    corpus = _evaluated(rlstm, adapt.folder, "--corpus", "one", "--prefix", 200)
    (row,) = told["rows"]
    for name, alone in (("turns", stream), ("one test", corpus)):
        assert row["bits_per_byte"][name] == alone["adapted"]["bits_per_byte"]
        assert told["static"][name] == pytest.approx(alone["static"]["bits_per_byte"], abs=1e-6)
        assert row["guards"][name] == alone["guards"]
    assert told["full"]["rates"][1] == {"rate_scale": 1.0, "bits_per_byte": row["bits_per_byte"]}
    assert told["full"]["bytes"] == row["bytes"] == 4 * row["rule"]["num_fast_weights"]


def test_threads_change_no_figure(figures, shared_out):
    """A thread pool reads the same texts, and one thread is none."""
    one = figures("--rule", "full", "--threads", 1)
    assert not shared_out
    assert figures("--rule", "full", "--threads", 2) == one
    assert max(shared_out) > 1


def test_shares_are_of_the_best_rate_of_full(figures):
    """For each text of its own; the streams' mean leaves the corpus out."""
    told = figures("--rule", "subspace", "--experts", 1, "--experts", 4)
    assert [row["experts"] for row in told["rows"]] == [1, 4]
    assert [row["bytes"] for row in told["rows"]] == [2 * 300, 3 * 2 * 300]
    for row in told["rows"]:
        assert (row["rule"]["kind"], row["rule"]["num_fast_weights"]) == ("subspace", 300)
        for name, static in told["static"].items():
            full = min(rate["bits_per_byte"][name] for rate in told["full"]["rates"])
            own = row["bits_per_byte"][name]
            assert row["share"][name] == pytest.approx((static - own) / (static - full))
        assert row["share_of_streams"] == row["share"]["turns"]
        assert row["share_of_all"] == pytest.approx(sum(row["share"].values()) / 2)


def test_all_rules_and_experts_unless_some_are_named(figures):
    """But full fast weights, which take longest, only as what others are a share of."""
    told = figures("--corpus", "one")
    rows = [(row["rule"]["kind"], row["experts"]) for row in told["rows"]]
    assert rows == [(kind, k) for kind in ("subspace", "output_bias") for k in (1, 2, 4)]
    assert [rate["rate_scale"] for rate in told["full"]["rates"]] == [1 / 3, 1.0, 3.0]
    assert told["mixtures"] == []


def test_full_can_come_from_an_earlier_result(adapt, figures, tmp_path):
    """The same shares without reading it again; a result of other text is refused."""
    told = figures("--rule", "subspace:300", "--experts", 1)
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(told))
    again = figures("--rule", "subspace:300", "--experts", 1, "--full-from", earlier)
    assert again == told
    done = adapt(*QUICK, "--prefix", 21, "--full-from", earlier)
    assert done.exit_code == 2
    assert "--full-from" in done.stderr
    assert "not read the same turns" in done.stderr


def test_a_mixture_is_judged_in_hindsight(adapt, figures):
    """Against the static model and nine single rates of its rule, for each text."""
    words = ["--rule", "subspace", "--experts", 4, "--mixture"]
    told = figures(*words)
    (mixture,), (row,) = told["mixtures"], told["rows"]
    for text in mixture["texts"]:
        costs = {single["rate_scale"]: single["bits_per_byte"] for single in text["singles"]}
        assert len(costs) == 10
        assert costs[0.0] == told["static"][text["text"]]
        assert text["best"] == min(costs.values()) == costs[text["best_scale"]]
        assert text["mixture"] == row["bits_per_byte"][text["text"]]
        assert text["excess"] == pytest.approx(text["mixture"] / text["best"] - 1)
    assert mixture["better_streams"] == int(mixture["texts"][0]["excess"] < 0)
    shown = adapt(*QUICK, *words)
    assert f"on {mixture['better_streams']} of 1 streams" in shown.stdout


def test_tables_for_people(adapt):
    """Bits, then shares with bytes: a line for each rule and number of experts."""
    done = adapt(*QUICK, "--rule", "subspace", "--experts", 1, "--experts", 2)
    assert done.exit_code == 0, done.output
    bits, shares = done.stdout.split("\n\n")
    assert [line.split("  ")[0] for line in bits.splitlines()] == [
        "bits per byte",
        "static",
        "full, rate x 0.333",
        "full, rate x 1",
        "full, rate x 3",
        "subspace of 300, 1 expert",
        "subspace of 300, 2 experts",
    ]
    assert "1/" in shares
    assert shares.splitlines()[0].split()[-4:] == ["one", "test", "streams", "all"]


@pytest.mark.parametrize(("suffix", "start"), [(".svg", b"<svg"), (".png", b"\x89PNG")])
def test_a_plot_is_drawn(adapt, tmp_path, suffix, start):
    """In the form that the name says."""
    path = tmp_path / f"shares{suffix}"
    done = adapt(*QUICK, "--rule", "subspace", "--experts", 1, "--plot", path)
    assert done.exit_code == 0, done.output
    assert path.read_bytes().startswith(start)


def test_all_bytes(adapt):
    """With --whole: the text as it is, not its beginning."""
    words = ["--threads", 1, "--rule", "output_bias", "--experts", 1, "--json"]
    done = adapt("--corpus", "one", "--whole", *words)
    told = json.loads(done.stdout)
    whole = passage(ByteVocab(), load_corpus("one", "test"), "one test")
    assert told["prefix"] is None
    assert told["texts"]["digests"] == {"one test": digest(whole)}


def test_without_full_there_is_nothing_to_take_shares_of(adapt):
    """The bits are told, and the warning says why there are no shares."""
    checkpoint = load(adapt.folder)
    stored = load_calibration(checkpoint.adaptation_file, checkpoint.model)
    others = tuple(choice for choice in stored.choices if choice.kind != "full")
    known = {"model": stored.model, "statistics": stored.statistics}
    save_calibration(checkpoint.adaptation_file, type(stored)(choices=others, **known))
    done = adapt(*QUICK, "--rule", "output_bias", "--json")
    assert done.exit_code == 0, done.output
    assert "no rule for full" in done.stderr
    told = json.loads(done.stdout)
    assert told["full"] is None
    assert told["rows"][0]["share"] == {"turns": None, "one test": None}
    assert adapt(*QUICK, "--rule", "output_bias").exit_code == 0


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--rule", "whole"], "--rule"),
        (["--rule", "subspace:many"], "--rule"),
        (["--rule", "subspace:301"], "subspace of 300"),
        (["--rule", "sparse"], "there is no rule"),
        (["--experts", 3], "--experts"),
        (["--whole"], "--prefix"),
        (["--stream", "river"], "river"),
        (["--full-from", "nowhere.json"], "nowhere.json"),
        (["--plot", "shares.pdf"], "--plot"),
        (["--plot", "nowhere/shares.svg"], "nowhere"),
        (["--device", "tpu"], "tpu"),
    ],
)
def test_wrong_usage_is_named(adapt, options, name):
    """Exit code 2, before anything is read."""
    done = adapt(*QUICK, *options)
    assert done.exit_code == 2
    assert name in done.stderr


def test_a_model_without_calibration_cannot_learn(adapt):
    """The message says what to run."""
    (adapt.folder / "adaptation.safetensors").unlink()
    done = adapt(*QUICK)
    assert done.exit_code == 2
    assert "run rlstm calibrate" in done.stderr
