"""Sixty-four sessions at once on a real server: right, counted, and in nobody's way."""

import asyncio
import random

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rlstm_client import AsyncClient

SESSIONS = 64
APPENDS = 3


def samples(exposition):
    """Counters by name and labels, from what `/metrics` says."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
    }


def count(metrics, name, **labels):
    """One sample."""
    return metrics[name, frozenset(labels.items())]


async def read_all(client, texts):
    """A session for each list of texts, appended to in turn; gives the answers of each."""

    async def one(pieces):
        session = await client.sessions.create()
        return [await session.append(piece) for piece in pieces]

    return await asyncio.gather(*(one(pieces) for pieces in texts))


async def test_sixty_four_sessions_at_once(start):
    """Each gets the scores it gets alone, nothing is lost, and `/metrics` counts exactly."""
    dice = random.Random(5)
    texts = [
        ["".join(dice.choices("the quick brown fox\n", k=dice.randint(1, 60))) for _ in range(APPENDS)]
        for _ in range(SESSIONS)
    ]
    with start() as server:
        async with AsyncClient(server.url) as client:
            together = await read_all(client, texts)
            metrics = samples(await client.metrics())
            some = dice.sample(range(SESSIONS), 8)
            alone = [(await read_all(client, [texts[index]]))[0] for index in some]
    answers = [answer for session in together for answer in session]

    assert [session[-1].position for session in together] == [len("".join(pieces)) for pieces in texts]
    for index, expected in zip(some, alone, strict=True):
        for found, wanted in zip(together[index], expected, strict=True):
            assert found.logprobs == pytest.approx(wanted.logprobs, abs=1e-5)
    append = "POST /sessions/{session_id}/append"
    assert count(metrics, "rlstm_requests_total", endpoint=append, outcome="ok") == len(answers)
    assert count(metrics, "rlstm_requests_total", endpoint="POST /sessions", outcome="ok") == SESSIONS
    tokens = sum(len(answer.ids) for answer in answers)
    assert (
        count(metrics, "rlstm_tokens_total", kind="scored")
        == tokens
        == sum(len("".join(pieces)) for pieces in texts)
    )
    assert count(metrics, "rlstm_adapt_updates_total", outcome="applied") == sum(
        answer.updates for answer in answers
    )
    for weights, name in (("adapted", "logprob"), ("static", "static_logprob")):
        loss = -sum(getattr(answer.totals, name) for answer in answers)
        assert count(metrics, "rlstm_loss_tokens_total", part=weights) == tokens
        assert count(metrics, "rlstm_loss_nats_total", part=weights) == pytest.approx(loss, rel=1e-9)
