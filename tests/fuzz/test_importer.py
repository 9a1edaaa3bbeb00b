"""Whatever is imported: it is refused as an import, or it is a state that can be used."""

import collections
import json
import os
import random
import resource

import pytest
from tests.fuzz.mutations import Parts, mutated, signed
from tests.fuzz.worlds import KEY, KEYS

from rlstm_server.engine.engine import Engine
from rlstm_server.engine.exports import read_export
from rlstm_server.engine.messages import AppendRequest, Caller, ImportRequest, Passage
from rlstm_server.errors import ImportRejected, InternalFault, ServerError
from rlstm_server.metrics import Metrics
from rlstm_server.store.in_memory import MemoryStore

QUICK = 600
LONG = int(os.environ.get("RLSTM_IMPORTS", "500000"))
WARM = 400
GROWTH_MIB = 32
CALLER = Caller(tenant=KEY.tenant, request_id="r")


def peak_mib():
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fuzz(worlds, count):
    """Import so many mutated files; gives the refusals by what they say, and the memory they took."""
    draw, said, other, began = random.Random(1), collections.Counter(), [], peak_mib()
    for number in range(count):
        if number == WARM:
            began = peak_mib()
        world = worlds[number % len(worlds)]
        data = mutated(world.files, draw)
        try:
            read_export(data, KEYS, world.spec)
            said["taken"] += 1
        except ImportRejected as error:
            said[error.detail] += 1
        except Exception as error:
            other.append((repr(error)[:200], data[:2_000]))
    return said, other, peak_mib() - began


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
            read_export(data, KEYS, world.spec)
            read_export(signed(Parts(data).joined(random.Random(0), honest=True)), KEYS, world.spec)


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
        engine = Engine(world.served, MemoryStore(), Metrics(), export_keys=KEYS)
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
