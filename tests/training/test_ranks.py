import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.servers import free_ports

from rlstm_training.config import Averaging
from rlstm_training.corpora.texts import prepare
from rlstm_training.loop import train
from rlstm_training.ranks import RankError, Ranks, own_device
from rlstm_training.reporting import Reporter
from rlstm_training.run import RunDirectory

pytestmark = pytest.mark.usefixtures("one_thread")

# Each line of its input names a run, which two processes train; their exit codes are printed. "stop" ends
# both after a step, "die" kills rank 1. They are forked, before torch has computed anything, so that torch is
# imported once: with all that an optimiser would import in its turn.
_LAUNCHER = """
import json, os, signal, sys, torch, torch._dynamo
from pathlib import Path
from rlstm_training.config import Recipe
from rlstm_training.loop import train
from rlstm_training.ranks import launched_ranks
from rlstm_training.reporting import Reporter
from rlstm_training.run import RunDirectory
from rlstm_training.corpora.texts import prepare

class End(Reporter):
    def advanced(self, step, loss):
        if step == job["stop"]:
            os._exit(3)
        if step == job["die"] and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)

def train_together(recipe, folder):
    torch.set_num_threads(1)
    texts, _ = prepare(recipe)
    with launched_ranks(torch.device("cpu")) as ranks:
        with ranks.first_ahead():
            run = RunDirectory.open(folder, recipe) if ranks.first else RunDirectory(folder)
        with run:
            train(recipe, texts, run, End(), ranks=ranks)

for line in sys.stdin:
    job, children = json.loads(line), []
    for rank in ("0", "1"):
        child = os.fork()
        if not child:
            os.environ.update(job["environment"], RANK=rank)
            train_together(Recipe.from_json(job["recipe"]), Path(job["folder"]))
            os._exit(0)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps(codes), flush=True)
"""


@pytest.fixture
def train_as_two(tmp_path):
    """Trains a recipe by two processes; returns their exit codes and what they said on standard error."""
    said = tmp_path / "stderr"
    command = [sys.executable, "-c", _LAUNCHER]
    pipe = subprocess.PIPE
    with (
        said.open("w") as file,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=file, text=True) as launcher,
    ):

        def train_both(folder, recipe, *, stop=0, die=0):
            job = {"folder": str(folder), "recipe": recipe.to_json(), "stop": stop, "die": die}
            launcher.stdin.write(json.dumps({**job, "environment": _environment()}) + "\n")
            launcher.stdin.flush()
            return json.loads(launcher.stdout.readline()), said.read_text()

        yield train_both


