"""Queries: texts scored, prompts continued, candidates ranked, sessions described. None changes anything."""

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlstm_server.engine import requests
from rlstm_server.engine.billing import billed, paid
from rlstm_server.engine.description import SessionCopy, session_info
from rlstm_server.engine.generation import continue_prompt
from rlstm_server.engine.models import Models
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
from rlstm_server.engine.steps import Steps
from rlstm_server.engine.text import Piece, read_passage
from rlstm_server.errors import Gone, InvalidField, NotFound, StateCorrupt, VersionMoved
from rlstm_server.schemas import (
    AdaptationChoice,
    CandidatesAnswer,
    CandidatesRequest,
    EndEvent,
    EngineLimits,
    GenerateRequest,
    GenerationEvent,
    Passage,
    ScoreAnswer,
    ScoreItem,
    ScoreRequest,
    SessionInfo,
    SessionPage,
    Timings,
)
from rlstm_server.store.base import Listed


@dataclass(frozen=True, eq=False)
class Queries:
    """Answers from the weights as loaded, or from the state that a session has now."""

    sessions: Sessions
    models: Models
    limits: EngineLimits

    async def score(self, request: ScoreRequest) -> ScoreAnswer:
        """Score items, each on its own."""
        requests.check_score(request, self.limits)
        served = self.models.named(request.model)
        size = sum(requests.size_of(item.passage) + requests.size_of(item.context) for item in request.items)
        items = await requests.off_loop(size, partial(self._item_texts, served, request.items))
        choice = None if request.adaptation is None else served.choose(request.adaptation)
        rows = min(len(items), ROWS_OF_REQUEST)
        with billed(request.caller.allowance) as bill:
            count = sum(text.tokens for text in items)
            bill.charge(tokens=count, learned=0 if choice is None else count)
            ran = await self.sessions.runner.run(
                _score_steps(served, choice, items, request.top), request.caller, rows
            )
        ran.result.tally.count(self.sessions.metrics)
        timings = Timings(queue=ran.queue, compute=ran.compute)
        return ScoreAnswer(items=ran.result.items, adaptation=choice, timings=timings)

    def _item_texts(self, served: ServedModel, items: tuple[ScoreItem, ...]) -> Sequence[ItemText]:
        given = sum(len(item.passage.tokens or ()) for item in items)
        requests.within("tokens of all items", given, self.limits.score_tokens)  # before any is read
        texts = [_item_text(served, index, item) for index, item in enumerate(items)]
        count = sum(text.tokens for text in texts)
        requests.within("tokens of all items", count, self.limits.score_tokens)
        return texts

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Continue a prompt."""
        requests.check_generation(request.settings, self.limits)
        served = self.models.named(request.model)
        context = partial(_context, served, "prompt", request.prompt)
        prompt = await requests.off_loop(requests.size_of(request.prompt), context)
        ids = prompt.ids if prompt else []
        requests.within("prompt tokens", len(ids), self.limits.prompt_tokens)
        seed = secrets.randbits(32) if request.settings.seed is None else request.settings.seed
        unfinished = prompt.after.unfinished if prompt else ()
        steps = continue_prompt(served.reader, served.vocab, ids, request.settings, seed, unfinished)
        with billed(request.caller.allowance) as bill:
            bill.charge(tokens=len(ids))
            stream = paid(self.sessions.runner.stream(steps, request.caller), request.settings, bill)
            async with aclosing(stream) as events:
                async for event in events:
                    if isinstance(event, EndEvent):
                        self.sessions.metrics.tokens.labels("generated").inc(event.completion_tokens)
                    yield event

    async def rank(self, request: CandidatesRequest) -> CandidatesAnswer:
        """Rank continuations."""
        requests.check_candidates(request, self.limits)
        key = requests.session_key(request.caller.tenant, request.session)
        copy = await self.sessions.read(key, request.caller, request.min_version)
        size = sum(requests.size_of(candidate.passage) for candidate in request.candidates)
        pieces = await requests.off_loop(size, partial(self._candidate_pieces, request, copy))
        steps = rank_candidates(
            copy.state,
            request.candidates,
            pieces,
            request.weights,
        )
        with self.sessions.distrusting(key), billed(request.caller.allowance) as bill:
            bill.charge(tokens=sum(len(piece.ids) for piece in pieces))
            ran = await self.sessions.runner.run(steps, request.caller, min(len(pieces), ROWS_OF_REQUEST))
        self.sessions.metrics.tokens.labels("scored").inc(sum(ranked.tokens for ranked in ran.result))
        timings = Timings(queue=ran.queue, compute=ran.compute)
        return CandidatesAnswer(version=copy.position.version, candidates=ran.result, timings=timings)

    def _candidate_pieces(self, request: CandidatesRequest, copy: SessionCopy) -> Sequence[Piece]:
        vocab, place = copy.state.served.vocab, copy.state.place
        pieces = [
            read_passage(vocab, candidate.passage, f"candidates[{index}]", place=place)
            for index, candidate in enumerate(request.candidates)
        ]
        count = sum(len(piece.ids) for piece in pieces)
        requests.within("tokens of all candidates", count, self.limits.candidate_tokens)
        return pieces

    async def list(self, tenant: str, limit: int, cursor: str | None, name: str | None) -> SessionPage:
        """List a tenant's sessions, or the one of a name."""
        if name is not None:
            return SessionPage(sessions=await self._called(tenant, name), cursor=None)
        page = await self.sessions.store.list(tenant, limit=limit, cursor=cursor)
        described = (self._described(listed) for listed in page.sessions)
        sessions = tuple(info for info in described if info is not None)
        return SessionPage(sessions=sessions, cursor=page.cursor)

    async def _called(self, tenant: str, name: str) -> tuple[SessionInfo, ...]:
        try:
            session = await self.sessions.store.find(tenant, name)
            return (await self.info(tenant, session, None),)
        except (Gone, NotFound):
            return ()

    def _described(self, listed: Listed) -> SessionInfo | None:
        """Describe a session of a listing; None for one that is damaged: the others can be listed."""
        try:
            return session_info(listed.session_id, listed.head)
        except StateCorrupt:
            self.sessions.metrics.restore_failures.labels("schema").inc()
            return None

    async def info(self, tenant: str, session: str, min_version: int | None) -> SessionInfo:
        """Describe a session."""
        head = await self.sessions.store.load_head(requests.session_key(tenant, session), with_state=False)
        if min_version is not None and head.version < min_version:
            raise VersionMoved(min_version, head.version)
        return session_info(session, head)


def _score_steps(
    served: ServedModel, choice: AdaptationChoice | None, items: Sequence[ItemText], top: int
) -> Steps[Any, Scored]:
    if choice is None:
        return score_items(served.reader, items, top)
    return score_items_adapted(served, choice, items, top)


def _item_text(served: ServedModel, index: int, item: ScoreItem) -> ItemText:
    field = f"items[{index}]"
    piece = read_passage(served.vocab, item.passage, field)
    if not piece.ids:
        raise InvalidField(f"{field}.text", "the text holds no token")
    context = _context(served, f"{field}.context", item.context)
    return ItemText(id=item.id, piece=piece, context=context)


def _context(served: ServedModel, field: str, passage: Passage | None) -> Piece | None:
    """The tokens before a text; None where there are none, which is the beginning of all text."""
    if passage is None or not requests.size_of(passage):
        return None
    piece = read_passage(served.vocab, passage, field)
    return piece if piece.ids else None
