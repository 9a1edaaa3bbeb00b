"""What is checked before any work, and what tells a repeat from another request."""

import threading

import pytest

from rlstm_server.caller import Call
from rlstm_server.engine import requests
from rlstm_server.errors import InvalidText
from rlstm_server.schemas.sessions import AppendRequest
from rlstm_server.schemas.text import Passage


def test_equal_requests_have_equal_digests_and_others_do_not():
    """Every field counts, text and the same text as tokens differ, the order of fields does not matter."""
    one = requests.request_digest("create", passage=Passage(text="a"), learn=True)

    assert one == requests.request_digest("create", learn=True, passage=Passage(text="a"))
    others = [
        requests.request_digest("create", passage=Passage(text="b"), learn=True),
        requests.request_digest("create", passage=Passage(tokens=(97,)), learn=True),
        requests.request_digest("fork", passage=Passage(text="a"), learn=True),
    ]
    assert len({one, *others}) == 4


def test_equal_appends_have_equal_digests_and_others_do_not():
    """Session, text and every field count; a text that looks like ids is none."""

    def digest(session="s", **fields):
        return requests.append_digest(
            AppendRequest(**fields).by(Call(tenant="a", request_id="r", session=session))
        )

    asked = [{"text": "a"}, {"text": "b"}, {"tokens": [97]}, {"text": "[97]"}, {"text": "a", "learn": False}]
    asked += [{"text": "a", "final": True}, {"text": "a", "scores": "none"}, {"text": "a", "session": "t"}]
    found = [digest(**fields) for fields in asked]
    assert found == [digest(**fields) for fields in asked]
    assert len({*found}) == len(asked)
    with pytest.raises(InvalidText):
        digest(text="a", note="\ud800")


async def test_large_work_leaves_the_event_loop():
    """Small work runs in place, large work on another thread."""
    here = threading.get_ident()

    assert await requests.off_loop(1, threading.get_ident) == here
    assert await requests.off_loop(requests.SMALL + 1, threading.get_ident) != here
