"""Nothing of another session changes one bit of yours: its text, its load, its faults."""

import asyncio
import math
import random
from dataclasses import replace

import pytest

from rlstm_model.vocab import ByteVocab
from rlstm_server.errors import StateCorrupt
from rlstm_server.schemas.text import AdaptationRequest
from rlstm_server.store.base import SessionKey
from rlstm_server.store.memory_store import MemoryStore

TEXT = "It was the best of times, it was the worst of times; it was the age of wisdom."


async def test_nan_in_one_session_touches_no_other(store, tools):
    """A poisoned copy is refused, not stored, and forgotten; the others, and then itself, score as ever."""
    async with tools.engine_on(store) as engine:
        talks = [await tools.Talk.begin(engine) for _ in range(8)]
        for talk in talks:
            await talk.append(TEXT)
        expected = await talks[1].probe()
        key = SessionKey("acme", talks[0].session)
        copy = engine.sessions.cache.get(key)
        states_R2U = copy.state.adapted.now.states_R2U.copy()
        states_R2U[0, 0] = math.nan
        bad = copy.state.adapted.now._replace(states_R2U=states_R2U)
        poisoned = replace(copy.state, adapted=replace(copy.state.adapted, now=bad))
        engine.sessions.cache.put(replace(copy, state=poisoned))
        outcomes = await asyncio.gather(*(talk.append("more") for talk in talks), return_exceptions=True)

        assert isinstance(outcomes[0], StateCorrupt)
        assert len({outcome.columns.logprobs for outcome in outcomes[1:]}) == 1
        assert (await talks[0].append("more")).columns.logprobs == outcomes[1].columns.logprobs
        assert await talks[0].probe() == await talks[1].probe() != expected


async def test_each_session_learns_its_own_secret_only(engine, tools):
    """Sessions that each learned a word give it the better score than any other session does."""
    secrets = [f"<{letter * 4}>" for letter in "QXZJKV"]
    talks = [await tools.Talk.begin(engine) for _ in secrets]
    await asyncio.gather(*(talk.append(s * 12) for talk, s in zip(talks, secrets, strict=True)))
    table = [[await talk.probe(secret) for secret in secrets] for talk in talks]

    assert all(
        max(range(len(talks)), key=lambda row: table[row][column]) == column for column in range(len(talks))
    )


# ---- those who do harm ------------------------------------------------------------------------------------


async def columns_of(tools, served, store, others):
    """What three sessions read while `others` go on: their scores, answer by answer."""
    async with tools.engine_on(store, served=served) as engine:
        talks = [await tools.Talk.begin(engine) for _ in range(3)]
        harm = asyncio.ensure_future(others(engine))

        async def read(talk):
            return [(await talk.append(piece)).columns for piece in tools.pieces_of(TEXT, 5)]

        columns = await asyncio.gather(*(read(talk) for talk in talks))
        outcomes = await harm
        return columns, outcomes


async def nobody(engine):
    """No others."""
    return []


def least_likely(served, length):
    """A text that the model, learning as it reads, always finds the least likely."""
    evaluator, ids = served.evaluator(), []
    state = evaluator.start()
    while len(ids) < length:
        reader = evaluator.reader(state)
        ids.append(int(reader.next(reader.cursor).log_probs_V.argmin()))
        (observed,) = evaluator.observe(state, ids[-1:])
        state = observed.state
    return ids


@pytest.mark.parametrize("rate", [0.05, 100.0])
async def test_hostile_streams_change_no_other(tools, rate):
    """Random bytes, one byte, two domains in turn, and text made to hurt, at sane and at absurd rates."""
    served = tools.serve(ByteVocab(), kind="subspace", hidden=12, rate=rate)
    draw = random.Random(1)
    streams = [
        [draw.randrange(256) for _ in range(120)],
        [0] * 120,
        list((b"the cat sat. " + bytes(range(128, 148))) * 4),
        least_likely(served, 120),
    ]

    async def hostile(engine):
        choice = AdaptationRequest(rate_scale=10.0)
        talks = [await tools.Talk.begin(engine, "enemy", adaptation=choice) for _ in streams]
        return await asyncio.gather(
            *(talk.append(tokens=ids) for talk, ids in zip(talks, streams, strict=True))
        )

    alone, _ = await columns_of(tools, served, MemoryStore(), nobody)
    beside, answers = await columns_of(tools, served, MemoryStore(), hostile)

    assert beside == alone
    assert all(math.isfinite(answer.totals.logprob) for answer in answers)
