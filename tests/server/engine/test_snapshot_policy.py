"""When a session is worth a snapshot: arithmetic over what its log would cost."""

from hypothesis import given
from hypothesis import strategies as st
from rlstm_server.engine.snapshot_policy import Lead, SnapshotPolicy

from rlstm_server.store.base import Limits

POLICY = SnapshotPolicy(seconds=2.0, least_tokens=100, most_tokens=1_000, most_records=10)
operations = st.lists(st.tuples(st.integers(0, 50), st.floats(0, 1)), max_size=12)


def after(lead, done):
    for tokens, seconds in done:
        lead = lead.plus(tokens, seconds)
    return lead


def test_a_snapshot_is_due_when_the_log_would_take_long():
    """Two seconds of work, but not for a handful of tokens that a busy server took long for."""
    assert not POLICY.due(Lead())
    assert not POLICY.due(Lead(records=9, tokens=999, seconds=1.9))
    assert not POLICY.due(Lead(records=9, tokens=99, seconds=60.0))
    assert POLICY.due(Lead(records=1, tokens=100, seconds=2.0))


def test_a_long_log_is_cut_whatever_it_took():
    """Another server may be slower, and the store keeps only so many records."""
    assert POLICY.due(Lead(records=10))
    assert POLICY.due(Lead(records=1, tokens=1_000))


def test_the_default_leaves_the_store_room():
    """Snapshots are due long before the store refuses to keep more records."""
    assert SnapshotPolicy().most_records <= Limits().log_records // 2


@given(before=operations, since=operations)
def test_what_is_left_after_a_snapshot_is_what_came_after_it(before, since):
    """The lead over the new base is that of the operations since."""
    kept = after(Lead(base=7), before)
    left = after(kept, since).since(kept)
    expected = after(Lead(base=7 + len(before)), since)
    assert (left.base, left.records, left.tokens) == (expected.base, expected.records, expected.tokens)
    assert abs(left.seconds - expected.seconds) < 1e-9
