"""Stored answers come back as they were."""

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_server.engine import answers
from rlstm_server.errors import StateCorrupt
from rlstm_server.schemas import (
    AdaptationChoice,
    AppendAnswer,
    Columns,
    SessionInfo,
    SessionTotals,
    Timings,
    Totals,
)
from rlstm_server.store.base import MAX_SUMMARY_BYTES

GUARDS = ("step_skipped", "projected", "restarted", "reset", "frozen")
NATS = st.floats(min_value=-9999, max_value=0)


CHOICE = AdaptationChoice(
    kind="subspace", num_fast_weights=8, experts=2, rate_scale=0.3, static=True, rates=(0.0, 0.003)
)


def answer_of(logprobs, static=True, guards=None):
    count = len(logprobs)
    columns = Columns(
        ids=tuple(range(count)),
        logprobs=tuple(logprobs),
        static_logprobs=tuple(logprobs) if static else None,
        ranks=(1,) * count,
        entropies=(0.5,) * count,
        starts=tuple(range(count)),
        ends=tuple(range(1, count + 1)),
        top=tuple(((3, -0.5), (1, -2.0)) for _ in range(count)),
    )
    totals = Totals(logprob=sum(logprobs), static_logprob=None, tokens=count, bytes=count, words=1, unknown=0)
    return AppendAnswer(
        version=4,
        position=count,
        durability="fsync",
        replayed=False,
        expires_at=None,
        columns=columns,
        totals=totals,
        updates=2,
        guards=guards or {},
        weights=(0.25, 0.75),
        norm_ratio=0.1,
        pending=0,
        timings=Timings(),
    )


@given(st.lists(NATS, max_size=20), st.booleans())
def test_an_append_comes_back_bit_for_bit(logprobs, static):
    """Writing and reading an answer changes no number."""
    answer = answer_of(logprobs, static, guards={"projected": 3})

    assert answers.append_answer(answers.encode(answer)) == answer


def test_the_summary_fits_and_lacks_only_the_columns():
    """However long the append, its short form fits into the store's summary."""
    answer = answer_of([-1.5] * 5000, guards=dict.fromkeys(GUARDS, 1 << 40))
    summary = answers.summarise(answer)
    short = answers.append_answer(summary)

    assert len(summary) <= MAX_SUMMARY_BYTES
    assert (short.totals, short.columns, short.version) == (answer.totals, None, 4)
    assert answers.encode(answer) == b""


INFO = SessionInfo(
    id="a",
    name=None,
    version=0,
    position=0,
    created_at=1.25,
    expires_at=2.5,
    state_bytes=10,
    adaptation=CHOICE,
    weights=(0.5, 0.5),
    norm_ratio=0.0,
    totals=SessionTotals(static_nats=None),
    pending=0,
    metadata={"k": [1, None]},
    model="small",
    fingerprint="f",
    adaptation_fingerprint="c",
)


def test_a_created_session_comes_back():
    """The description of a session survives; whose it is, its head says: it is of one model for good."""
    stored = answers.encode_session(INFO)

    assert answers.session_info(stored, INFO) == INFO
    renamed = replace(INFO, model="renamed")
    assert answers.session_info(stored, renamed) == renamed


def test_a_server_from_before_models_were_noted_can_read_what_is_stored():
    """It knows no other fields: during an update a repeat may reach either."""
    stored = json.loads(answers.encode_session(INFO))

    assert stored.keys() == {field.name for field in fields(SessionInfo)} - {
        "model",
        "fingerprint",
        "adaptation_fingerprint",
    }


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff"])
def test_what_is_no_answer_is_corrupt(data):
    """Damaged answers are named, never guessed at."""
    with pytest.raises(StateCorrupt):
        answers.append_answer(data)
    with pytest.raises(StateCorrupt):
        answers.session_info(data, INFO)
