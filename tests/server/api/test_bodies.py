import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_server.api.bodies import MAX_PARTS, parse_strictly
from rlstm_server.errors import InvalidJson, InvalidText

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_what_json_can_say_comes_back(value):
    """Strictness loses nothing: any value within the depth is parsed to itself."""
    assert parse_strictly(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[1,]", b"{'a':1}", b"nul", b"{}{}", b"\xef\xbb\xbf{}", b'"\x01"',
        b"NaN", b"[Infinity]", b"-Infinity", b"1" * 5000,
        b'{"a":1,"a":1}', b'[{"a":{"b":1,"b":2}}]', b"\xff", b'"\xed\xa0\xbd"', '{"a":1}'.encode("utf-16"),
    ],
)  # fmt: skip
def test_what_is_not_strict_json_is_refused(body):
    """Constants that are no numbers, repeated keys, bytes that are not UTF-8."""
    with pytest.raises(InvalidJson):
        parse_strictly(body)


@pytest.mark.parametrize(
    "body", [rb'"\ud83d"', rb'{"\udc00":1}', rb'[["a",{"b":"x\ud800y"}]]', rb'"\udc00\ud83d"']
)
def test_a_lone_surrogate_is_refused_wherever_it_stands(body):
    """In values and in keys; a pair is a character."""
    with pytest.raises(InvalidText):
        parse_strictly(body)
    assert parse_strictly(rb'"\ud83d\ude00"') == "😀"


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_a_body_does_not_nest_without_end(opening):
    """A hundred thousand levels are refused, without a crash."""
    closing = b"]" if opening == b"[" else b"}"
    parse_strictly(opening * 50 + b"1" + closing * 50)
    with pytest.raises(InvalidJson):
        parse_strictly(opening * 60_000 + b"1" + closing * 60_000)


@pytest.mark.parametrize(
    "body",
    [
        lambda parts: b"[" + b",".join([b"[]"] * (parts - 1)) + b"]",
        lambda parts: b"[" + b",".join([b"{}"] * (parts - 1)) + b"]",
        lambda parts: b"[" + b",".join([b'{"a":1}'] * ((parts - 1) // 2)) + b",[]" * ((parts - 1) % 2) + b"]",
    ],
    ids=["lists", "objects", "fields"],
)
def test_a_body_has_so_many_parts(body):
    """Lists, objects and fields, whichever they are; one more is refused before it is made."""
    parse_strictly(body(MAX_PARTS))
    with pytest.raises(InvalidJson, match="65,536"):
        parse_strictly(body(MAX_PARTS + 1))


@pytest.mark.parametrize("text", [":", "{", "[", '"[', "\\", '\\":', "a:\n"])
def test_what_stands_in_a_string_is_no_part(text):
    """However much of it there is: a text may hold a program."""
    written = text * MAX_PARTS
    assert parse_strictly(json.dumps({"text": written, "list": [1]}).encode()) == {
        "text": written,
        "list": [1],
    }


@pytest.mark.parametrize(
    "body", [b"[" * 2**20, b'"' * (2**20 + 1), b"[:" + b'\\"' * 2**19, b"::" + b"1," * 2**19]
)
def test_counting_takes_one_look_at_each_byte(body):
    """Also where nothing is as it should be: this would take minutes otherwise."""
    with pytest.raises(InvalidJson):
        parse_strictly(b":" * MAX_PARTS + body)


@given(st.binary(max_size=40))
def test_any_bytes_are_parsed_or_refused_and_never_quoted(data):
    """No other exception, and no part of a longer body in the message."""
    with suppress(InvalidJson, InvalidText):
        parse_strictly(data)
    with pytest.raises((InvalidJson, InvalidText)) as refused:
        parse_strictly(b'"canary' + data + b"\0")
    assert "canary" not in refused.value.detail
