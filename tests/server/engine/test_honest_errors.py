"""Errors and answers say what became of a change, also when the store falls silent in the middle of it."""

import time

import pytest

from rlstm_server.engine.messages import Passage
from rlstm_server.errors import Gone, OutcomeUnknown, StoreFull, StoreUnavailable
from rlstm_server.store.base import Replayed
from rlstm_server.store.in_memory import MemoryStore


class Fickle(MemoryStore):
    """A store that does what it is told to a call by name: the next one meets the first of its scripts."""

    def __init__(self):
        super().__init__()
        self.scripts = {}

    async def _meet(self, name, call, *args, **options):
        scripts = self.scripts.get(name, [])
        return await scripts.pop(0)(call, *args, **options) if scripts else await call(*args, **options)

    async def commit(self, commit):
        """Apply one operation."""
        return await self._meet("commit", super().commit, commit)

    async def load_head(self, key, **options):
        """Return the newest version."""
        return await self._meet("load_head", super().load_head, key, **options)

    async def delete(self, key):
        """End the session."""
        return await self._meet("delete", super().delete, key)


async def well(call, *args, **options):
    """Nothing happens to the call."""
    return await call(*args, **options)


async def unanswered(call, *args, **options):
    """It is done, and the reply is lost."""
    await call(*args, **options)
    raise OutcomeUnknown("no answer")


async def away(call, *args, **options):
    """It is not done: nobody is there."""
    raise StoreUnavailable("connection refused")


async def full(call, *args, **options):
    """It is not done: there is no room."""
    raise StoreFull("no room")


async def test_a_commit_sent_again_expires_when_the_store_says(tools, monkeypatch):
    """The clock of the server may be wrong by hours; only the store's counts."""
    store = Fickle()
    async with tools.engine_on(store) as engine:
        talk = await tools.Talk.begin(engine)
        store.scripts = {"commit": [unanswered]}
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + 7_200.0)
        answer = await talk.append("x")
        assert answer.expires_at == (await talk.info()).expires_at


@pytest.mark.parametrize("again", [away, full], ids=lambda script: script.__name__)
async def test_a_commit_that_may_have_happened_stays_unknown_whatever_its_second_try_meets(tools, again):
    store = Fickle()
    async with tools.engine_on(store) as engine:
        talk = await tools.Talk.begin(engine)
        store.scripts = {"commit": [unanswered, again, again]}
        with pytest.raises(OutcomeUnknown) as caught:
            await talk.append("x")
        assert caught.value.applied == "unknown"
        assert (await talk.info()).version == 1


async def test_a_commit_that_may_have_happened_before_the_session_ended_is_unknown(tools):
    store = Fickle()

    async def ended(call, commit):
        await store.delete(commit.key)
        return await call(commit)

    async with tools.engine_on(store) as engine:
        talk = await tools.Talk.begin(engine)
        store.scripts = {"commit": [unanswered, ended]}
        with pytest.raises(Gone) as caught:
            await talk.append("x")
        assert caught.value.applied == "unknown"


async def test_a_replay_of_another_operation_that_leads_to_the_same_place_is_not_ones_own_commit(tools):
    """Two chunks of a text may hold the same tokens: sent from the same place, they lead to the same one."""
    store = Fickle()

    async def earlier(call, commit):
        first = commit.expects.version
        return Replayed(version=first, answer=None, summary=commit.summary, current=commit.position)

    async with tools.engine_on(store) as engine:
        talk = await tools.Talk.begin(engine)
        await talk.append("x")
        store.scripts = {"commit": [unanswered, earlier]}
        assert (await talk.append("y")).replayed


async def test_an_append_that_is_found_applied_says_so_when_the_store_then_falls_silent(tools):
    store = Fickle()
    async with tools.engine_on(store) as engine:
        talk = await tools.Talk.begin(engine)
        await talk.append("x", key="k")
        store.scripts = {"load_head": [away]}
        with pytest.raises(StoreUnavailable) as caught:
            await talk.append("x", key="k")
        assert caught.value.applied == "yes"


async def test_a_session_that_is_made_with_its_text_says_so_when_the_store_then_falls_silent(tools):
    store = Fickle()
    async with tools.engine_on(store) as engine:
        store.scripts = {"load_head": [away]}
        with pytest.raises(StoreUnavailable) as caught:
            await tools.Talk.begin(engine, first=Passage(text="x"))
        assert caught.value.applied == "yes"


@pytest.mark.parametrize(
    ("key", "ends", "applied"), [(None, well, "no"), (None, away, "unknown"), ("k", well, "unknown")]
)
async def test_a_session_whose_first_text_fails_says_what_is_left_of_it(tools, key, ends, applied):
    """Without a key it is ended, and that may fail too; with one, the same request again appends the text."""
    store = Fickle()
    async with tools.engine_on(store) as engine:
        store.scripts = {"commit": [full], "delete": [ends]}
        with pytest.raises(StoreFull) as caught:
            await tools.Talk.begin(engine, first=Passage(text="x"), key=key)
        assert caught.value.applied == applied
