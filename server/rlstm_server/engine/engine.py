"""The engine: every request gets exactly one outcome.

The event loop checks, queues and commits; the device thread computes; the store decides. The life of a change
is told in session.py.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final

from rlstm_model.adaptation.crew import Crew
from rlstm_model.adaptation.round import perform
from rlstm_model.vocab import Vocab
from rlstm_server.engine import requests
from rlstm_server.engine.appends import Appends
from rlstm_server.engine.billing import billed, paid
from rlstm_server.engine.cache import SessionCache
from rlstm_server.engine.cache_check import CacheCheck
from rlstm_server.engine.changes import Changes
from rlstm_server.engine.copies import Copies
from rlstm_server.engine.creation import Creator
from rlstm_server.engine.description import SessionCopy, session_info
from rlstm_server.engine.ending import end_session
from rlstm_server.engine.exports import ExportKeys
from rlstm_server.engine.generation import continue_prompt
from rlstm_server.engine.holdings import Holdings
from rlstm_server.engine.loading import Loader
from rlstm_server.engine.messages import (
    AdaptationChoice,
    AppendAnswer,
    AppendRequest,
    Caller,
    CandidatesAnswer,
    CandidatesRequest,
    ChangeAnswer,
    CreatedSession,
    CreateSession,
    EndEvent,
    EngineIdentity,
    EngineLimits,
    ExportedSession,
    ForkRequest,
    GenerateRequest,
    GenerationEvent,
    ImportRequest,
    Passage,
    ResetRequest,
    RestoreRequest,
    ScoreAnswer,
    ScoreItem,
    ScoreRequest,
    SessionGenerate,
    SessionInfo,
    SessionPage,
    SessionSnapshot,
    SnapshotAnswer,
    SnapshotRequest,
    Timings,
    UpdateRequest,
)
from rlstm_server.engine.metered import MeteredStore
from rlstm_server.engine.named_snapshots import NamedSnapshots
from rlstm_server.engine.numerics import alone
from rlstm_server.engine.runner import ROWS, Runner
from rlstm_server.engine.scoring import (
    ROWS_OF_REQUEST,
    ItemText,
    Scored,
    rank_candidates,
    score_items,
    score_items_adapted,
)
from rlstm_server.engine.served import ServedModel
from rlstm_server.engine.session import Sessions
from rlstm_server.engine.snapshot import Snapshots
from rlstm_server.engine.staging import Staging
from rlstm_server.engine.steps import Steps
from rlstm_server.engine.streams import SessionStreams
from rlstm_server.engine.text import Piece, read_passage
from rlstm_server.errors import Draining, InvalidField, StateCorrupt, VersionMoved
from rlstm_server.metrics import Metrics
from rlstm_server.store.base import Listed, SessionStore

CACHE_BYTES: Final = 512 * 2**20
TTL_SECONDS: Final = 30 * 24 * 3600.0


class Engine:
    """See :class:`rlstm_server.engine.interface.EngineInterface` for the calls.

    `start` it in the event loop that will call it, `close` it there. The store is the caller's to close.
    """

    def __init__(
        self,
        served: ServedModel,
        store: SessionStore,
        metrics: Metrics,
        *,
        limits: EngineLimits | None = None,
        cache_bytes: int = CACHE_BYTES,
        rows: int = ROWS,
        threads: int = 1,
        export_keys: ExportKeys | None = None,
    ) -> None:
        """`rows` are those of a round: more of them share each product, fewer make rounds shorter.

        `threads` of a CPU share the batches of a round. Without `export_keys` no session leaves or comes as a
        file.
        """
        self.limits = limits or EngineLimits()
        self._crew = Crew(threads) if served.device.type == "cpu" and threads > 1 else None
        self.runner = Runner(
            served.model,
            metrics,
            self.limits.queued_jobs,
            rows,
            partial(perform if served.rounds_agree else alone, crew=self._crew),
            self.limits,
        )
        self._served = served
        self._metrics = metrics
        self._store = MeteredStore(store, metrics)
        snapshots = Snapshots(served)
        cache = SessionCache(cache_bytes, metrics, self.runner.slots)
        self._cache_check = CacheCheck(self._store, cache)
        self.sessions = Sessions(
            store=self._store,
            cache=cache,
            loader=Loader(self._store, cache, snapshots, served, self.runner, metrics),
            runner=self.runner,
            metrics=metrics,
            queued_operations=self.limits.queued_operations_per_session,
        )
        self._staging = Staging(served, snapshots, self._store)
        self._appends = Appends(self.sessions, self._staging, self.limits)
        self._creator = Creator(
            self.sessions, self._staging, self._appends, Holdings(self._store), TTL_SECONDS
        )
        self._snapshots = NamedSnapshots(self.sessions)
        self._changes = Changes(self.sessions, self._staging, self._snapshots)
        self._copies = Copies(self.sessions, self._creator, self._snapshots, export_keys)
        self._streams = SessionStreams(self.sessions, self._staging, self.limits)
        self._draining = False

    @property
    def identity(self) -> EngineIdentity:
        """What the numbers depend on."""
        return self._served.identity

    @property
    def vocab(self) -> Vocab:
        """The vocabulary of the served model."""
        return self._served.vocab

    # ---- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the device thread, and the look after copies of sessions that have ended elsewhere."""
        self.runner.start()
        self._cache_check.start()

    async def drain(self, seconds: float) -> None:
        """Take no new work, and give what is under way so long; what is left ends with Draining."""
        self._draining = True
        self._metrics.draining.set(1)
        await self._cache_check.close()
        await asyncio.gather(self.sessions.drain(seconds), self.runner.drain(seconds))

    async def close(self, drain_seconds: float = 0.0) -> None:
        """Drain, then end the device thread. Raises InternalError when the slow weights have changed."""
        await self.drain(drain_seconds)
        try:
            await self.runner.close()
        finally:
            if self._crew is not None:
                self._crew.close()

    async def ready(self) -> None:
        """Return when work can be taken. Raises Draining, StoreUnavailable."""
        self._refuse_when_draining()
        await self._store.ping()

    def check(self) -> None:
        """Raise ValueError unless every job, operation and copy is accounted for."""
        self.runner.check()
        self.sessions.check()

    def _refuse_when_draining(self) -> None:
        if self._draining:
            raise Draining("the server is shutting down")

    # ---- stateless ----------------------------------------------------------------------------------------

    async def score(self, request: ScoreRequest) -> ScoreAnswer:
        """Score items, each on its own."""
        self._refuse_when_draining()
        requests.check_score(request, self.limits)
        size = sum(requests.size_of(item.passage) + requests.size_of(item.context) for item in request.items)
        items = await requests.off_loop(size, partial(self._item_texts, request.items))
        choice = None if request.adaptation is None else self._served.choose(request.adaptation)
        rows = min(len(items), ROWS_OF_REQUEST)
        with billed(request.caller.allowance) as bill:
            count = sum(text.tokens for text in items)
            bill.charge(tokens=count, learned=0 if choice is None else count)
            ran = await self.runner.run(self._score_steps(choice, items, request.top), request.caller, rows)
        ran.result.tally.count(self._metrics)
        timings = Timings(queue=ran.queue, compute=ran.compute)
        return ScoreAnswer(items=ran.result.items, adaptation=choice, timings=timings)

    def _score_steps(
        self, choice: AdaptationChoice | None, items: list[ItemText], top: int
    ) -> Steps[Any, Scored]:
        if choice is None:
            return score_items(self._served.reader, items, top)
        adapter = self._served.adapter(choice.kind, choice.coordinates)
        return score_items_adapted(adapter, choice, items, top)

    def _item_texts(self, items: tuple[ScoreItem, ...]) -> list[ItemText]:
        texts = [self._item_text(index, item) for index, item in enumerate(items)]
        count = sum(text.tokens for text in texts)
        requests.within("tokens of all items", count, self.limits.score_tokens)
        return texts

    def _item_text(self, index: int, item: ScoreItem) -> ItemText:
        field = f"items[{index}]"
        piece = read_passage(self.vocab, item.passage, field)
        if not piece.ids:
            raise InvalidField(f"{field}.text", "the text holds no token")
        return ItemText(id=item.id, piece=piece, context=self._context(f"{field}.context", item.context))

    def _context(self, field: str, passage: Passage | None) -> Piece | None:
        """The tokens before a text; None where there are none, which is the beginning of all text."""
        if passage is None or not requests.size_of(passage):
            return None
        piece = read_passage(self.vocab, passage, field)
        return piece if piece.ids else None

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Continue a prompt."""
        self._refuse_when_draining()
        requests.check_generation(request.settings, self.limits)
        context = partial(self._context, "prompt", request.prompt)
        prompt = await requests.off_loop(requests.size_of(request.prompt), context)
        ids = prompt.ids if prompt else []
        requests.within("prompt tokens", len(ids), self.limits.prompt_tokens)
        seed = secrets.randbits(32) if request.settings.seed is None else request.settings.seed
        unfinished = prompt.after.unfinished if prompt else ()
        steps = continue_prompt(self._served.reader, self.vocab, ids, request.settings, seed, unfinished)
        with billed(request.caller.allowance) as bill:
            bill.charge(tokens=len(ids))
            stream = paid(self.runner.stream(steps, request.caller), request.settings, bill)
            async with aclosing(stream) as events:
                async for event in events:
                    if isinstance(event, EndEvent):
                        self._metrics.tokens.labels("generated").inc(event.completion_tokens)
                    yield event

    # ---- sessions -----------------------------------------------------------------------------------------

    async def create_session(self, request: CreateSession) -> CreatedSession:
        """Make a session."""
        self._refuse_when_draining()
        return await self._creator.perform(request)

    async def list_sessions(self, tenant: str, limit: int, cursor: str | None) -> SessionPage:
        """List a tenant's sessions."""
        page = await self._store.list(tenant, limit=limit, cursor=cursor)
        described = (self._described(listed) for listed in page.sessions)
        sessions = tuple(info for info in described if info is not None)
        return SessionPage(sessions=sessions, cursor=page.cursor)

    def _described(self, listed: Listed) -> SessionInfo | None:
        """Describe a session of a listing; None for one that is damaged: the others can be listed."""
        try:
            return session_info(listed.session_id, listed.head)
        except StateCorrupt:
            self._metrics.restore_failures.labels("schema").inc()
            return None

    async def session_info(self, tenant: str, session: str, min_version: int | None = None) -> SessionInfo:
        """Describe a session."""
        head = await self._store.load_head(requests.session_key(tenant, session), with_state=False)
        if min_version is not None and head.version < min_version:
            raise VersionMoved(min_version, head.version)
        return session_info(session, head)

    async def append(self, request: AppendRequest) -> AppendAnswer:
        """Score, then learn."""
        self._refuse_when_draining()
        return await self._appends.perform(request)

    async def score_candidates(self, request: CandidatesRequest) -> CandidatesAnswer:
        """Rank continuations."""
        self._refuse_when_draining()
        requests.check_candidates(request, self.limits)
        key = requests.session_key(request.caller.tenant, request.session)
        copy = await self.sessions.read(key, request.caller, request.min_version)
        size = sum(requests.size_of(candidate.passage) for candidate in request.candidates)
        pieces = await requests.off_loop(size, partial(self._candidate_pieces, request, copy))
        steps = rank_candidates(
            self._staging.adapter(copy.state), copy.state, request.candidates, pieces, request.weights
        )
        with self.sessions.distrusting(key), billed(request.caller.allowance) as bill:
            bill.charge(tokens=sum(len(piece.ids) for piece in pieces))
            ran = await self.runner.run(steps, request.caller, min(len(pieces), ROWS_OF_REQUEST))
        self._metrics.tokens.labels("scored").inc(sum(ranked.tokens for ranked in ran.result))
        timings = Timings(queue=ran.queue, compute=ran.compute)
        return CandidatesAnswer(version=copy.position.version, candidates=ran.result, timings=timings)

    def _candidate_pieces(self, request: CandidatesRequest, copy: SessionCopy) -> list[Piece]:
        pieces = [
            read_passage(self.vocab, candidate.passage, f"candidates[{index}]", place=copy.state.place)
            for index, candidate in enumerate(request.candidates)
        ]
        count = sum(len(piece.ids) for piece in pieces)
        requests.within("tokens of all candidates", count, self.limits.candidate_tokens)
        return pieces

    async def generate_in_session(self, request: SessionGenerate) -> AsyncGenerator[GenerationEvent, None]:
        """Continue a session's text, and keep it in the session where asked."""
        self._refuse_when_draining()
        streams = self._streams
        stream = streams.keep_text(request) if request.commit else streams.continue_text(request)
        with billed(request.caller.allowance) as bill:
            learns = request.commit and request.learn_from_output
            async with aclosing(paid(stream, request.settings, bill, learns=learns)) as events:
                async for event in events:
                    yield event

    async def reset(self, request: ResetRequest) -> ChangeAnswer:
        """Forget fast weights, recurrent state, or both."""
        self._refuse_when_draining()
        return await self._changes.reset(request)

    async def update(self, request: UpdateRequest) -> ChangeAnswer:
        """Change what was said of a session."""
        self._refuse_when_draining()
        return await self._changes.update(request)

    async def restore(self, request: RestoreRequest) -> ChangeAnswer:
        """Go back to a named snapshot."""
        self._refuse_when_draining()
        return await self._changes.restore(request)

    async def take_snapshot(self, request: SnapshotRequest) -> SnapshotAnswer:
        """Name the present version."""
        self._refuse_when_draining()
        return await self._snapshots.name(request)

    async def list_snapshots(
        self, tenant: str, session: str, min_version: int | None = None
    ) -> Sequence[SessionSnapshot]:
        """List a session's named snapshots."""
        if min_version is not None:
            await self.session_info(tenant, session, min_version)
        return await self._snapshots.list(requests.session_key(tenant, session))

    async def drop_snapshot(self, tenant: str, session: str, name: str) -> None:
        """Remove a named snapshot."""
        await self._snapshots.drop(requests.session_key(tenant, session), name)

    async def fork(self, request: ForkRequest) -> CreatedSession:
        """Copy a session."""
        self._refuse_when_draining()
        return await self._copies.fork(request)

    async def export(self, caller: Caller, session: str, min_version: int | None = None) -> ExportedSession:
        """Write a session as a file."""
        self._refuse_when_draining()
        return await self._copies.export(caller, session, min_version)

    async def import_session(self, request: ImportRequest) -> CreatedSession:
        """Make a session of a file."""
        self._refuse_when_draining()
        return await self._copies.import_session(request)

    async def delete(self, tenant: str, session: str) -> None:
        """End a session for good."""
        await end_session(self.sessions, requests.session_key(tenant, session))
