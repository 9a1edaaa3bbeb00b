"""What is checked before any work, and what tells a repeat from another request."""

import threading

import pytest

from rlstm_server.engine import requests
from rlstm_server.errors import InvalidText, NotFound, TooLarge
from rlstm_server.schemas.generation import GenerationSettings
from rlstm_server.schemas.sessions import AppendRequest
from rlstm_server.schemas.text import EngineLimits, Passage
from rlstm_server.schemas.wire import Call

LIMITS = EngineLimits()


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
        digest(text="\ud800")


def test_a_lone_surrogate_anywhere_is_refused():
    """Metadata is text too."""
    with pytest.raises(InvalidText):
        requests.request_digest("create", metadata={"a": ["\ud800"]})


async def test_large_work_leaves_the_event_loop():
    """Small work runs in place, large work on another thread."""
    here = threading.get_ident()

    assert await requests.off_loop(1, threading.get_ident) == here
    assert await requests.off_loop(requests.SMALL + 1, threading.get_ident) != here


@pytest.mark.parametrize(("more", "choices"), [(1, 1), (0, 2)])
def test_what_is_written_is_bounded(more, choices):
    """Tokens of all choices together."""
    settings = GenerationSettings(max_tokens=LIMITS.max_tokens + more, choices=choices)
    with pytest.raises(TooLarge):
        requests.check_generation(settings, LIMITS)


@pytest.mark.parametrize(
    ("tenant", "session"), [("acme", "x/y"), ("acme", ""), ("", "a"), ("acme", "a" * 65)]
)
def test_what_cannot_be_an_id_is_not_found(tenant, session):
    """An id that the server cannot have made is an unknown session."""
    with pytest.raises(NotFound):
        requests.session_key(tenant, session)
