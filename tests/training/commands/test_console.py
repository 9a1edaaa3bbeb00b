"""What the commands share: devices, threads and crews."""

import pytest
import torch
import typer

from rlstm_training.commands.console import prepare_crew


@pytest.fixture(autouse=True)
def threads():
    """Leaves torch with as many threads as before."""
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


def test_a_crew_of_the_threads_asked_for():
    """While it lasts torch splits no product."""
    with prepare_crew("cpu", 3) as room:
        assert (room.device.type, room.threads, room.thread_pool.threads) == ("cpu", 3, 3)
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
    with pytest.raises(RuntimeError):
        room.thread_pool.map(abs, [1, 2])


def test_as_many_threads_as_torch_would_use():
    """When none are asked for."""
    torch.set_num_threads(2)
    with prepare_crew("cpu", None) as room:
        assert (room.threads, room.thread_pool.threads) == (2, 2)


def test_one_thread_is_no_crew():
    """The calling thread does the work."""
    with prepare_crew("cpu", 1) as room:
        assert (room.threads, room.thread_pool) == (1, None)


def test_no_crew_beside_a_gpu(monkeypatch):
    """Batches are the device's; torch's threads stay as they are."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with prepare_crew("cuda", 2) as room:
        assert (room.device.type, room.threads, room.thread_pool) == ("cuda", 2, None)
        assert torch.get_num_threads() == 2


def test_no_such_device():
    """Wrong usage, before there is a pool."""
    with pytest.raises(typer.BadParameter, match="'abacus' is no device"), prepare_crew("abacus", None):
        pass
