import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlstm_server.api import long_bodies
from rlstm_server.api.bodies import InvalidJson, parse_strictly
from rlstm_server.api.long_bodies import Skeleton
from rlstm_server.errors import InvalidText

UNITS = [
    b"a", b" ", b"[", b"]", b"{", b"}", b":", b",", b'"', b"\\", b"\n", b"\x00", b"\xff", b"\xc3", b"0", b".",
    b'{"a":', b'"a":', b'"b",', b"1,", b" 17 ,", b"\n-5,", b"007,", b"1.5,", b"1e999,", b"NaN,", b"null,",
    b"true ,", b'"",', b'"\\n\xc3\xa9",', b'"\\ud800",', b"[],", "é".encode(), "🙂".encode(), b"\\n", b'\\"',
    b"\\\\", b"\\x", b"\\u00e9", b"\\ud83d\\ude00", b"\\ud83d", b"\\ude00", b"\\u12",
]  # fmt: skip
TIMES = st.sampled_from([1, 1, 1, 2, 3, 40, 2_000])
BROKEN = st.lists(st.tuples(st.sampled_from(UNITS), TIMES), max_size=8).map(
    lambda parts: b"".join(unit * times for unit, times in parts)
)
"""Anything: most of it is wrong somewhere, near or within what is long."""

TEXT = st.tuples(st.text(max_size=6), TIMES).map(lambda part: part[0] * part[1])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
ELEMENTS = st.tuples(st.lists(SCALARS | st.text(max_size=3), max_size=5), TIMES).map(lambda p: p[0] * p[1])
VALUES = st.recursive(
    TEXT | SCALARS | ELEMENTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
WRITTEN = st.tuples(VALUES, st.booleans(), st.sampled_from([None, 0, "\t"])).map(
    lambda how: json.dumps(how[0], ensure_ascii=how[1], indent=how[2]).encode("utf-8", "surrogatepass")
)


@st.composite
def damaged(draw):
    """A document in which some bytes in a row were replaced."""
    body = draw(WRITTEN)
    at = draw(st.integers(0, len(body)))
    return body[:at] + draw(BROKEN) + body[at + draw(st.integers(0, 5)) :]


def parsed(body, **sizes):
    """What comes of a body, as it is written: a value, or what is said against it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in sizes.items():
            patch.setattr(long_bodies, name, size)
        try:
            return repr(parse_strictly(body))
        except (InvalidJson, InvalidText) as error:
            return type(error), error.detail


@given(BROKEN | WRITTEN | damaged())
@example(b'{"a":"x","y","z",' + b'"x",' * 9 + b'"b":1}')
@example(b'{"' + b"x" * 99 + b'":1,"' + b"x" * 99 + b'":2}')
@example(b'["' + b"\\ud83d\\ude00" * 999 + b'"]')
@example(b"[" + b"1," * 65_536 + b"[]]")
@example(b'["' + b"a" * 2_998 + b"\\n" + b"\x80" * 3 + b'"]')
@example(b'"' + b"\\u00e9" * 40)
def test_a_body_that_is_cut_says_what_it_says_whole(body):
    """The same value, or the same error at the same line, column or byte."""
    assert parsed(body, LONG_BYTES=0, LEAST=12, PIECE=3_000) == parsed(body, LONG_BYTES=len(body))


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"text": "It was the best of times. " * 50_000}),
        json.dumps({"text": "Es wär' die béste 🙂 Zeit. " * 50_000}, ensure_ascii=False),
        json.dumps({"text": "Es wär' die béste 🙂 Zeit. " * 50_000}),
        json.dumps({"text": '"\\:[{' * 200_000}),
        json.dumps({"tokens": list(range(200_000))}),
        json.dumps(["", "a", None, True] * 100_000, indent=1),
        '["' + "\\ud800" * 200_000 + '"]',
    ],
    ids=["text", "UTF-8", "escapes", "program", "ids", "elements", "surrogates"],
)
def test_little_is_left_of_a_long_body(body):
    """Of a megabyte some kilobytes: that is all that is parsed in one call."""
    skeleton = Skeleton(body.encode())
    assert len(skeleton.written) < 8_192
    assert skeleton.whole(json.loads(skeleton.written)) == json.loads(body)
