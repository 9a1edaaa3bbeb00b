"""What the HTTP layer may ask of the engine."""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from rlstm_server.engine.models import Models
from rlstm_server.engine.quotas import Caller
from rlstm_server.schemas import (
    AppendAnswer,
    AppendRequest,
    CandidatesAnswer,
    CandidatesRequest,
    ChangeAnswer,
    CompletionEvent,
    CompletionRequest,
    CreatedSession,
    CreateSession,
    EngineLimits,
    ExportedSession,
    ForkRequest,
    GenerateRequest,
    GenerationEvent,
    ImportRequest,
    ResetRequest,
    RestoreRequest,
    ScoreAnswer,
    ScoreRequest,
    SessionGenerate,
    SessionInfo,
    SessionPage,
    SessionSnapshot,
    SnapshotAnswer,
    SnapshotRequest,
    UpdateRequest,
)


class EngineInterface(Protocol):
    """The engine as its callers see it; :class:`rlstm_server.engine.engine.Engine` is the one there is.

    Every method raises errors of :mod:`rlstm_server.errors` and nothing else. Cancelling the awaiting task
    cancels the work, except a commit that is on its way. An iterator of events must be closed
    (``aclosing``) when it is left early.
    """

    @property
    def models(self) -> Models:
        """Those that are served, the default first."""

    @property
    def limits(self) -> EngineLimits:
        """The limits in force."""

    async def score(self, request: ScoreRequest) -> ScoreAnswer:
        """Log-probabilities of texts.

        Without adaptation they are those of :func:`rlstm_model.scoring.score` to 1e-5 nats a token: texts
        share a product, where that function has each text to itself.
        """

    def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Continuations of a prompt, token by token."""

    def complete(self, request: CompletionRequest) -> AsyncGenerator[CompletionEvent, None]:
        """Prompts read and scored, a PromptEvent each, and their continuations, token by token."""

    async def create_session(self, request: CreateSession) -> CreatedSession:
        """Make a session. Raises ModelNotFound, SessionExists, StoreFull."""

    async def list_sessions(
        self, tenant: str, limit: int, cursor: str | None, name: str | None = None
    ) -> SessionPage:
        """List the tenant's sessions, a page at a time; or only the one of a name, if there is one."""

    async def session_info(self, tenant: str, session: str, min_version: int | None = None) -> SessionInfo:
        """One session. Raises NotFound, Gone, VersionMoved below `min_version`."""

    async def append(self, request: AppendRequest) -> AppendAnswer:
        """Score, then learn. Raises NotFound, Gone, VersionMoved, Conflict, IdempotencyMismatch, InFlight."""

    async def score_candidates(self, request: CandidatesRequest) -> CandidatesAnswer:
        """Rank continuations; changes nothing."""

    def generate_in_session(self, request: SessionGenerate) -> AsyncGenerator[GenerationEvent, None]:
        """Continue a session's text, and keep it in the session where asked."""

    async def reset(self, request: ResetRequest) -> ChangeAnswer:
        """Forget fast weights, recurrent state, or both."""

    async def update(self, request: UpdateRequest) -> ChangeAnswer:
        """Change the time to live, the metadata, or whether appends may learn; a version like any other."""

    async def restore(self, request: RestoreRequest) -> ChangeAnswer:
        """Go back to a named snapshot: its state, position and totals, under a new version.

        Raises NotFound for an unknown snapshot; nothing happened then.
        """

    async def take_snapshot(self, request: SnapshotRequest) -> SnapshotAnswer:
        """Name the present version; no version is made. Raises SnapshotExists, TooLarge for one too many."""

    async def list_snapshots(
        self, tenant: str, session: str, min_version: int | None = None
    ) -> Sequence[SessionSnapshot]:
        """A session's named snapshots, oldest version first."""

    async def drop_snapshot(self, tenant: str, session: str, name: str) -> None:
        """Remove a named snapshot; idempotent. Raises NotFound for the session."""

    async def fork(self, request: ForkRequest) -> CreatedSession:
        """Make an independent copy of a session, as it is or as it was at a named snapshot.

        It has an id of its own, version 0, and the position of what it is a copy of. Raises NotFound, Gone
        for the source or the snapshot, SessionExists, StoreFull.
        """

    async def export(self, caller: Caller, session: str, min_version: int | None = None) -> ExportedSession:
        """Write a session as a signed file. Raises ExportDisabled, NotFound, Gone, VersionMoved."""

    async def import_session(self, request: ImportRequest) -> CreatedSession:
        """Make a session of a file that was exported for the same tenant, by a model that is served here.

        Raises ExportDisabled, ImportRejected for whatever is wrong with the file, SessionExists, StoreFull.
        """

    async def delete(self, tenant: str, session: str) -> None:
        """End a session for good; idempotent while its tombstone lives. Raises NotFound."""

    async def ready(self) -> None:
        """Return when work can be taken. Raises Draining or StoreUnavailable."""
