"""Memory of sessions: in their name while they live, zero afterwards, never under whoever reads it."""

import asyncio
import gc
from contextlib import aclosing, nullcontext
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlstm_model.vocab import ByteVocab
from rlstm_server.engine.slots import Slots
from rlstm_server.engine.snapshot import SessionState
from rlstm_server.errors import Gone
from rlstm_server.schemas import AdaptationRequest, GenerationSettings, SessionGenerate, SessionTotals
from rlstm_server.store.base import SessionKey

ONE, TWO = SessionKey("acme", "one"), SessionKey("acme", "two")


@pytest.fixture(scope="module")
def served(tools):
    return tools.serve(ByteVocab(), kind="subspace", hidden=12)


def state_of(served, fill=1.0):
    """A state whose every value is set."""
    choice = served.choose(AdaptationRequest(experts=1))
    adapted = replace(served.evaluator().start(), delta_KP=served.evaluator().fast_weights.zero(1))
    for tensor in adapted.tensors().values():
        tensor.fill_(fill)
    return SessionState(served=served, adapted=adapted, choice=choice, totals=SessionTotals())


def memory(state):
    """Its tensors, as windows that keep nothing but the memory."""
    return [tensor.detach() for tensor in state.adapted.tensors().values()]


def test_memory_is_zeroed_when_its_last_state_is_gone(served):
    """Values stay while a state lives, and are zero after the next wipe."""
    slots, state = Slots(), state_of(served)
    windows = memory(state)
    slots.own(ONE, state)
    assert (slots.wipe(), len(slots)) == (0, 3)
    assert all(bool((window == 1).all()) for window in windows)
    del state
    gc.collect()

    assert (slots.wipe(), len(slots)) == (3, 0)
    assert not any(bool(window.any()) for window in windows)
    slots.check()


def test_what_a_newer_state_shares_stays(served):
    """Fast weights that the next state of the session still has are not zeroed with the older one."""
    slots, older = Slots(), state_of(served)
    fresh = served.evaluator().start()
    newer = replace(older, adapted=replace(older.adapted, now=fresh.now, start=fresh.start))
    slots.own(ONE, older)
    slots.own(ONE, newer)
    del older
    gc.collect()

    assert slots.wipe() == 2
    assert bool((newer.adapted.delta_KP == 1).all())
    slots.check_owned(ONE, newer)


def test_two_sessions_never_share_memory(served):
    """A state with another session's memory is refused, and leaves no trace in the books."""
    slots, state = Slots(), state_of(served)
    slots.own(ONE, state)
    with pytest.raises(ValueError, match="share memory"):
        slots.own(TWO, state)
    with pytest.raises(ValueError, match="not in its name"):
        slots.check_owned(TWO, state)
    slots.check()


def test_check_finds_a_slot_without_a_state(served):
    """A slot that nobody holds, and that does not wait to be zeroed, is a leak."""
    slots, state = Slots(), state_of(served)
    slots.own(ONE, state)
    next(iter(slots._slots.values())).states -= 1
    with pytest.raises(ValueError, match="the books say"):
        slots.check()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(acts=st.lists(st.tuples(st.sampled_from("ncdw"), st.integers(0, 3)), max_size=30))
def test_every_slot_is_accounted_for_after_any_mix(served, acts):
    """New states, copies, drops and wipes in any order: what lives keeps its values and is in the books."""
    slots, live = Slots(), {}
    for act, name in acts:
        key = SessionKey("acme", f"s{name}")
        if act == "n":
            live[key] = state_of(served, fill=1.0 + name)
            slots.own(key, live[key])
        elif act == "c" and key in live:
            live[key] = replace(live[key])
            slots.own(key, live[key])
        elif act == "d":
            live.pop(key, None)
        else:
            slots.wipe()
        slots.check()
        for owner in live:
            slots.check_owned(owner, live[owner])
            value = 1.0 + int(owner.session_id[1:])
            assert all(bool((tensor == value).all()) for tensor in memory(live[owner]))
    live.clear()
    slots.wipe()

    assert len(slots) == 0


async def test_a_deleted_sessions_copy_is_zeroed_within_seconds(store, tools, served):
    """Whatever was learned is gone from memory soon after the session is, and no other session's is."""
    async with tools.engine_on(store, served=served) as engine:
        gone, stays = [await tools.Talk.begin(engine) for _ in range(2)]
        await asyncio.gather(gone.append("secret " * 5), stays.append("secret " * 5))
        copies = [engine.sessions.cache.get(SessionKey("acme", talk.session)) for talk in (gone, stays)]
        windows, others = (memory(copy.state) for copy in copies)
        assert all(bool(window.any()) for window in windows)
        del copies
        await engine.delete("acme", gone.session)
        for _ in range(300):
            await asyncio.sleep(0.01)
            if not any(bool(window.any()) for window in windows):
                break

        assert not any(bool(window.any()) for window in windows)
        assert all(bool(window.any()) for window in others)


async def test_memory_is_not_zeroed_under_a_job_that_reads_it(store, tools, served):
    """D8: a text that is being continued while its session is deleted is what it would have been, to its end.

    That comes within 16 tokens.
    """

    async def text(engine, talk, *, delete):
        ids = []
        request = SessionGenerate(
            caller=talk.caller, session=talk.session, settings=GenerationSettings(max_tokens=100, seed=3)
        )
        with pytest.raises(Gone) if delete else nullcontext():
            async with aclosing(engine.generate_in_session(request)) as events:
                async for event in events:
                    ids.append(getattr(event, "id", None))
                    if delete and len(ids) == 3:
                        await engine.delete("acme", talk.session)
        return ids

    async with tools.engine_on(store, served=served) as engine:
        talk = await tools.Talk.begin(engine)
        await talk.append("the text before")
        kept = await text(engine, talk, delete=False)

        cut = await text(engine, talk, delete=True)
        assert cut == kept[: len(cut)]
        assert 3 <= len(cut) <= 3 + 16
