"""Cutting text, gathering streams, and adding answers up."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_client._pieces import AppendPlan, PieceBuffer, combine, cut
from rlstm_client.errors import RequestError
from rlstm_client.models import AppendResult, Totals

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(TEXTS, st.integers(4, 20))
def test_pieces_are_the_text(text: str, piece_bytes: int) -> None:
    """Joined they are the text, none is too long, and all but the last are as long as they can be."""
    pieces = cut(text, piece_bytes)

    assert "".join(pieces) == text
    assert all(len(piece.encode()) <= piece_bytes for piece in pieces)
    assert all(len((a + b[0]).encode()) > piece_bytes for a, b in pairwise(pieces))


def test_an_empty_text_is_one_piece() -> None:
    """The server says what it thinks of an empty text; the client does not swallow it."""
    assert cut("") == [""]


def test_a_lone_surrogate_is_found() -> None:
    """Text that is no text is refused with its place, before a part of it is sent."""
    with pytest.raises(RequestError, match="at character 5000"):
        cut("a" * 5000 + "\ud83d")


@given(st.lists(TEXTS), st.integers(1, 40), st.booleans())
def test_a_gathered_stream_is_the_stream(texts: list[str], gather_bytes: int, hold_last: bool) -> None:
    """Nothing is lost or empty, however texts come; the held last piece is marked as the last."""
    buffer = PieceBuffer(gather_bytes, hold_last=hold_last)
    early = [piece for text in texts for piece in buffer.feed(text)]
    late = buffer.finish()

    assert "".join([*early, *(piece for piece, _ in late)]) == "".join(texts)
    assert all([*early, *(piece for piece, _ in late)])
    if hold_last and any(texts):
        assert [last for _, last in late] == [False] * (len(late) - 1) + [True]


def test_a_gathered_stream_waits_for_enough() -> None:
    """Short texts travel together; with 1 each travels at once."""
    slow, quick = PieceBuffer(4, hold_last=False), PieceBuffer(1, hold_last=False)

    assert [slow.feed("ab"), slow.feed("cd"), slow.feed("e")] == [[], ["abcd"], []]
    assert [quick.feed("ab"), quick.feed("c")] == [["ab"], ["c"]]


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


def test_a_plan_gives_each_piece_its_own_key() -> None:
    """Every piece has another key; one that the caller chose names them all, and always the same way."""
    text = "x" * 10_000
    own = [call.headers["Idempotency-Key"] for call in AppendPlan("s", text)]
    chosen = [call.headers["Idempotency-Key"] for call in AppendPlan("s", text, idempotency_key="k")]

    assert len(set(own)) == 3
    assert chosen == ["k", "k-1", "k-2"]


def test_a_plan_follows_the_version() -> None:
    """With If-Match each piece expects the version that the piece before it made."""
    plan = AppendPlan("s", "x" * 9000, if_match=4)
    expected = []
    for version, call in enumerate(plan, 5):
        expected.append(call.headers["If-Match"])
        plan.add(answer_of(1, version))

    assert expected == ['"4"', '"5"', '"6"']
