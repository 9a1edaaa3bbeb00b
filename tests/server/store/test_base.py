"""Requests check themselves, and the chain tells histories apart."""

import hashlib

import pytest

from rlstm_server.store.base import (
    MAX_INLINE_BYTES,
    MAX_RECORD_BYTES,
    Position,
    SessionKey,
    SnapshotRef,
    first_position,
    new_generation,
    new_session_id,
    next_position,
)

KEY = SessionKey("default", "abc")


@pytest.mark.parametrize("part", ["", "A", "a-b", "a/b", "{a}", "a" * 65, "é", "a\n"])
def test_keys_are_plain(part):
    """Nothing that could change the meaning of a stored key gets into one."""
    with pytest.raises(ValueError, match="tenant"):
        SessionKey(part, "abc")
    with pytest.raises(ValueError, match="session_id"):
        SessionKey("default", part)


def test_session_ids_are_random_and_plain():
    """An id has 128 bits and may be part of a key."""
    ids = {new_session_id() for _ in range(100)}

    assert len(ids) == 100
    assert all(len(SessionKey("t", session_id).session_id) == 32 for session_id in ids)


def test_the_chain_is_a_running_hash():
    """The next chain is SHA-256(chain ‖ record), from a seed that no other session has."""
    start = first_position(KEY)
    after = next_position(start, b"record")

    assert after == Position(1, hashlib.sha256(start.chain + b"record").digest())
    assert next_position(start, b"other").chain != after.chain
    assert (
        len({first_position(SessionKey(t, i)).chain for t, i in [("a", "b"), ("ab", "c"), ("a", "bc")]}) == 3
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("operation_id", ""),
        ("operation_id", "é" * 128),
        ("body_hash", b"short"),
        ("info", b"x" * (1 << 20 | 1)),
        ("state", b""),
        ("ttl_ms", 0),
        ("ttl_ms", 10**15),
    ],
)
def test_requests_refuse_what_cannot_be_stored(build, field, value):
    """A creation or commit with a field out of bounds is never made; the error names the field."""
    with pytest.raises(ValueError, match=field):
        build.creation(**{field: value})
    with pytest.raises(ValueError, match=field):
        build.commit(KEY, first_position(KEY), **{field: value})


def test_a_state_in_one_piece_has_a_limit(build):
    """Larger ones go in chunks; a log commit brings none at all, a creation always one."""
    assert build.creation(state=b"x" * MAX_INLINE_BYTES)
    assert build.commit(KEY, first_position(KEY), state=None).state is None
    with pytest.raises(ValueError, match="snapshot"):
        build.creation(state=b"x" * (MAX_INLINE_BYTES + 1))


def test_a_record_has_a_limit(build):
    """Whatever goes wrong elsewhere, no log grows by more at once."""
    assert build.commit(KEY, first_position(KEY), record=b"x" * MAX_RECORD_BYTES)
    with pytest.raises(ValueError, match="record"):
        build.commit(KEY, first_position(KEY), record=b"x" * (MAX_RECORD_BYTES + 1))


@pytest.mark.parametrize("generation", ["", "A", "a:1", "a" * 33, "a-b", "a\n", "é"])
def test_generations_are_plain(generation):
    """Nothing that could change the meaning of a stored key, or of what is stored in one, gets into one."""
    with pytest.raises(ValueError, match="generation"):
        SnapshotRef(generation=generation, size=1)
    with pytest.raises(ValueError, match="size"):
        SnapshotRef(generation=new_generation(), size=0)


@pytest.mark.parametrize(("field", "value"), [("if_match", -1), ("summary", b"x" * 4097)])
def test_commits_refuse_what_cannot_be_stored(build, field, value):
    """So do the fields that only a commit has."""
    with pytest.raises(ValueError, match=field):
        build.commit(KEY, first_position(KEY), **{field: value})


@pytest.mark.parametrize(("field", "value"), [("name", ""), ("name", "x" * 256), ("answer", b"x" * 65_537)])
def test_creations_refuse_what_cannot_be_stored(build, field, value):
    """So do the fields that only a creation has."""
    with pytest.raises(ValueError, match=field):
        build.creation(**{field: value})


def test_positions_refuse_what_is_none():
    """A version is not negative and a chain has 32 bytes."""
    with pytest.raises(ValueError, match="version"):
        Position(-1, b"x" * 32)
    with pytest.raises(ValueError, match="chain"):
        Position(0, b"x")
