import json

import pytest

from rlstm_server import errors
from rlstm_server.api.bodies import PROBLEMS
from rlstm_server.api.problems import TYPE_PREFIX, document, envelope, note, respond
from rlstm_server.api.tracing import Trace

MADE = {
    errors.InvalidField: ("text", "is empty"),
    errors.TooLarge: ("items", 300, 256),
    errors.BodyTooLarge: (300, 256),
    errors.Gone: ("deleted",),
    errors.VersionMismatch: (3, 5),
}


EVERY = sorted((*errors.TABLE.values(), errors.BodyTooLarge), key=lambda kind: kind.__name__)


def make(kind):
    return kind(*MADE.get(kind, ("a sentence",)))


def test_no_error_is_answered_without_a_row():
    """Whatever stands below the root has a name of its own, or is a group of those that have."""
    groups, unseen = [], [errors.ServerError]
    while unseen:
        kind = unseen.pop()
        below = kind.__subclasses__()
        unseen += below
        if kind.__module__ == errors.__name__ and kind not in errors.TABLE.values() and not below:
            groups.append(kind)
    assert set(groups) == {errors.StartupError, errors.BodyTooLarge}
    assert {kind.status for kind in EVERY} <= set(PROBLEMS) | {405}


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_an_error_is_a_document_and_an_envelope(kind):
    """Its name, its status, whether it was applied, and when a repeat can help."""
    error = make(kind)
    native, openai = respond(error, "r1"), respond(error, "r1", "openai")
    body = json.loads(native.body)
    assert body == document(error, "r1")
    assert (body["type"], body["status"], body["request_id"]) == (
        TYPE_PREFIX + error.code,
        native.status_code,
        "r1",
    )
    assert body["applied"] in {"no", "yes", "unknown"}
    assert json.loads(openai.body) == envelope(error)
    assert envelope(error)["error"]["code"] == error.code
    repeatable = native.status_code in {429, 503, 504} or kind is errors.InFlight
    assert ("retry-after" in native.headers) == repeatable
    assert not repeatable or int(native.headers["retry-after"]) >= 1
    assert openai.headers["x-should-retry"] == ("true" if repeatable else "false")
    assert (native.status_code, openai.status_code) in {(kind.status,) * 2, (422, 400), (413, 400)}


def test_a_fact_cannot_replace_a_member():
    """The document's own members win."""
    body = document(errors.Conflict("x", status=1, type="y"), "r")
    assert (body["status"], body["type"]) == (409, TYPE_PREFIX + "conflict")


@pytest.mark.parametrize("kind", [errors.StateCorrupt, errors.InternalError])
def test_a_fault_of_ours_tells_nothing_but_its_request(kind):
    """Details are for the log; the answer is fixed."""
    body = document(kind("canary at 0x7f00"), "r")
    assert "canary" not in json.dumps(body)
    assert body["status"] == 500


def test_a_fault_is_kept_for_the_log_and_an_error_is_not():
    """Only our own faults are worth a trace."""
    trace = Trace(request_id="r")
    missing = errors.NotFound()
    note(missing, trace)
    assert (trace.error, trace.fault) == (missing, None)
    fault = errors.StateCorrupt("x")
    note(fault, trace)
    assert trace.fault is fault


@pytest.mark.parametrize(
    ("error", "applied"),
    [
        (errors.RateLimited("x", retry_after=1), "unknown"),
        (errors.Overloaded("x"), "unknown"),
        (errors.ReceiveTimeout("x"), "unknown"),
        (errors.InvalidField("text", "is empty"), "no"),
        (errors.VersionMismatch(3, 5), "no"),
        (errors.DurabilityNotReached("x"), "yes"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_refused_before_it_is_worked_on_may_be_a_repeat(error, applied):
    """With a key, and where it would change something: a repeat of what is always wrong took no effect."""
    before = error.applied
    note(error, Trace(request_id="r"))
    note(error, Trace(request_id="r", keyed=True, changes=False))
    assert error.applied == before
    note(error, Trace(request_id="r", keyed=True))
    assert error.applied == applied
