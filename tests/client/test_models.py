"""From JSON to values and back."""

import contextlib
import json
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_client import models
from rlstm_client.models import UnexpectedShape

KINDS = [one for one in vars(models).values() if is_dataclass(one) and one is not models.Answer]
NAMES = st.sampled_from(
    sorted({f.name for c in vars(models).values() if is_dataclass(c) for f in fields(c)} - {"extra"})
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


def test_members_of_a_newer_server_are_kept() -> None:
    """What this release does not know goes to ``extra``, at every level."""
    info = models.decode(
        models.SessionInfo,
        {"id": "s", "version": 1, "position": 2, "mixture": [0.5], "totals": {"tokens": 2, "surprise": 1}},
    )

    assert info.extra == {"mixture": [0.5]}
    assert info.totals == models.SessionTotals(tokens=2, extra={"surprise": 1})


def test_a_member_that_is_missing_is_named() -> None:
    """An answer without a member that every server has is not guessed at."""
    with pytest.raises(UnexpectedShape, match="lacks position, version"):
        models.decode(models.AppendResult, {"durability": "fsync"})


@pytest.mark.parametrize("kind", KINDS)
@given(data=JSON)
def test_any_json_is_read_or_refused(kind: Any, data: Any) -> None:
    """No answer, however strange, raises anything but the error for it."""
    with contextlib.suppress(UnexpectedShape):
        assert type(models.decode(kind, data)) is kind


def test_back_to_json() -> None:
    """A value becomes the object that it was read from, without members that say nothing."""
    data = {
        "version": 3,
        "position": 9,
        "durability": "fsync",
        "totals": {"logprob": -1.0, "tokens": 0, "bytes": 1, "gain": 0.5},
        "ids": [1],
        "novel": {"x": 1},
    }
    back = json.loads(json.dumps(models.to_json(models.decode(models.AppendResult, data))))

    assert back == data | {
        "replayed": False,
        "scores_stored": True,
        "learn": True,
        "updates": 0,
        "pending": 0,
        "unit": "nats",
        "totals": data["totals"] | {"unknown": 0},
    }
