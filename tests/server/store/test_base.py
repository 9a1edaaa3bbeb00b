"""Requests check themselves, and the chain tells histories apart."""

import hashlib

import pytest

from rlstm_server.store.base import MAX_STATE_BYTES, Position, SessionKey, new_session_id

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
    """The next chain is SHA-256(chain ‖ operation id ‖ body hash), from a seed that no other session has."""
    start, body = Position.first(KEY), b"b" * 32
    after = start.after("key", body)

    assert after == Position(1, hashlib.sha256(start.chain + b"key" + body).digest())
    others = [start.after("other", body), start.after("key", b"c" * 32), after.after("key", body)]
    assert len({position.chain for position in (start, after, *others)}) == 5
    keys = [SessionKey(t, i) for t, i in [("a", "b"), ("ab", "c"), ("a", "bc")]]
    assert len({Position.first(key).chain for key in keys}) == 3


CREATION, COMMIT = ("creation",), ("commit",)
REFUSED = [
    (CREATION + COMMIT, "operation_id", ""),
    (CREATION + COMMIT, "operation_id", "é" * 128),
    (CREATION + COMMIT, "body_hash", b"short"),
    (CREATION + COMMIT, "info", b"x" * (1 << 20 | 1)),
    (CREATION + COMMIT, "state", b""),
    (CREATION + COMMIT, "state", b"x" * (MAX_STATE_BYTES + 1)),
    (CREATION + COMMIT, "ttl_ms", 0),
    (CREATION + COMMIT, "ttl_ms", 10**15),
    (COMMIT, "if_match", -1),
    (COMMIT, "summary", b"x" * 4097),
    (CREATION, "name", ""),
    (CREATION, "name", "x" * 256),
    (CREATION, "answer", b"x" * 65_537),
]


@pytest.mark.parametrize(("kinds", "field", "value"), REFUSED)
def test_requests_refuse_what_cannot_be_stored(build, kinds, field, value):
    """A creation or commit with a field out of bounds is never made; the error names the field."""
    for kind in kinds:
        position = () if kind == "creation" else (KEY, Position.first(KEY))
        with pytest.raises(ValueError, match=field):
            getattr(build, kind)(*position, **{field: value})
    assert build.creation(state=b"x" * MAX_STATE_BYTES)


def test_positions_refuse_what_is_none():
    """A version is not negative and a chain has 32 bytes."""
    with pytest.raises(ValueError, match="version"):
        Position(-1, b"x" * 32)
    with pytest.raises(ValueError, match="chain"):
        Position(0, b"x")
