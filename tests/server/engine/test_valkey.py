"""The same promises with the embedded Valkey in the place of memory."""

import asyncio

import pytest

from rlstm_server.errors import Gone, IdempotencyMismatch
from rlstm_server.schemas.sessions import Candidate, CandidatesRequest, SessionGenerate
from rlstm_server.schemas.wire import Call
from rlstm_server.store.embedded import EmbeddedValkey
from rlstm_server.store.redis_store import RedisStore


@pytest.fixture
async def valkey(tmp_path):
    server = EmbeddedValkey(tmp_path)
    await server.start()
    stores = []

    async def connect():
        store = RedisStore(server.url)
        await store.check()
        stores.append(store)
        return store

    yield connect
    for store in stores:
        await store.close()
    await server.stop()


async def probe(talk):
    request = CandidatesRequest(candidates=[Candidate(id="p", text="probe")]).by(
        Call(caller=talk.caller, session=talk.session)
    )
    return (await talk.engine.score_candidates(request)).candidates[0].logprob


async def test_a_session_moves_between_engines_bit_for_bit(valkey, tools):
    """Two engines, each with its own connection, alternate appends; a third continues with equal scores."""
    async with (
        tools.engine_on(await valkey()) as one,
        tools.engine_on(await valkey()) as two,
        tools.engine_on(await valkey()) as three,
    ):
        shared, alone = await tools.Talk.begin(one), await tools.Talk.begin(one)
        for number, text in enumerate(("once ", "upon a ", "time there ", "was")):
            there = await shared.at(two if number % 2 else one).append(text)

            assert there.durability == "fsync"
            assert there.columns == (await alone.append(text)).columns
        assert await probe(shared.at(three)) == await probe(alone)


async def test_racing_replays_deletes_and_kept_text(valkey, tools):
    """Appends race, a key is repeated and misused, a text is kept and streamed again, and delete is final."""
    async with tools.engine_on(await valkey()) as one, tools.engine_on(await valkey()) as two:
        talk = await tools.Talk.begin(one, name="n")
        first = await talk.append("hello", key="k")
        again = await talk.at(two).append("hello", key="k")
        with pytest.raises(IdempotencyMismatch):
            await talk.append("hullo", key="k")
        await asyncio.gather(*(talk.append("x") for _ in range(10)))
        keep = SessionGenerate(max_tokens=20, seed=1, commit=True).by(
            Call(caller=talk.caller, session=talk.session, key="g")
        )
        kept = [event async for event in one.generate_in_session(keep)]
        streamed = [event async for event in two.generate_in_session(keep)]
        await two.delete("acme", talk.session)
        with pytest.raises(Gone):
            await talk.append("x")

    assert (again.columns, again.replayed) == (first.columns, True)
    assert kept[:-1] == streamed[:-1]
    assert (kept[-1].position, streamed[-1].replayed) == (35, True)
