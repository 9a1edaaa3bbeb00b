"""What a session of full fast weights costs: to load, and with each append."""

import asyncio
import statistics
import time

import pytest
import torch

from rlstm_model import checkpoint as checkpoints
from rlstm_model.vocab import ByteVocab
from rlstm_server.engine import snapshot
from rlstm_server.engine.served import ServedModel
from rlstm_server.engine.snapshot import digest
from rlstm_server.metrics import Metrics
from rlstm_server.schemas import AdaptationRequest
from rlstm_server.store import base
from rlstm_server.store.base import SessionKey
from rlstm_server.store.embedded import EmbeddedValkey
from rlstm_server.store.in_redis import RedisStore
from rlstm_training.bench.untrained import untrained

FULL = AdaptationRequest(kind="full", experts=4)
TEXT = "It was the best of times, it was the worst of times; it was the age of wisdom. "
MEGABYTES = 64
HIDDEN = 596
"""Units of an untrained model whose three rows of full fast weights have so many megabytes."""

REPLAY_SECONDS = 2.0
READ_SECONDS = 1.0

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


@pytest.fixture
async def valkey(tmp_path):
    server = EmbeddedValkey(tmp_path)
    await server.start()
    store = RedisStore(server.url)
    await store.check()
    yield store
    await store.close()
    await server.stop()


def served_by(calibrated, name):
    return ServedModel(
        name=name, fingerprint=name, model=calibrated.model, vocab=ByteVocab(), calibrated=calibrated
    )


async def test_a_64_MB_session_is_back_in_three_seconds(valkey, tools, capsys):
    """Its base is read within a second, and the longest log that it may have is done again within two."""
    served = served_by(untrained(HIDDEN, torch.device("cpu")), "untrained")
    size = served.state_bytes(served.choose(FULL)) / 2**20
    assert size == pytest.approx(MEGABYTES, rel=0.05)
    async with tools.engine_on(valkey, served=served) as engine:
        talk = await tools.Talk.begin(engine, adaptation=FULL)
        key, snapshotter = SessionKey(talk.caller.tenant, talk.session), engine.sessions.snapshotter
        most = snapshotter.policy.seconds
        while (lead := engine.sessions.cache.get(key).lead).base == 0 or lead.seconds < 0.5 * most:
            await talk.append(TEXT[:20])
            await snapshotter.settle()
        live = tools.finish(digest(engine.sessions.cache.get(key).state))
    stored = (await valkey.load_head(key)).base
    async with tools.engine_on(valkey, served=served, metrics=Metrics()) as engine:
        reads = []
        for _ in range(3):
            began = time.perf_counter()
            await engine.sessions.open_snapshot(key, stored.state, stored.version, talk.caller)
            reads.append(time.perf_counter() - began)
        read = min(reads)  # what else the machine is busy with is no part of it
        began = time.perf_counter()
        copy = await engine.sessions.read(key, talk.caller)
        replayed = time.perf_counter() - began - read
    with capsys.disabled():
        print(
            f"\n{size:.0f} MB session: read {read:.2f} s, replay {replayed:.2f} s"
            f" ({copy.lead.tokens} tokens, {copy.lead.records} records)"
        )
    assert tools.finish(digest(copy.state)) == live
    assert copy.lead.records > 0
    assert read <= READ_SECONDS
    assert replayed <= REPLAY_SECONDS * 1.25


async def test_an_append_costs_no_copy_of_a_large_state(store, tools, capsys, monkeypatch):
    """Full fast weights of the shipped model: appends with the state in each commit, and in the log."""
    shipped = checkpoints.load("bytes-small", "cpu")
    calibrated = tools.calibrate(shipped.model, kind="full", rate=1e-3, segment=20)
    served = served_by(calibrated, "shipped")
    monkeypatch.setattr(base, "MAX_INLINE_BYTES", 1 << 30)
    medians = {}
    for mode, most in (("inline", 1 << 30), ("log", snapshot.INLINE_BYTES)):
        monkeypatch.setattr(snapshot, "INLINE_BYTES", most)
        async with tools.engine_on(store, served=served) as engine:
            talk = await tools.Talk.begin(engine, adaptation=FULL)
            seconds = []
            for _ in range(24):
                began = time.perf_counter()
                await talk.append(TEXT[:20], scores="totals")
                seconds.append(time.perf_counter() - began)
                await asyncio.sleep(0.01)
            medians[mode] = statistics.median(seconds[4:]) * 1000
    size = served.state_bytes(served.choose(FULL)) / 2**20
    with capsys.disabled():
        print(
            f"\nfull fast weights of {size:.1f} MB: an append of 20 tokens takes"
            f" {medians['inline']:.0f} ms with its state in the commit, {medians['log']:.0f} ms with a record"
        )
    assert medians["log"] < medians["inline"]
