"""The commands together, as a person would type them: training, corpora, errors, devices."""

import json
import platform
from itertools import pairwise

import pytest
import torch
from click.testing import CliRunner

from rlstm_model.adaptation.calibration_file import load_calibration
from rlstm_model.checkpoint import load
from rlstm_model.network.language_model import LanguageModel
from rlstm_training.commands.console import command
from rlstm_training.commands.given import Compute
from rlstm_training.corpora import CorpusError
from rlstm_training.corpora.published import PUBLISHED
from rlstm_training.corpora.reading import held_out
from rlstm_training.corpora.texts import excerpt
from rlstm_training.evaluation.evaluation import static_loss
from rlstm_training.recipes import RECIPES


def test_training_leaves_a_model_and_its_curves(rlstm, trained, own_folder, tmp_path):
    """A checkpoint that loads, with a card; metrics and TensorBoard events in the run directory.

    A finished run is not exported again over what was added to its model since.
    """
    assert load(trained).card.startswith("---")
    assert (tmp_path / "run" / "metrics.jsonl").stat().st_size > 0
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    (trained / "README.md").write_text("mine")
    again = ["train", "tiny", "--corpus", own_folder, "--run", tmp_path / "run", "--steps", 6]
    assert rlstm(*again).exit_code == 0
    assert (trained / "README.md").read_text() == "mine"


def test_training_goes_on_from_another_model(rlstm, trained, own_folder, tmp_path):
    """--from takes weights, shape and vocabulary of a checkpoint; --json gives a line a record."""
    words, run = ("--corpus", own_folder, "--steps", 1, "--rate", 1e-6, "--full"), tmp_path / "more"
    done = rlstm("train", "tiny", *words, "--from", trained, "--run", run, "--json")
    assert done.exit_code == 0, done.output
    *records, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["step"] for record in records] == [1, 1]
    assert last == {"run": str(run), "model": str(run / "tiny")}
    first, second = (
        LanguageModel.of(load(trained).parameters),
        LanguageModel.of(load(run / "tiny").parameters),
    )
    assert second.config == first.config
    torch.testing.assert_close(second.embedding.input, first.embedding.input, atol=1e-4, rtol=0.0)
    assert rlstm("train", "tiny", *words, "--from", tmp_path / "none").exit_code == 2
    again = ("train", "tiny", *words, "--run", tmp_path / "third", "--out", trained)
    assert "is there already; --force replaces it" in rlstm(*again).stderr
    assert rlstm(*again, "--force").exit_code == 0


def test_all_recipes_are_listed_with_what_they_read(rlstm, corpora):
    """Name, weights and corpora; those that are not here are marked."""
    (corpora / "text8").write_bytes(b"x")
    lines = rlstm("train", "--list").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(RECIPES)
    assert all(("(not here)" in line) != ("text8-" in line) for line in lines[1:])
    assert f"{RECIPES['ptb-words-24m-rlstm']().model.num_parameters:,}" in "\n".join(lines)
    rows = {row["recipe"]: row for row in json.loads(rlstm("train", "--list", "--json").stdout)["recipes"]}
    assert rows["text8-48m-lstm"]["corpora"] == {"text8": True}
    assert rows["bytes-small"]["corpora"] == {"enwiki6": False, "dickens": False}


def test_calibration_has_a_rule_for_each_kind_and_size(calibrated):
    """Stored in the order asked for, each with rates of its own, in the card too, each trial told."""
    model, answer = calibrated
    checkpoint = load(model)
    choices = load_calibration(checkpoint.adaptation_file, checkpoint.parameters.config).choices
    assert [choice.to_json() for choice in choices] == [rule["rule"] for rule in answer["rules"]]
    sizes = [("full", checkpoint.parameters.config.num_parameters), ("subspace", 300), ("output_bias", 256)]
    assert [(choice.kind, choice.num_fast_weights) for choice in choices] == sizes
    assert all(f"## Adaptation: {kind}, {n:,} fast weights\n" in checkpoint.card for kind, n in sizes)
    told = answer["rules"][0]
    assert [trial["rate"] for trial in told["trials"]] == [1e-3, 1e-2]
    assert told["chosen"]["regret"] == min(trial["regret"] for trial in told["trials"])
    assert f"Rate {told['chosen']['rate']:g}, decay 0" in checkpoint.card
    # A rule is also chosen for a text that changes: the excerpts, one after the other.
    *names, changing = told["static"]
    assert changing == "all in one session"
    joined = excerpt(checkpoint.vocab, b"".join(held_out(name, "valid", 100) for name in names), changing)
    expected = static_loss(
        LanguageModel.of(checkpoint.parameters), joined, bos_id=checkpoint.vocab.bos_id
    ).to_json()
    assert told["static"][changing] == pytest.approx(expected["static"]["bits_per_byte"], rel=1e-5)


