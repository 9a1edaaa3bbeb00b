"""From JSON to values and back."""

import contextlib
import json
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_client import _read, models
from rlstm_client.errors import UnreadableAnswerError

READERS = [
    _read.score_result,
    _read.generation,
    _read.session_info,
    _read.session_page,
    _read.append_result,
    _read.ranking,
    _read.health,
    _read.server_info,
    _read.token_event,
    _read.end_event,
]
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


def test_a_whole_score() -> None:
    """Nested members become values, arrays tuples, and null is what is not there."""
    result = _read.score_result(
        {
            "model": "m",
            "adaptation_fingerprint": None,
            "unit": "bits",
            "items": [
                {
                    "id": "a",
                    "first_token": "bos",
                    "ids": [1, 2],
                    "bytes": [None, [195]],
                    "top": {"ids": [[1], [2]], "logprobs": [[-1.0], [-2.0]]},
                    "words": [{"start": 0, "end": 2, "tokens": 2, "logprob": -3.0}],
                    "totals": {"logprob": -3.0, "tokens": 2, "bytes": 2, "perplexity": None},
                }
            ],
        }
    )
    item = result.items[0]

    assert (result.model, result.unit, result.adaptation_fingerprint) == ("m", "bits", None)
    assert (item.ids, item.bytes) == ((1, 2), (None, [195]))
    assert item.totals == models.Totals(logprob=-3.0, tokens=2, bytes=2)
    assert item.words == (models.WordScore(start=0, end=2, tokens=2, logprob=-3.0),)
    assert item.top is not None
    assert item.top.ids == ([1], [2])


def test_how_a_session_learns() -> None:
    """Kind, size and experts are values, and there is one weight an expert."""
    asked = {"kind": "subspace", "num_fast_weights": 9, "experts": 2, "rate_scale": 0.5, "static": True}
    info = _read.session_info(
        {
            "id": "s",
            "version": 1,
            "position": 2,
            "adaptation": {**asked, "rates": [0, 0.1]},
            "weights": [0.4, 0.6],
            "norm_ratio": 0.1,
        }
    )

    assert info.adaptation == models.Adaptation(**asked, rates=(0, 0.1))
    assert (info.weights, info.norm_ratio) == ((0.4, 0.6), 0.1)


def test_members_of_a_newer_server_are_kept() -> None:
    """What this release does not know goes to ``extra``, at every level."""
    info = _read.session_info(
        {"id": "s", "version": 1, "position": 2, "mixture": [0.5], "totals": {"tokens": 2, "surprise": 1}}
    )

    assert info.extra == {"mixture": [0.5]}
    assert info.totals == models.SessionTotals(tokens=2, extra={"surprise": 1})


def test_a_member_that_is_missing_is_named() -> None:
    """An answer without a member that every server has is not guessed at."""
    with pytest.raises(UnreadableAnswerError, match="lacks position, version"):
        _read.append_result({"durability": "fsync"})


@pytest.mark.parametrize("reader", READERS)
@given(data=JSON)
def test_any_json_is_read_or_refused(reader: Any, data: Any) -> None:
    """No answer, however strange, raises anything but the error for it."""
    with contextlib.suppress(UnreadableAnswerError):
        assert type(reader(data)).__module__ == models.__name__


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
    back = json.loads(json.dumps(_read.to_json(_read.append_result(data))))

    assert back == data | {
        "replayed": False,
        "learn": True,
        "updates": 0,
        "pending": 0,
        "unit": "nats",
        "totals": data["totals"] | {"unknown": 0},
    }
