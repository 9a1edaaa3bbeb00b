"""A whole pickled module: its tensors are read, and nothing of it is run."""

import os
import zipfile

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
    """Calls something, if it is run."""

    def __init__(self, function, *arguments):
        self.called = function, arguments

    def __reduce__(self):
        return self.called


@pytest.mark.parametrize("zipped", [True, False])
def test_a_module_is_its_state_dict(tmp_path, zipped):
    """As awd-lstm-lm writes it, in a list with its optimiser, in both formats of torch's; traps stay shut."""
    module, path, sprung = Module(), tmp_path / "model.pt", tmp_path / "sprung"
    optimizer = torch.optim.ASGD(module.parameters())
    sum(weight.sum() for weight in module.parameters()).backward()
    optimizer.step()
    saved = [
        module,
        nn.CrossEntropyLoss(),
        optimizer,
        Trap(open, str(sprung), "w"),
        Trap(eval, "1 / 0"),
        Trap(os._exit, 9),
    ]
    torch.save(saved, path, _use_new_zipfile_serialization=zipped)
    found = read_state_dict(path)
    assert found.keys() == module.state_dict().keys()
    for name, weight in module.state_dict().items():
        assert torch.equal(torch.from_numpy(found[name].copy()), weight)
    assert parameters_of(found).config.widths == (4, 5)
    assert not sprung.exists()


def test_what_holds_no_tensors_or_is_a_program_is_refused(tmp_path):
    path = tmp_path / "model.pt"
    torch.save([1, 2], path)
    with pytest.raises(ImportRefused, match="holds no state dict and no module"):
        read_state_dict(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/constants.pkl", b"")
    with pytest.raises(ImportRefused, match="is a program"):
        read_state_dict(path)
