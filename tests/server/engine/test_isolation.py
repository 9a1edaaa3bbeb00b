"""Nothing of another session changes one bit of yours: its text, its load, its faults."""

import asyncio
from dataclasses import replace

from rlstm_model.state import State
from rlstm_server.errors import StateCorrupt
from rlstm_server.metrics import Metrics
from rlstm_server.store.base import SessionKey

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
        h, c = copy.state.adapted.now.state
        h = h.clone()
        h[:, 0] = float("nan")
        bad = copy.state.adapted.now._replace(state=State(h, c))
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


async def test_oracle_i_sessions_at_once_equal_the_same_alone(engine, tools):
    """64 sessions that read different texts at the same time get the scores each would get alone."""
    texts = [TEXT[number % 50 :][:12] + str(number) for number in range(64)]

    async def read(text):
        talk = await tools.Talk.begin(engine)
        answers = [await talk.append(piece) for piece in tools.pieces_of(text, len(text))]
        return [value for answer in answers for value in answer.columns.logprobs]

    together = await asyncio.gather(*(read(text) for text in texts))
    alone = [await read(text) for text in texts]

    assert together == alone


async def test_two_engines_on_one_store_equal_one(store, tools):
    """Alternating appends through two engines score like the same appends through one."""
    metrics = Metrics()
    async with tools.engine_on(store) as one, tools.engine_on(store, metrics=metrics) as two:
        shared, own = await tools.Talk.begin(one), await tools.Talk.begin(one)
        for number, piece in enumerate(tools.pieces_of(TEXT, 1)):
            there = await shared.at(two if number % 2 else one).append(piece)
            here = await own.append(piece)

            assert there.columns == here.columns

        assert tools.value(metrics, "commit_conflicts_total", outcome="redone") > 0
