"""The three commands together, as a person would type them."""

import json

import pytest
import torch
import typer

from rlstm_model.adaptation.calibration import load_calibration
from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.checkpoint import load
from rlstm_training.commands.console import command
from rlstm_training.corpora import CorpusError, load_corpus
from rlstm_training.corpora.streams import held_out, load_stream
from rlstm_training.corpora.texts import excerpt, passage
from rlstm_training.evaluation.evaluation import DynamicReading, static_loss


def test_training_leaves_a_model_and_its_curves(trained, tmp_path):
    """A checkpoint that loads, with a card; metrics and TensorBoard events in the run directory."""
    assert load(trained).card.startswith("---")
    assert (tmp_path / "run" / "metrics.jsonl").stat().st_size > 0
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_training_again_keeps_the_calibration(rlstm, calibrated, own_folder, tmp_path):
    """A finished run is not exported again over what was added to its model since."""
    model, _ = calibrated
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    again = ["train", "tiny", "--corpus", own_folder, "--run", tmp_path / "run", "--steps", 6]
    assert rlstm(*again).exit_code == 0
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before


def test_training_goes_on_from_another_model(rlstm, trained, own_folder, tmp_path):
    """--from takes weights, shape and vocabulary of a checkpoint; a tiny rate hardly moves them."""
    words = ("--corpus", own_folder, "--steps", 1, "--rate", 1e-6, "--full")
    done = rlstm("train", "tiny", *words, "--from", trained, "--run", tmp_path / "more", "--json")
    assert done.exit_code == 0, done.output
    first, second = load(trained).model, load(tmp_path / "more" / "tiny").model
    assert second.config == first.config
    torch.testing.assert_close(second.embedding.input, first.embedding.input, atol=1e-4, rtol=0.0)
    assert rlstm("train", "tiny", *words, "--from", tmp_path / "none").exit_code == 2


def test_training_prints_json_lines(rlstm, own_folder, tmp_path):
    """--json: a line a record, then where the run and the model are; nothing else on standard output."""
    run = tmp_path / "run"
    done = rlstm("train", "tiny", "--corpus", own_folder, "--run", run, "--steps", 2, "--full", "--json")
    *records, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["step"] for record in records] == [2, 2]
    assert last == {"run": str(run), "model": str(run / "tiny")}


def test_calibration_is_written_and_told(calibrated):
    """The chosen rate is in the file and in the card; each text's loss is told for each trial."""
    model, answer = calibrated
    told = answer["rules"][0]
    checkpoint = load(model)
    stored = load_calibration(checkpoint.adaptation_file, checkpoint.model).choose()
    assert stored.config.rate == told["chosen"]["rate"]
    assert [trial["rate"] for trial in told["trials"]] == [1e-3, 1e-2]
    assert told["chosen"]["regret"] == min(trial["regret"] for trial in told["trials"])
    assert set(told["static"]) == set(told["chosen"]["bits_per_byte"])
    assert len(told["static"]) == 3
    assert f"Rate {stored.config.rate:g}, decay 0" in checkpoint.card
    assert checkpoint.card.startswith("---")


def test_calibration_has_a_rule_for_each_kind_and_size(calibrated):
    """What was asked for is stored in that order, each with rates of its own, on common statistics."""
    model, answer = calibrated
    checkpoint = load(model)
    choices = load_calibration(checkpoint.adaptation_file, checkpoint.model).choices
    assert [choice.to_json() for choice in choices] == [rule["rule"] for rule in answer["rules"]]
    sizes = [(choice.kind, choice.num_fast_weights) for choice in choices]
    assert sizes == [
        ("full", checkpoint.model.config.num_parameters),
        ("subspace", 300),
        ("output_bias", 256),
    ]
    assert all(
        f"## Adaptation: {kind}, {num_fast_weights:,} fast weights\n" in checkpoint.card
        for kind, num_fast_weights in sizes
    )


def test_calibration_reads_all_held_out_texts_in_one_session_too(calibrated):
    """A rule is also chosen for a text that changes: the excerpts, one after the other."""
    model, answer = calibrated
    told = answer["rules"][0]
    checkpoint = load(model)
    *names, changing = told["static"]
    assert changing == "all in one session"
    raw = b"".join(held_out(name, "valid", 100) for name in names)
    joined = excerpt(checkpoint.vocab, raw, changing)
    expected = static_loss(checkpoint.model, joined, bos_id=checkpoint.vocab.bos_id)
    assert told["static"][changing] == pytest.approx(expected.to_json()["static"]["bits_per_byte"], rel=1e-5)