def _environment():
    """What torchrun tells its processes, but for the rank."""
    (port,) = free_ports(1)
    return {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def _train_alone(folder, recipe, *, stop=0):
    class End(Reporter):
        def advanced(self, step, loss):
            if step == stop:
                raise InterruptedError

    texts, _ = prepare(recipe)
    with RunDirectory.open(folder, recipe) as run:
        if not stop:
            train(recipe, texts, run, End())
            return
        with pytest.raises(InterruptedError):
            train(recipe, texts, run, End())


def _finite(figures):
    """A metric, without what is not known of an average that is empty."""
    if not isinstance(figures, dict):
        return figures
    return {name: figure for name, figure in figures.items() if figure is not None}


@pytest.fixture
def assert_same_run(curve_of):
    """Asserts that two runs are the same: losses, validation and every tensor of the last checkpoint."""

    def compare(folder, other, *, within):
        curve, expected = (curve_of(RunDirectory(Path(run))) for run in (folder, other))
        assert len(curve) == len(expected)
        for record, reference in zip(curve, expected, strict=True):
            assert record.keys() == reference.keys()
            for name, value in reference.items():
                expected_value = pytest.approx(_finite(value), rel=0, abs=within)
                assert _finite(record[name]) == expected_value, (reference["step"], name)
        last, reference = (RunDirectory(Path(run)).newest() for run in (folder, other))
        averages, expected = (saved.header["average"] for saved in (last, reference))
        for name, counts in expected.items():
            assert averages[name] == pytest.approx(counts, rel=0, abs=within), name
        assert last.tensors.keys() == reference.tensors.keys()
        for name, tensor in reference.tensors.items():
            torch.testing.assert_close(last.tensors[name], tensor, rtol=0, atol=within, msg=name)

    return compare


@pytest.fixture
def recipe(corpora, toy_recipe):
    """Every part of the method; four rows, of two sources."""
    return toy_recipe(
        steps=24,
        clip_norm=0.1,
        averaging=Averaging(kind="two_tailed", every=2, patience=2),
        evaluate_every=4,
        validation_tokens=60,
        checkpoint_every=5,
    )


@pytest.mark.timeout(600)
def test_two_processes_train_as_one_does(recipe, train_as_two, tmp_path, assert_same_run):
    """Losses, validation, weights, moments, averages and states are those of one process.

    So they are when a run is killed on one rank, and when it goes on with another number of ranks.
    """
    one, two, killed, mixed = (tmp_path / name for name in ("one", "two", "killed", "mixed"))
    _train_alone(one, recipe)
    assert train_as_two(two, recipe) == ([0, 0], "")
    assert_same_run(two, one, within=1e-5)

    assert train_as_two(mixed, recipe, stop=9) == ([3, 3], "")
    _train_alone(mixed, recipe, stop=17)
    assert train_as_two(mixed, recipe) == ([0, 0], "")
    assert_same_run(mixed, one, within=1e-5)

    codes, said = train_as_two(killed, recipe, die=13)
    assert codes == [1, -signal.SIGKILL]
    assert "RankError: another process of this run has ended or does not answer" in said
    assert RunDirectory(killed).saved_steps()[-1] < 13
    assert train_as_two(killed, recipe)[0] == [0, 0]
    assert_same_run(killed, two, within=0)


def test_shares_are_equal_and_cover_all_rows():
    """Rows that cannot be shared equally are refused."""
    shares = [Ranks(rank=rank, size=3).share(12) for rank in range(3)]
    assert [row for share in shares for row in range(12)[share]] == list(range(12))
    with pytest.raises(RankError, match="16 rows cannot be shared equally by 3 processes"):
        Ranks(rank=1, size=3).share(16)
    with pytest.raises(ValueError, match="rank 3 is none of 3"):
        Ranks(rank=3, size=3)


def test_each_rank_has_a_gpu_of_its_own(monkeypatch):
    """CUDA means the GPU of the rank's number on its machine; there must be one."""
    cuda = torch.device("cuda")
    assert own_device(cuda) == cuda
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert own_device(cuda) == torch.device("cuda:1")
    assert own_device(torch.device("cpu")) == torch.device("cpu")
    with pytest.raises(RankError, match="cuda:1 for 2 processes"):
        own_device(torch.device("cuda:1"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RankError, match="2 processes need as many GPUs; this machine has 1"):
        own_device(cuda)


def _torchrun(processes, *words):
    torchrun = ["torch.distributed.run", "--standalone", "--no-python", f"--nproc-per-node={processes}"]
    rlstm = str(Path(sys.executable).with_name("rlstm"))
    return subprocess.run(
        [sys.executable, "-m", *torchrun, "--", rlstm, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_torchrun_trains_by_the_command(corpora, own_folder, tmp_path, assert_same_run):
    """The command as documented: one writer, the curve of one process, one model at the end.

    What cannot be done is said, and nothing is written.
    """
    recipe = ["tiny", "--corpus", own_folder, "--steps", 8]
    for processes in (2, 1):
        done = _torchrun(processes, "train", *recipe, "--run", tmp_path / str(processes))
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"model: {tmp_path / str(processes) / 'tiny'}\n"
    assert_same_run(tmp_path / "2", tmp_path / "1", within=1e-5)
    again = _torchrun(2, "train", *recipe, "--run", tmp_path / "1", "--seed", 3)
    assert again.returncode == 1
    assert "recipe.json is the recipe of another run: seed differ" in again.stderr
    three = _torchrun(3, "train", *recipe, "--run", tmp_path / "3")
    assert three.returncode == 1
    assert "rlstm: 16 rows cannot be shared equally by 3 processes" in three.stderr
    assert not (tmp_path / "3").exists()
