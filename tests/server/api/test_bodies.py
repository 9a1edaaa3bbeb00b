import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_server.api.bodies import MAX_PARTS, parse_strictly
from rlstm_server.errors import InvalidJson, InvalidText


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[1,]", b"{}{}", b"\xef\xbb\xbf{}", b'"\x01"', b"[Infinity]", b"-Infinity",
        b'[{"a":{"b":1,"b":2}}]', b'"\xed\xa0\xbd"', '{"a":1}'.encode("utf-16"),
        b"[" * 60_000 + b"]" * 60_000,
    ],
)  # fmt: skip
def test_what_is_not_strict_json_is_refused(body):
    """Constants that are no numbers, repeated keys, bytes that are not UTF-8, too many levels."""
    with pytest.raises(InvalidJson):
        parse_strictly(body)


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
