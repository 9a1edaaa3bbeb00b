"""What is checked before any work, and what tells a repeat from another request."""

import threading

from rlstm_server.caller import Call
from rlstm_server.engine import requests
from rlstm_server.schemas.sessions import AppendRequest, CreateSession

PAIRS = (("a", 1), ("b", None))


def test_equal_requests_have_equal_digests_and_others_do_not():
    """Kind, session and every field count but how to answer; a text that looks like ids is none."""

    def digest(kind=AppendRequest, session="s", part=0, **fields):
        call = Call(tenant="a", request_id="r", session=session)
        return requests.digest(kind(**fields).by(call), part=part)

    asked = [{"text": "a"}, {"text": "b"}, {"tokens": [97]}, {"text": "[97]"}, {"text": "a", "learn": False}]
    asked += [{"text": "a", "final": True}, {"text": "a", "scores": "none"}, {"text": "a", "session": "t"}]
    asked += [{"text": "a", "kind": CreateSession}, {"text": "a", "part": 1}]
    found = [digest(**fields) for fields in asked]
    assert found == [digest(unit="bits", **fields) for fields in asked]
    assert len({*found}) == len(asked)
    one, other = (digest(CreateSession, metadata=dict(pairs)) for pairs in (PAIRS, reversed(PAIRS)))
    assert one == other


async def test_large_work_leaves_the_event_loop():
    """Small work runs in place, large work on another thread."""
    here = threading.get_ident()

    assert await requests.off_loop(1, threading.get_ident) == here
    assert await requests.off_loop(requests.SMALL + 1, threading.get_ident) != here
