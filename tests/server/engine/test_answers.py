"""Stored answers come back as they were."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_server.engine import answers
from rlstm_server.errors import StateCorrupt
from rlstm_server.schemas.sessions import AppendAnswer, SessionInfo, SessionTotals
from rlstm_server.schemas.text import AdaptationChoice, Columns, Totals
from rlstm_server.store.base import MAX_SUMMARY_BYTES

GUARDS = ("step_skipped", "projected", "restarted", "reset", "frozen")
NATS = st.floats(min_value=-9999, max_value=0, width=32) | st.floats(min_value=-9999, max_value=0)
IDS = st.integers(0, 255) | st.integers(0, 1 << 40)


CHOICE = AdaptationChoice(
    kind="subspace",
    num_fast_weights=8,
    experts=2,
    rate_scale=0.3,
    static=True,
    adapt="weights",
    rates=(0.0, 0.003),
)


def answer_of(logprobs, ids=None, static=True, guards=None, start=0):
    count = len(logprobs)
    columns = Columns(
        ids=tuple(range(count) if ids is None else ids),
        logprobs=tuple(logprobs),
        static_logprobs=tuple(logprobs) if static else None,
        ranks=tuple(range(1, count + 1)),
        entropies=(0.1,) * count,
        starts=tuple(range(start, start + 2 * count, 2)),
        ends=tuple(range(start + 3, start + 3 + 2 * count, 2)),
    )
    totals = Totals.of(columns, bytes=count, words=1, unknown=0)
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
    )


@given(st.lists(st.tuples(NATS, IDS), max_size=20), st.booleans(), st.integers(0, 1 << 50))
def test_an_append_comes_back_bit_for_bit(tokens, static, start):
    """Writing and reading an answer changes no number, whatever type it takes to hold it."""
    logprobs, ids = [nats for nats, _ in tokens], [token for _, token in tokens]
    answer = answer_of(logprobs, ids, static, guards={"projected": 3}, start=start)

    assert answers.read_append(*answers.store_append(answer)) == answer


def test_without_its_details_an_answer_says_so():
    """However long the append, its summary fits into the store, and lacks only the columns."""
    answer = answer_of([-1.5] * 5000, guards=dict.fromkeys(GUARDS, 1 << 40))
    summary, details = answers.store_append(answer)

    assert len(summary) <= MAX_SUMMARY_BYTES
    assert len(details) < 5000 * 8
    assert answers.read_append(summary, None) == replace(answer, columns=None, scores_stored=False)


def test_an_answer_without_scores_is_whole():
    """Nothing is missing where nothing was asked for."""
    answer = replace(answer_of([]), columns=None, totals=None)
    summary, details = answers.store_append(answer)

    assert details == b""
    assert answers.read_append(summary, details) == answer


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


def test_a_session_comes_back():
    """The description of a session survives; of a changed one the metadata are the details."""
    summary, details = answers.store_session(INFO)

    assert answers.read_session(answers.write_session(INFO)) == INFO
    assert replace(answers.read_session(summary), metadata=answers.parse(details)) == INFO


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff"])
def test_what_is_no_answer_is_corrupt(data):
    """Damaged answers are named, never guessed at."""
    with pytest.raises(StateCorrupt):
        answers.read_append(data, b"")
    with pytest.raises(StateCorrupt):
        answers.read_session(data)


@pytest.mark.parametrize("details", [b"x", b"x" * 100])
def test_details_that_are_none_are_corrupt(details):
    """So are columns that cannot be unpacked."""
    summary, _ = answers.store_append(answer_of([-1.0]))
    with pytest.raises(StateCorrupt):
        answers.read_append(summary, details)
