"""A model that was trained elsewhere: imported, calibrated and served, in real processes."""

import random
import signal
import subprocess

import pytest
from safetensors.torch import save_file
from tests.training.imports.original import Original, numbers

from rlstm_client import Client
from rlstm_client.errors import APIError

READING = ["--length", "400", "--heads", "4", "--segments", "10", "--rate", "0.02", "--decay", "0"]


@pytest.fixture(scope="module")
def imported(rlstm, tmp_path_factory):
    """Three layers of several widths over twelve words, and how to calibrate them."""
    folder, dice = tmp_path_factory.mktemp("imported"), random.Random(5)
    save_file(Original(12, (5, 9, 8, 7)).named("awd"), folder / "lstm.safetensors")
    (folder / "words.txt").write_text("\n".join(["<unk>", "<eos>", *numbers(10)]) + "\n")
    (folder / "text.txt").write_text(" ".join(dice.choices(numbers(10), k=3000)) + "\n")

    def run(*arguments):
        command = [str(rlstm.path), *arguments]
        subprocess.run(
            command, cwd=folder, env=rlstm.environment, check=True, timeout=100, capture_output=True
        )

    run("import", "lstm.safetensors", "--words", "words.txt", "--out", "mine")
    return folder, lambda: run("calibrate", "mine", "--corpus", "text.txt", *READING)


def test_it_is_scored_at_once_and_learns_when_calibrated(start, imported, tmp_path):
    """Asked to learn before, it names the command. A session killed in mid-word is as one that was not."""
    folder, calibrate = imported
    text = " ".join(["w1", "w4", "w2", "w8", "w5", "w7", "w0"] * 40)
    with start(model=folder / "mine") as server, Client(server.url) as client:
        assert client.score(text).items[0].totals.logprob < 0
        with pytest.raises(APIError, match="rlstm calibrate FOLDER --corpus TEXT"):
            client.sessions.create()
    calibrate()
    with start(model=folder / "mine", data_dir=tmp_path / "data") as server, Client(server.url) as client:
        session = client.sessions.create()
        session.append(text[:400])
        server.end(signal.SIGKILL)
    with start(model=folder / "mine", data_dir=tmp_path / "data") as server, Client(server.url) as client:
        killed, whole = client.sessions.get(session.id), client.sessions.create()
        killed.append(text[400:])
        whole.append(text)
        one, other = killed.info().totals, whole.info().totals
    assert (one.tokens, one.updates, other.updates) == (279, 27, 27)  # the last word may still grow
    for name in ("static_bits", "weights_bits", "adapted_bits"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-12)
    assert one.adapted_bits < 0.7 * one.static_bits
    assert one.weights_bits < one.static_bits
