"""What the client sends and reads is what the server's schemas say: neither side moves alone."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from rlstm_client import _wire, models

score = pytest.importorskip("rlstm_server.api.score")
generate = pytest.importorskip("rlstm_server.api.generate")
shapes = pytest.importorskip("rlstm_server.api.shapes")
sessions = pytest.importorskip("rlstm_server.api.session_shapes")
bodies = pytest.importorskip("rlstm_server.api.session_bodies")

ANSWERS = [
    (models.ScoreResult, score.ScoreOut),
    (models.ScoredItem, score.ItemOut),
    (models.WordScore, score.WordOut),
    (models.Totals, shapes.TotalsOut),
    (models.Adaptation, shapes.AdaptationOut),
    (models.Alternatives, shapes.TopOut),
    (models.Choice, generate.ChoiceOut),
    (models.Generation, generate.ContinuationOut),
    (models.SessionInfo, sessions.SessionOut),
    (models.SessionInfo, sessions.ChangedOut),
    (models.SessionInfo, sessions.CreatedOut),
    (models.SessionTotals, sessions.SessionTotalsOut),
    (models.SessionPage, sessions.SessionsOut),
    (models.Ancestor, sessions.AncestorOut),
    (models.Snapshot, sessions.SnapshotOut),
    (models.Snapshot, sessions.TakenOut),
    (models.AppendResult, sessions.AppendOut),
    (models.Ranking, sessions.CandidatesOut),
    (models.Candidate, sessions.RankedOut),
]
# The identity of generations and new sessions stays in ``extra``; an append cannot ask for alternatives.
NOT_FIELDS = {*shapes.IdentityOut.model_fields, "top"}

NO_FIELDS = {"session_id", "idempotency_key", "if_match"}  # in the path and the headers
REQUESTS: list[tuple[list[Callable[..., Any]], Any]] = [
    ([_wire.score], score.ScoreIn),
    ([_wire.generate, _wire.generation_body], generate.GenerateIn),
    ([_wire.create_session], bodies.CreateIn),
    ([_wire.append], bodies.AppendIn),
    ([_wire.score_candidates], bodies.CandidatesIn),
    ([_wire.reset_session], bodies.ResetIn),
    ([_wire.update_session], bodies.UpdateIn),
    ([_wire.take_snapshot], bodies.SnapshotIn),
    ([_wire.restore_session], bodies.RestoreIn),
    ([_wire.fork_session], bodies.ForkIn),
]
routers = [pytest.importorskip(f"rlstm_server.api.{name}") for name in ("sessions", "snapshots", "copies")]
SESSION_ROUTES = [
    (method, route.path) for module in routers for route in module.router().routes for method in route.methods
]
ONE = "/sessions/{session_id}"
CALLS: dict[tuple[str, str], Callable[[], Any]] = {
    ("POST", "/sessions"): _wire.create_session,
    ("GET", "/sessions"): _wire.list_sessions,
    ("POST", "/sessions/import"): lambda: _wire.import_session(b"x"),
    ("GET", ONE): lambda: _wire.get_session("s1"),
    ("PATCH", ONE): lambda: _wire.update_session("s1", learning=False),
    ("DELETE", ONE): lambda: _wire.delete_session("s1"),
    ("POST", f"{ONE}/append"): lambda: _wire.append("s1", "a"),
    ("POST", f"{ONE}/score"): lambda: _wire.score_candidates("s1", ["a"]),
    ("POST", f"{ONE}/generate"): lambda: _wire.generate_in_session("s1", commit=True),
    ("POST", f"{ONE}/reset"): lambda: _wire.reset_session("s1"),
    ("POST", f"{ONE}/fork"): lambda: _wire.fork_session("s1"),
    ("POST", f"{ONE}/snapshots"): lambda: _wire.take_snapshot("s1", "n1"),
    ("GET", f"{ONE}/snapshots"): lambda: _wire.list_snapshots("s1"),
    ("DELETE", f"{ONE}/snapshots/{{snapshot}}"): lambda: _wire.drop_snapshot("s1", "n1"),
    ("POST", f"{ONE}/restore"): lambda: _wire.restore_session("s1", "n1"),
    ("GET", f"{ONE}/export"): lambda: _wire.export_session("s1"),
}


@pytest.mark.parametrize(("ours", "theirs"), ANSWERS)
def test_every_member_of_an_answer_has_a_field(ours: type[Any], theirs: type[Any]) -> None:
    """What the server documents is read into a field of the same name."""
    assert set(theirs.model_fields) - {f.name for f in fields(ours)} <= NOT_FIELDS


@pytest.mark.parametrize(("ours", "theirs"), ANSWERS)
def test_every_field_that_must_be_there_is_always_sent(ours: type[Any], theirs: type[Any]) -> None:
    """A field without default here is one that the server never leaves out."""
    needed = inspect.signature(ours).parameters.values()

    assert {p.name for p in needed if p.default is p.empty} <= {
        name for name, field in theirs.model_fields.items() if field.is_required()
    }


@pytest.mark.parametrize(("builders", "schema"), REQUESTS)
def test_every_argument_is_a_field_and_every_field_an_argument(
    builders: list[Callable[..., Any]], schema: type[Any]
) -> None:
    """The server refuses unknown fields, so an argument of another name would never work."""
    arguments = {name for build in builders for name in inspect.signature(build).parameters}
    known = set(schema.model_fields)

    assert arguments - NO_FIELDS - {"options"} <= known
    assert known <= arguments


@pytest.mark.parametrize("route", SESSION_ROUTES, ids=lambda route: f"{route[0]} {route[1]}")
def test_every_session_route_has_a_call(route: tuple[str, str]) -> None:
    """No route that this client cannot reach, and no call without a route."""
    method, template = route
    builds = CALLS.get(route)

    assert builds is not None, "a route without a call"
    call = builds()
    assert (call.method, call.path) == (
        method,
        template.replace("{session_id}", "s1").replace("{snapshot}", "n1"),
    )
    assert call.keyed is (method in {"POST", "PATCH"} and not template.endswith("/score"))


def test_every_call_has_a_route() -> None:
    """What the table names is what the server has."""
    assert set(CALLS) == set(SESSION_ROUTES)


def test_a_key_may_be_as_long_here_as_there() -> None:
    """Neither side refuses a key that the other takes."""
    dependencies = pytest.importorskip("rlstm_server.api.dependencies")

    assert dependencies.KEY.pattern == _wire._KEY.pattern


def test_generation_in_a_session() -> None:
    """A session's generation has no prompt, and what is its own besides."""
    arguments = set(inspect.signature(_wire.generation_body).parameters)
    arguments |= set(inspect.signature(_wire.generate_in_session).parameters)

    assert set(bodies.ContinueIn.model_fields) <= arguments


@pytest.mark.parametrize("kind", ["TokenEvent", "EndEvent"])
def test_every_member_of_an_event_has_a_field(kind: str) -> None:
    """Events are read without a remainder."""
    messages = pytest.importorskip("rlstm_server.schemas")
    counts = {"prompt_tokens": 1, "completion_tokens": 1, "seed": 1, "version": 1, "position": 1}
    sent = (
        messages.TokenEvent(choice=0, index=0, id=1, text="a", logprob=-1.0)
        if kind == "TokenEvent"
        else messages.EndEvent(choice=0, finish_reason="length", **counts)
    )
    members = generate._event_fields(sent, generate.GenerateIn())

    assert set(members) <= {f.name for f in fields(getattr(models, kind))}
