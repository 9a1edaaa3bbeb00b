"""A whole pickled module: refused, and turned into a state dict without anything of it being run."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from rlstm_training.imports import ImportRefused
from rlstm_training.imports.tensors import parameters_of, read_state_dict


class Module(nn.Module):
    """What some model.py says, which whoever reads the file does not have."""

    def __init__(self):
        super().__init__()
        self.encoder, self.rnn, self.decoder = nn.Embedding(7, 4), nn.LSTM(4, 5), nn.Linear(5, 7)


class Trap:
    """Writes a file, if it is run."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def unpickled(source, out):
    command = [sys.executable, "-m", "rlstm_training.imports.unpickle", str(source), str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, cwd="/")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_module_becomes_its_state_dict(tmp_path, zipped):
    """As awd-lstm-lm writes it, in a list with its optimiser, in both formats of torch's; traps stay shut."""
    module, source, out = Module(), tmp_path / "model.pt", tmp_path / "model.safetensors"
    saved = [module, Trap(tmp_path / "sprung")]
    torch.save(saved, source, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ImportRefused, match=r"rlstm_training\.imports\.unpickle"):
        read_state_dict(source)
    done = unpickled(source, out)
    assert done.returncode == 0, done.stderr
    found = read_state_dict(out)
    assert found.keys() == module.state_dict().keys()
    for name, weight in module.state_dict().items():
        assert torch.equal(torch.from_numpy(found[name].copy()), weight)
    assert parameters_of(read_state_dict(out)).config.widths == (4, 5)
    assert not (tmp_path / "sprung").exists()


def test_what_holds_no_module_writes_nothing(tmp_path):
    source, out = tmp_path / "model.pt", tmp_path / "model.safetensors"
    torch.save([1, 2], source)
    done = unpickled(source, out)
    assert (done.returncode, done.stderr) == (2, f"{source}: holds no module\n")
    assert not out.exists()


def test_the_process_that_reads_can_open_nothing(tmp_path):
    """Whatever a pickle did: no file, no connection."""
    code = """
import socket, sys
from rlstm_training.imports import unpickle
unpickle._read = lambda data: tries.append(1) or (attempt() if len(tries) > 1 else None)
tries = []
def attempt():
    for act in (lambda: open(sys.executable, "rb"), socket.socket):
        try:
            act()
        except OSError as error:
            sys.stderr.write(f"{error.errno} ")
unpickle.confined()
"""
    done = subprocess.run([sys.executable, "-c", code], input=b"", capture_output=True, timeout=100)
    assert done.stderr.split()[:2] == [b"24", b"24"], done.stderr  # EMFILE
