"""Keys and revisions check themselves, and the chain tells histories apart."""

import hashlib

import pytest

from rlstm_server.store.base import Revision, SessionKey

KEY = SessionKey("default", "abc")


@pytest.mark.parametrize("part", ["", "A", "a-b", "a/b", "{a}", "a" * 65, "é", "a\n"])
def test_keys_are_plain(part):
    """Nothing that could change the meaning of a stored key gets into one."""
    with pytest.raises(ValueError, match="tenant"):
        SessionKey(part, "abc")
    with pytest.raises(ValueError, match="session_id"):
        SessionKey("default", part)


def test_the_chain_is_a_running_hash():
    """The next chain is SHA-256(chain ‖ operation id ‖ body hash), from a seed that no other session has."""
    start, body = Revision.first(KEY), b"b" * 32
    after = start.after("key", body)

    assert after == Revision(1, hashlib.sha256(start.chain + b"key" + body).digest())
    others = [start.after("other", body), start.after("key", b"c" * 32), after.after("key", body)]
    assert len({revision.chain for revision in (start, after, *others)}) == 5
    keys = [SessionKey(t, i) for t, i in [("a", "b"), ("ab", "c"), ("a", "bc")]]
    assert len({Revision.first(key).chain for key in keys}) == 3


def test_revisions_refuse_what_is_none():
    """A version is not negative and a chain has 32 bytes."""
    with pytest.raises(ValueError, match="version"):
        Revision(-1, b"x" * 32)
    with pytest.raises(ValueError, match="chain"):
        Revision(0, b"x")
