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
    ([_wire.create_session], sessions.CreateIn),
    ([_wire.append], sessions.AppendIn),
    ([_wire.score_candidates], sessions.CandidatesIn),
    ([_wire.reset_session], sessions.ResetIn),
]
BY_TOKENS = {"tokens"}  # ids in place of a text: the client's sessions take text


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
    assert known - arguments <= BY_TOKENS


def test_generation_in_a_session() -> None:
    """A session's generation has no prompt, and what is its own besides."""
    arguments = set(inspect.signature(_wire.generation_body).parameters)
    arguments |= set(inspect.signature(_wire.generate_in_session).parameters)

    assert set(sessions.ContinueIn.model_fields) <= arguments


@pytest.mark.parametrize("kind", ["TokenEvent", "EndEvent"])
def test_every_member_of_an_event_has_a_field(kind: str) -> None:
    """Events are read without a remainder."""
    messages = pytest.importorskip("rlstm_server.engine.messages")
    counts = {"prompt_tokens": 1, "completion_tokens": 1, "seed": 1, "version": 1, "position": 1}
    sent = (
        messages.TokenEvent(choice=0, index=0, id=1, text="a", logprob=-1.0)
        if kind == "TokenEvent"
        else messages.EndEvent(choice=0, finish_reason="length", **counts)
    )
    members = generate._event_fields(sent, generate.GenerateIn())

    assert set(members) <= {f.name for f in fields(getattr(models, kind))}