def test_evaluation_of_a_corpus_is_the_static_loss(rlstm, trained):
    """What is printed for a corpus's test split is the library's number."""
    done = rlstm("evaluate", trained, "--corpus", "one", "--json")
    (told,) = json.loads(done.stdout)["texts"]
    checkpoint = load(trained)
    expected = static_loss(
        checkpoint.model,
        passage(checkpoint.vocab, load_corpus("one", "test"), "one test"),
        bos_id=checkpoint.vocab.bos_id,
    )
    assert told["static"] == expected.to_json()["static"]
    assert told["adapted"] is None


def test_evaluation_of_a_stream_is_one_session(rlstm, calibrated):
    """A stream in its prefix form, dynamically, equals one session over the joined segments."""
    model, _ = calibrated
    done = rlstm("evaluate", model, "--stream", "turns", "--prefix", 30, "--dynamic", "--json")
    (told,) = json.loads(done.stdout)["texts"]
    checkpoint = load(model)
    segments = load_stream("turns", prefix=30)
    joined = passage(checkpoint.vocab, b"".join(raw for _, raw in segments), "joined")
    calibration = load_calibration(checkpoint.adaptation_file, checkpoint.model).choose()
    evaluator = DynamicEvaluator(checkpoint.model, calibration, bos_id=checkpoint.vocab.bos_id)
    expected = DynamicReading(evaluator).read(joined)
    assert told["adapted"]["nats"] == pytest.approx(expected.adapted_nats, abs=1e-5 * told["tokens"])
    assert told["static"]["nats"] == pytest.approx(expected.static_nats, abs=1e-5 * told["tokens"])
    assert [segment["text"] for segment in told["segments"]] == [label for label, _ in segments]
    assert sum(segment["bytes"] for segment in told["segments"]) == told["bytes"] == 90


def test_evaluation_of_files_and_standard_input(rlstm, trained, tmp_path):
    """Each file is a text of its own; the table has a row for each."""
    (tmp_path / "a.txt").write_text("the sea\n")
    done = rlstm("evaluate", trained, tmp_path / "a.txt", "-", stdin="was calm and cold\n")
    assert done.exit_code == 0
    tokens = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines()[1:]}
    assert tokens[str(tmp_path / "a.txt")] == "8"
    assert tokens["-"] == "18"


def test_foreseeable_errors_are_one_line(rlstm, trained, corpora, own_folder, tmp_path):
    """What is wrong is named on standard error, with the exit code of bad input or of failed work."""
    (corpora / "three" / "test.txt.xz").write_bytes(b"damaged")
    (tmp_path / "empty.txt").touch()
    run = tmp_path / "run"
    for words, code, message in [
        (["evaluate", tmp_path / "nothing", "x"], 2, "no such checkpoint folder"),
        (["evaluate", trained, tmp_path / "absent.txt"], 2, "absent.txt: No such file"),
        (["evaluate", trained, tmp_path / "empty.txt"], 2, "empty.txt holds no text"),
        (["evaluate", trained, "--corpus", "three"], 2, "test.txt.xz is damaged"),
        (["evaluate", trained, "--stream", "none"], 2, "no stream 'none'"),
        (["evaluate", trained, "--corpus", "one", "--dynamic"], 2, "has no calibration"),
        (["calibrate", trained, "--corpus", own_folder, "--length", 99999], 2, "99999 bytes in a row"),
        (["train", "tiny", "--corpus", tmp_path / "void"], 2, "no corpus"),
        (["train", "tiny", "--corpus", own_folder, "--run", run, "--steps", 7], 1, "steps differ"),
    ]:
        done = rlstm(*words)
        assert done.exit_code == code, words
        (line,) = done.stderr.splitlines()
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
    ]:
        done = rlstm(*words)
        assert done.exit_code == 2, words
        assert name in done.stderr


def test_an_interrupted_command_says_so():
    """Ctrl-C ends with 130; errors that nobody foresaw stay errors."""

    def interrupted():
        raise KeyboardInterrupt

    def broken():
        raise ZeroDivisionError

    def foreseen():
        raise CorpusError("gone")

    for function, code in ((interrupted, 130), (foreseen, 2)):
        with pytest.raises(typer.Exit) as exit_info:
            command(function)()
        assert exit_info.value.exit_code == code
    with pytest.raises(ZeroDivisionError):
        command(broken)()
