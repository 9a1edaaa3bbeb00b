import json
import math

import orjson
import pytest

from rlstm_server.api.bodies import INLINE_TOKENS, respond
from rlstm_server.schemas.wire import FACTORS, PIECE, column


def decoded(fragment):
    return json.loads(orjson.dumps(fragment))


@pytest.mark.parametrize("count", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_pieces_join_without_a_seam(count):
    """No number is lost, doubled or torn where one piece ends."""
    assert decoded(column(range(count))) == list(range(count))


def test_a_factor_multiplies_every_number():
    """Bits from nats: one over ln 2 each."""
    assert decoded(column([-math.log(2), -math.log(4)], FACTORS["bits"])) == pytest.approx([-1.0, -2.0])
    assert decoded(column([math.log(10)], FACTORS["log10"])) == pytest.approx([1.0])


async def test_large_and_small_answers_are_the_same_bytes():
    """Where an answer is encoded depends on its size; what it says does not."""
    small = await respond(lambda: {"a": [1, 2]}, tokens=1, version=7)
    large = await respond(lambda: {"a": [1, 2]}, tokens=INLINE_TOKENS + 1, version=7)
    assert small.body == large.body == b'{"a":[1,2]}'
    assert small.headers["etag"] == large.headers["etag"] == '"7"'


async def test_timings_are_milliseconds():
    """In the form of the Server-Timing header."""
    answer = await respond(dict, timings={"queue": 0.001, "compute": 0.25, "store": 0.0})
    assert answer.headers["server-timing"] == "queue;dur=1.000, compute;dur=250.000, store;dur=0.000"
