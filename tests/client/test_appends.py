"""Cutting text, and adding answers up."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_client._appends import PIECE_BYTES, AppendPlan, combine, cut
from rlstm_client.errors import RequestError, UnreadableAnswerError
from rlstm_client.models import AppendResult, Totals

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
LONG_TEXTS = st.lists(st.sampled_from(["a" * 2048, "b" * 2048]), min_size=1, max_size=5).map("".join)
REFUSED = "refused"


@given(TEXTS, st.integers(4, 20))
def test_pieces_are_the_text(text: str, piece_bytes: int) -> None:
    """Joined they are the text, none is too long, and all but the last are as long as they can be."""
    pieces = cut(text, piece_bytes)

    assert "".join(pieces) == text
    assert all(len(piece.encode()) <= piece_bytes for piece in pieces)
    assert all(len((a + b[0]).encode()) > piece_bytes for a, b in pairwise(pieces))


def test_an_empty_text_is_one_piece() -> None:
    """The server says what it thinks of an empty text; the client does not swallow it."""
    assert cut("", 4) == [""]


def test_a_lone_surrogate_is_found() -> None:
    """Text that is no text is refused with its place, before a part of it is sent."""
    with pytest.raises(RequestError, match="at character 5000"):
        cut("a" * 5000 + "\ud83d", PIECE_BYTES)


def answer_of(size: int, version: int = 1, **more: Any) -> AppendResult:
    totals = Totals(
        logprob=-2.0 * size,
        static_logprob=-3.0 * size,
        tokens=size,
        bytes=2 * size,
        perplexity=math.exp(2.0 + version),
        bits_per_byte=1.0 * version,
        static_bits_per_byte=2.0,
        gain=1.0 * size,
    )
    columns: dict[str, Any] = {"ids": (version,) * size, "logprobs": (-2.0,) * size}
    answer = AppendResult(version=version, position=size, updates=1, totals=totals)
    return replace(answer, **(columns | more))


def test_answers_add_up() -> None:
    """Columns are joined, sums summed, rates weighted by bytes or tokens, and the rest is as at the end."""
    first = answer_of(1, 1, guards={"projected": 1, "frozen": 2}, weights=(0.5, 0.5))
    last = answer_of(3, 2, durability="fsync", replayed=True, guards={"projected": 3}, weights=(0.1, 0.9))
    whole = combine([first, last])
    totals = whole.totals

    assert (whole.version, whole.durability, whole.replayed, whole.updates) == (2, "fsync", True, 2)
    assert whole.ids == (1, 2, 2, 2)
    assert (whole.guards, whole.weights) == ({"projected": 4, "frozen": 2}, (0.1, 0.9))
    assert totals is not None
    assert (totals.logprob, totals.static_logprob, totals.tokens, totals.bytes) == (-8.0, -12.0, 4, 8)
    assert totals.bits_per_byte == pytest.approx((1 * 2 + 2 * 6) / 8)
    assert totals.static_bits_per_byte == pytest.approx(2.0)
    assert totals.perplexity == pytest.approx(math.exp((3 * 1 + 4 * 3) / 4))
    assert totals.gain == 4.0
    assert totals.words is None


def test_no_totals_without_all_of_them() -> None:
    """A sum of which a part is not known is not known."""
    assert combine([answer_of(1), answer_of(1, totals=None)]).totals is None


@pytest.mark.parametrize("columns", [{"logprobs": ()}, {"ids": (1,)}, {"static_logprobs": (-3.0,)}])
def test_columns_are_joined_whole_or_not_at_all(columns: dict[str, Any]) -> None:
    """A piece with a column that is missing or too short makes no answer for the text."""
    with pytest.raises(UnreadableAnswerError, match="of 5 tokens"):
        combine([answer_of(3), answer_of(2, 2, **columns)])


def keys(text: Any, **options: Any) -> list[str]:
    return [call.headers["Idempotency-Key"] for call in AppendPlan("s", text, options)]


def test_a_plan_gives_each_piece_its_own_key() -> None:
    """Every piece has another key; one that the caller chose names them all, and always the same way."""
    text = "x" * 10_000
    chosen = keys(text, idempotency_key="k")

    assert len(set(keys(text))) == len(set(chosen)) == 3
    assert keys(text, idempotency_key="k", if_match=7) == chosen
    assert keys(text[:4096], idempotency_key="k") == ["k"]


def test_derived_keys_stay_as_they_are() -> None:
    """What another release of the client sends again is a repeat."""
    text = "h\u00e9llo \U0001f642\x7f\n" * 400
    of_text = keys(text, idempotency_key="k", final=True, unit="bits")
    of_ids = keys([0, 255] * 4096, idempotency_key="k", learn=False)

    assert of_text[0] == "f60a797cdc2e0306e8ca5387c5f644ac433cb2740ad8f1c280d0653a6b51fcca"
    assert of_ids[1] == "d847faaf881027fb1a04257fc4020092fcada75d0376312aad2aefae57289611"


@given(st.lists(st.tuples(st.sampled_from(["k", "k-0", "k-1", "k-2"]), LONG_TEXTS), max_size=6))
def test_no_append_is_taken_for_a_repeat_of_another(appends: list[tuple[str, str]]) -> None:
    """Each key with each text is in the session once, and is never answered as if it were another."""
    bodies: dict[str, bytes] = {}
    told = set()
    for key, text in appends:
        new = ""
        for call in AppendPlan("s", text, {"idempotency_key": key}):
            name, body = call.headers["Idempotency-Key"], call.content or b""
            if name not in bodies:
                new += json.loads(body)["text"]
            if bodies.setdefault(name, body) != body:
                new = REFUSED  # which only ever happens to the first and only piece
        if (key, text) in told:
            assert new == ""
        elif len(text) <= PIECE_BYTES and any(k == key and len(t) <= PIECE_BYTES for k, t in told):
            assert new == REFUSED
        else:
            assert new == text
            told.add((key, text))


def test_another_way_to_append_is_another_append() -> None:
    """Options and ids have their part in the keys: a server would refuse them half way, or not know them."""
    ways: list[dict[str, Any]] = [{}, {"learn": False}, {"final": True}, {"scores": "none"}, {"note": "n"}]
    text = "1" * 5000
    made = [keys(text, idempotency_key="k", **options) for options in ways]
    made.append(keys([1] * 5000, idempotency_key="k"))

    assert len({key for plan in made for key in plan}) == 2 * len(made)


def test_a_text_with_more_pieces_than_a_server_knows_keys() -> None:
    """Its repeat would not be known as one: it has to be appended in parts."""
    assert len(keys("x" * 1024 * 4096, idempotency_key="k")) == 1024
    with pytest.raises(RequestError, match="in parts"):
        AppendPlan("s", "x" * 1024 * 4096 + "x", {"idempotency_key": "k"})


def test_a_plan_follows_the_version() -> None:
    """With If-Match each piece expects the version that the piece before it made."""
    plan = AppendPlan("s", "x" * 9000, {"if_match": 4})
    expected = []
    for version, call in enumerate(plan, 5):
        expected.append(call.headers["If-Match"])
        plan.add(answer_of(1, version))

    assert expected == ['"4"', '"5"', '"6"']


def test_ids_are_cut_by_their_number() -> None:
    """In their order, none lost; the last piece alone ends the text, and brings the note."""
    plan = AppendPlan("s1", [index % 256 for index in range(9_000)], {"final": True, "note": "n"})
    sent = [json.loads(call.content or b"") for call in plan]

    assert [token for body in sent for token in body["tokens"]] == [index % 256 for index in range(9_000)]
    assert [(len(body["tokens"]), body.get("final"), body.get("note")) for body in sent] == [
        (4096, None, None),
        (4096, None, None),
        (808, True, "n"),
    ]
    assert all("text" not in body for body in sent)
