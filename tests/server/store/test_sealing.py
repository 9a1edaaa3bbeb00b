"""A sealed state comes back whole, or not at all."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlstm_server.store.sealing import MAGIC, Seal, seal, unseal

from rlstm_server.errors import StateCorrupt
from rlstm_server.store.base import SessionKey

KEY = SessionKey("default", "abc")
SEAL = Seal.of(KEY, 7, fingerprint="f", adaptation_fingerprint="a", numerics="torch cpu")


@given(st.binary(max_size=300))
def test_a_payload_comes_back(payload):
    """Unsealing gives what was sealed, and whose it is."""
    assert unseal(seal(SEAL, payload), KEY, 7) == (payload, SEAL)


@given(st.data())
def test_any_damage_is_noticed(data):
    """No single changed byte, and no cut, gets through."""
    value = seal(SEAL, b"payload")
    at = data.draw(st.integers(0, len(value) - 1))
    change = data.draw(st.integers(1, 255))
    damaged = bytearray(value)
    damaged[at] ^= change

    for wrong in (bytes(damaged), value[:at], value + bytes([change])):
        with pytest.raises(StateCorrupt):
            unseal(wrong, KEY, 7)


@pytest.mark.parametrize("field", ["tenant", "session_id", "version"])
def test_a_state_of_another_session_or_version_is_refused(field):
    """A value that was stored for something else is damage, and the message says which part."""
    other = dataclasses.replace(SEAL, **{field: 8 if field == "version" else "other"})

    with pytest.raises(StateCorrupt, match=field):
        unseal(seal(other, b"p"), KEY, 7)


def test_a_header_that_lies_about_its_length_allocates_nothing():
    """A claimed header of 4 GB is refused from the twelve bytes that claim it."""
    with pytest.raises(StateCorrupt):
        unseal(MAGIC + b"\xff\xff\xff\xff" + b"x" * 100, KEY, 7)


@pytest.mark.parametrize("changes", [{"version": "7"}, {"fingerprint": 1}, {"version": True}])
def test_a_seal_with_wrong_types_is_corrupt(changes):
    """A value whose checksum is right but whose seal is not ours is refused all the same."""
    with pytest.raises(StateCorrupt):
        unseal(seal(dataclasses.replace(SEAL, **changes), b"p"), KEY, 7)