def test_corpora_are_told_and_how_to_get_those_missing(rlstm, corpora, monkeypatch):
    """A folder that has one of them: the others come with their files; only what is named is downloaded."""
    for split in ("train", "valid", "test"):
        (corpora / f"ptb.char.{split}.txt").write_text("a")
    told = rlstm("corpora").stdout
    for name, corpus in PUBLISHED.items():
        assert name in told
        assert (f"into {corpora / name} " in told) == (name != "ptb-characters")
        assert corpus.licence in told
    answer = json.loads(rlstm("corpora", "text8", "--json").stdout)
    (text8,) = answer["corpora"]
    assert (answer["folder"], text8["missing"]) == (str(corpora), [str(corpora / "text8" / "text8")])
    assert text8["address"] == "http://mattmahoney.net/dc/text8.zip"
    got = []
    monkeypatch.setattr(
        "rlstm_training.commands.corpora.download", lambda corpus, folder, client: got.append(corpus.name)
    )
    (corpora / "text8").write_bytes(b"x")
    assert rlstm("corpora", "enwik8", "text8", "--download").exit_code == 0
    assert got == ["enwik8"]


def test_foreseeable_errors_are_one_line(rlstm, trained, corpora, own_folder, tmp_path):
    """What is wrong is named on standard error, with the exit code of bad input or of failed work."""
    (corpora / "three" / "test.txt.xz").write_bytes(b"damaged")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "odd.txt").write_bytes(b"\xff\xfea")
    run = tmp_path / "run"
    for words, code, message in [
        (["evaluate", tmp_path / "nothing", "x"], 2, "no such checkpoint folder"),
        (["evaluate", trained, tmp_path / "absent.txt"], 2, "absent.txt: No such file"),
        (["evaluate", trained, tmp_path / "empty.txt"], 2, "empty.txt holds no text"),
        (["evaluate", trained, tmp_path / "odd.txt"], 2, "odd.txt is not UTF-16-LE text"),
        (["evaluate", trained, tmp_path / "odd.txt", "--encoding", "x"], 2, "no encoding 'x'"),
        (["evaluate", trained, "--corpus", "three"], 2, "test.txt.xz is damaged"),
        (["evaluate", trained, "--stream", "none"], 2, "no stream 'none'"),
        (["evaluate", trained, "--corpus", "one", "--dynamic"], 2, "has no calibration"),
        (["calibrate", trained, "--corpus", own_folder, "--length", 99999], 2, "but 99,999 are needed"),
        (["train", "tiny", "--corpus", tmp_path / "void"], 2, "no corpus"),
        (["train", "tiny", "--corpus", own_folder, "--run", run, "--steps", 7], 1, "steps differ"),
        (["corpora", "ptb-words", "--download"], 2, "corpus 'ptb-words' cannot be downloaded"),
    ]:
        done = rlstm(*words)
        assert done.exit_code == code, words
        (line,) = done.stderr.splitlines()[-1:]
        assert line.startswith("rlstm: ")
        assert message in line


def test_wrong_usage_names_the_option(rlstm, trained):
    """Exit code 2 for what no file can mend."""
    for words, name in [
        (["evaluate", trained], "FILES"),
        (["evaluate", trained, "--corpus", "one", "--device", "cuda:99"], "--device"),
        (["evaluate", trained, "--corpus", "one", "--device", "abacus"], "--device"),
        (["evaluate", trained, "--corpus", "one", "--split", "all"], "--split"),
        (["train", "huge"], "huge"),
        (["train", "tiny", "--steps", 0], "--steps"),
        (["calibrate", trained, "--recipe", "huge"], "huge"),
        (["corpora", "--download"], "name what to download"),
        (["corpora", "enwik9"], "'enwik9' is not one of 'ptb-words'"),
    ]:
        done = rlstm(*words)
        assert done.exit_code == 2, words
        assert name in done.stderr


def test_an_error_that_is_foreseen_is_one_line():
    """What nobody foresaw stays an error."""

    def raising(error):
        def act():
            raise error

        return CliRunner().invoke(command()(act))

    gone = raising(CorpusError("gone"))
    assert (gone.exit_code, gone.stderr) == (2, "rlstm: gone\n")
    assert isinstance(raising(ZeroDivisionError).exception, ZeroDivisionError)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="tells glibc how to keep memory")
def test_a_steps_buffers_are_those_of_the_last_step():
    """Not mapped anew, with a fault for each of 16,384 pages, once there is a piece that is large enough."""
    resource = pytest.importorskip("resource")
    Compute().prepare()
    faults = []
    for _ in range(9):
        torch.zeros(1 << 24)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    assert min(after - before for before, after in pairwise(faults)) < 1_000
