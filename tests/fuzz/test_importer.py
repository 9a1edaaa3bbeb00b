"""Whatever is imported: it is refused as an import, or it is a state that can be used."""

import collections
import json
import os
import random
import resource
import tracemalloc
from dataclasses import replace

import pytest
from tests.fuzz.mutations import Parts, mutated
from tests.fuzz.worlds import KEY

from rlstm_server.caller import Call
from rlstm_server.engine.copies import read_file
from rlstm_server.engine.engine import Engine
from rlstm_server.engine.models import Models
from rlstm_server.errors import ImportRejected, InternalFault, ServerError
from rlstm_server.metrics import Metrics
from rlstm_server.schemas.sessions import AppendRequest, ImportRequest
from rlstm_server.store.memory_store import MemoryStore

QUICK = 600
LONG = int(os.environ.get("RLSTM_IMPORTS", "500000"))
GROWTH_MIB = 32
CALLER = Call(tenant=KEY.tenant, request_id="r")


def peak_mib():
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fuzz(worlds, count):
    """Import so many mutated files; gives the refusals by what they say, and how the peak of memory rose.

    It is looked at around each import, so that what the mutations themselves take is not counted.
    """
    draw, said, other, rose = random.Random(1), collections.Counter(), [], 0.0
    for number in range(count):
        world = worlds[number % len(worlds)]
        data = mutated(world.files, draw)
        began = peak_mib()
        try:
            read_file(data, world.models)
            said["taken"] += 1
        except ImportRejected as error:
            said[error.detail] += 1
        except Exception as error:
            other.append((repr(error)[:200], data[:2_000]))
        rose += peak_mib() - began
    return said, other, rose


def report(said, other, grown):
    count = said.total() + len(other)
    return (
        f"\nimporter: {count:,} inputs: {len(other)} exceptions but ImportRejected,"
        f" peak memory +{grown:.0f} MB ({said['taken']:,} taken, {len(said) - 1} kinds of refusals)"
    )


def test_valid_files_are_taken(worlds):
    """What is mutated is right to begin with, and taking it apart changes nothing but white space."""
    for world in worlds:
        for data in world.files:
            header, state = read_file(data, world.models)
            again, same = read_file(Parts(data).joined(), world.models)
            assert (again, same.norm_ratio) == (header, state.norm_ratio)


def test_mutated_files_are_refused_or_taken_quick(worlds):
    """A few of them."""
    said, other, _ = fuzz(worlds, QUICK)
    assert not other, other[:3]
    assert len(said) > 8


@pytest.mark.faults
def test_mutated_files_are_refused_or_taken(worlds, capsys):
    """Half a million, bombs included; every refusal of the importer is met."""
    said, other, grown = fuzz(worlds, LONG)
    with capsys.disabled():
        print(report(said, other, grown))
    assert not other, other[:3]
    assert grown < GROWTH_MIB
    assert len(said) > 9


def bombs(whole):
    """Files that claim, or hold, far more than there is."""
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    claimed = {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}

    def named(**changes):
        parts = Parts(whole)
        parts.named |= changes
        return parts.joined()

    yield "a tensor of 1e12 numbers", named(now=claimed)
    yield "tensors that overlap", named(now=Parts(whole).named["delta"])
    yield "100,000 entries", named(**{f"a{number}": entry for number in range(100_000)})
    yield "a header of 2**64", b"\xff" * 8 + whole[8:]
    yield "a header of 1 MB", (2**20).to_bytes(8, "little") + b" " * 2**20 + whole
    yield "lists 60,000 deep", (60_000).to_bytes(8, "little") + b"[" * 60_000
    deep = json.dumps({"__metadata__": {"rlstm": "[" * 60_000}}).encode()
    yield "a description of lists 60,000 deep", len(deep).to_bytes(8, "little") + deep


def test_bombs_allocate_nothing(worlds):
    """Sizes are compared with the model's before anything of that size is made."""
    world = worlds[0]
    for name, body in bombs(world.files[-1]):
        data = body
        tracemalloc.start()
        try:
            with pytest.raises(ImportRejected):
                read_file(data, world.models)
            assert tracemalloc.get_traced_memory()[1] < 2 * len(data) + 2**20, name
        finally:
            tracemalloc.stop()


async def use(engine, data):
    """Import a file and append to the session; gives what that came to."""
    try:
        made = await engine.import_session(ImportRequest(data=data).by(CALLER))
    except ImportRejected:
        return "refused"
    try:
        for given in ({"text": "the dog ran"}, {"tokens": [1, 2, 3, 4, 5, 6]}):
            call = replace(CALLER, session=made.info.id)
            await engine.append(AppendRequest(**given, final=True).by(call))
    except InternalFault:
        return "broken"
    except ServerError:
        return "unusable"
    finally:
        await engine.delete(replace(CALLER, session=made.info.id))
    return "used"


@pytest.mark.parametrize("count", [60, pytest.param(3_000, marks=pytest.mark.faults)])
async def test_what_is_taken_can_be_used(worlds, count, capsys):
    """An append learns from what was taken, or refuses in words."""
    draw, came = random.Random(2), collections.Counter()
    for world in worlds:
        engine = Engine(Models(world.served), MemoryStore(), Metrics())
        engine.start()
        try:
            for _ in range(count):
                came[await use(engine, mutated(world.files, draw))] += 1
        finally:
            await engine.close()
            engine.check()
    if count > 60:
        with capsys.disabled():
            print(f"\nimports used: {json.dumps(came)}")
    assert not came["broken"], came
    assert came["used"]
