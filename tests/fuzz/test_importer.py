"""Whatever is imported: it is refused as an import, or it is a state that can be used."""

import collections
import json
import os
import random
import resource
import tracemalloc

import pytest
from tests.fuzz.mutations import Parts, mutated, signed
from tests.fuzz.worlds import KEY, KEYS

from rlstm_server.engine.engine import Engine
from rlstm_server.engine.envelope import MAGIC, open_envelope
from rlstm_server.engine.exports import read_session
from rlstm_server.engine.models import Models
from rlstm_server.engine.quotas import Caller
from rlstm_server.errors import ImportRejected, InternalFault, ServerError
from rlstm_server.metrics import Metrics
from rlstm_server.schemas import AppendRequest, ImportRequest, Passage
from rlstm_server.store.in_memory import MemoryStore

QUICK = 600
LONG = int(os.environ.get("RLSTM_IMPORTS", "500000"))
GROWTH_MIB = 32
CALLER = Caller(tenant=KEY.tenant, request_id="r")


def read(data, spec):
    """The session in a file."""
    return read_session(open_envelope(data, KEYS), spec)


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
            read(data, world.spec)
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
            read(data, world.spec)
            read(signed(Parts(data).joined(random.Random(0), honest=True)), world.spec)


def test_mutated_files_are_refused_or_taken_quick(worlds):
    """A few of them."""
    said, other, _ = fuzz(worlds, QUICK)
    assert not other, other[:3]
    assert len(said) > 10


@pytest.mark.faults
def test_mutated_files_are_refused_or_taken(worlds, capsys):
    """Half a million, bombs included; every refusal of the importer is met."""
    said, other, grown = fuzz(worlds, LONG)
    with capsys.disabled():
        print(report(said, other, grown))
    assert not other, other[:3]
    assert grown < GROWTH_MIB
    assert len(said) > 15


def bombs(whole):
    """Files of this server that claim, or hold, far more than there is."""
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    claimed = {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}

    def named(**changes):
        parts = Parts(whole)
        parts.named |= changes
        return parts.joined(random.Random(0), honest=True)

    yield "a tensor of 1e12 numbers", named(**{"now.h": claimed})
    yield "tensors that overlap", named(**{"now.h": Parts(whole).named["now.c"]})
    yield "100,000 entries", named(**{f"a{number}": entry for number in range(100_000)})
    yield "a header of 4 GB", MAGIC + b"\xff" * 4 + whole[len(MAGIC) + 4 :]
    yield "a header of 1 MB", MAGIC + (2**20).to_bytes(4, "little") + b" " * 2**20 + whole
    header = int.from_bytes(whole[len(MAGIC) :][:4], "little")
    start = len(MAGIC) + 4 + header
    yield "tensors' header of 2**64", whole[:start] + b"\xff" * 8 + whole[start + 8 :]
    yield "lists 60,000 deep", MAGIC + (60_000).to_bytes(4, "little") + b"[" * 60_000


def test_bombs_allocate_nothing(worlds):
    """Sizes are compared with the model's before anything of that size is made."""
    world = worlds[0]
    for name, body in bombs(world.files[-1]):
        data = signed(body)
        tracemalloc.start()
        try:
            with pytest.raises(ImportRejected):
                read(data, world.spec)
            assert tracemalloc.get_traced_memory()[1] < 2 * len(data) + 2**20, name
        finally:
            tracemalloc.stop()


async def use(engine, data):
    """Import a file and append to the session; gives what that came to."""
    try:
        made = await engine.import_session(ImportRequest(caller=CALLER, data=data))
    except ImportRejected:
        return "refused"
    try:
        for passage in (Passage(text="the dog ran"), Passage(tokens=(1, 2, 3, 4, 5, 6))):
            await engine.append(
                AppendRequest(caller=CALLER, session=made.info.id, passage=passage, final=True)
            )
    except InternalFault:
        return "broken"
    except ServerError:
        return "unusable"
    finally:
        await engine.delete(KEY.tenant, made.info.id)
    return "used"


@pytest.mark.parametrize("count", [60, pytest.param(3_000, marks=pytest.mark.faults)])
async def test_what_is_taken_can_be_used(worlds, count, capsys):
    """A signed file is this server's own, whatever it says: an append learns from it, or refuses in words."""
    draw, came = random.Random(2), collections.Counter()
    for world in worlds:
        engine = Engine(Models(world.served), MemoryStore(), Metrics(), export_keys=KEYS)
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
