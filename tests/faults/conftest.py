"""How much is done: `RLSTM_FAULTS=short` is what CI does in a minute, else all of it; RLSTM_KILLS overrides."""

import os
from dataclasses import dataclass

import pytest

from tests.faults.replicas import fork_server
from tests.faults.stores import StoreProcess, program


@dataclass(frozen=True)
class Sizes:
    """How many faults of each kind are made."""

    kills: int
    other_kills: int
    pauses: int
    network_faults: int
    stalls: int
    longest_stall_seconds: float


FULL = Sizes(
    kills=200, other_kills=50, pauses=70, network_faults=500, stalls=12, longest_stall_seconds=8.0
)
SHORT = Sizes(kills=10, other_kills=5, pauses=4, network_faults=25, stalls=2, longest_stall_seconds=2.0)


@pytest.fixture(scope="session")
def sizes():
    """Give how much is to be done."""
    chosen = SHORT if os.environ.get("RLSTM_FAULTS") == "short" else FULL
    kills = os.environ.get("RLSTM_KILLS")
    if kills is None:
        return chosen
    return Sizes(**vars(chosen) | {"kills": int(kills), "other_kills": int(kills)})


@pytest.fixture(scope="session")
def context():
    """Give the fork server's context; one for all tests."""
    os.environ["OMP_NUM_THREADS"] = "1"
    return fork_server()


@pytest.fixture
def store_of(tmp_path):
    """Give what makes a store by name, `valkey` or `redis`; ended afterwards. Skips where it is not there."""
    made = []

    def make(name, **options):
        binary = program(name)
        if binary is None:
            pytest.skip(f"there is no {name}-server here")
        store = StoreProcess(binary, tmp_path / f"store-{len(made)}", **options)
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()
