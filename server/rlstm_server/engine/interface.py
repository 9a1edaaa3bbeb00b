"""What the HTTP layer may ask of the engine."""

from collections.abc import AsyncGenerator
from typing import Protocol

from rlstm_model.vocab import Vocab
from rlstm_server.engine.messages import (
    AppendAnswer,
    AppendRequest,
    CandidatesAnswer,
    CandidatesRequest,
    ChangeAnswer,
    CreatedSession,
    CreateSession,
    EngineIdentity,
    EngineLimits,
    GenerateRequest,
    GenerationEvent,
    ResetRequest,
    ScoreAnswer,
    ScoreRequest,
    SessionGenerate,
    SessionInfo,
    SessionPage,
)


class EngineInterface(Protocol):
    """The engine as its callers see it; :class:`rlstm_server.engine.engine.Engine` is the one there is.

    Every method raises errors of :mod:`rlstm_server.errors` and nothing else. Cancelling the awaiting task
    cancels the work, except a commit that is on its way. An iterator of events must be closed
    (``aclosing``) when it is left early.
    """

    @property
    def identity(self) -> EngineIdentity:
        """What the numbers depend on."""

    @property
    def limits(self) -> EngineLimits:
        """The limits in force."""

    @property
    def vocab(self) -> Vocab:
        """The vocabulary of the loaded model."""

    async def score(self, request: ScoreRequest) -> ScoreAnswer:
        """Log-probabilities of texts.

        Without adaptation they are those of :func:`rlstm_model.scoring.score` to 1e-5 nats a token: texts
        share a product, where that function has each text to itself.
        """

    def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Continuations of a prompt, token by token."""

    async def create_session(self, request: CreateSession) -> CreatedSession:
        """Make a session. Raises SessionExists, StoreFull."""

    async def list_sessions(self, tenant: str, limit: int, cursor: str | None) -> SessionPage:
        """List the tenant's sessions, a page at a time."""

    async def session_info(self, tenant: str, session: str) -> SessionInfo:
        """One session. Raises NotFound, Gone."""

    async def append(self, request: AppendRequest) -> AppendAnswer:
        """Score, then learn. Raises NotFound, Gone, VersionMoved, Conflict, IdempotencyMismatch, InFlight."""

    async def score_candidates(self, request: CandidatesRequest) -> CandidatesAnswer:
        """Rank continuations; changes nothing."""

    def generate_in_session(self, request: SessionGenerate) -> AsyncGenerator[GenerationEvent, None]:
        """Continue a session's text, and keep it in the session where asked."""

    async def reset(self, request: ResetRequest) -> ChangeAnswer:
        """Forget fast weights, recurrent state, or both."""

    async def delete(self, tenant: str, session: str) -> None:
        """End a session for good; idempotent while its tombstone lives. Raises NotFound."""

    async def ready(self) -> None:
        """Return when work can be taken. Raises Draining or StoreUnavailable."""
