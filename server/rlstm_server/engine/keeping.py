"""Generation that a session keeps: a commit every few tokens, before anybody sees them.

Each chunk is an operation of its own, ``key#0``, ``key#1``, ..., so a repeat of the request streams what is
stored and goes on after it. Tokens that are held back (they may begin a stop string) are not kept;
the next chunk chooses them again, from the same random numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

import orjson

from rlstm_server.engine import answers
from rlstm_server.engine.description import SessionCopy
from rlstm_server.engine.generation import Continuation, continue_text
from rlstm_server.engine.learning import Reading, Tally, read_piece
from rlstm_server.engine.snapshot import SessionState
from rlstm_server.engine.staged import Staged
from rlstm_server.engine.staging import Staging, reading_record
from rlstm_server.engine.steps import Steps, performed
from rlstm_server.engine.stops import Released, StopStrings
from rlstm_server.engine.text import read_passage
from rlstm_server.errors import StateCorrupt
from rlstm_server.schemas import FinishReason, GenerationEvent, GenerationSettings, Passage
from rlstm_server.store.base import MAX_SUMMARY_BYTES

CHUNK: Final = 16
"""Tokens between two commits: so many at least, but at the end."""

MAX_TOKENS: Final = 2 * CHUNK
MAX_STORED_BYTES: Final = MAX_SUMMARY_BYTES - 256


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Tokens that became part of the session, and whether the text is complete with them."""

    tokens: tuple[Released, ...]
    finish_reason: FinishReason | None
    position: int


@dataclass
class Progress:
    """How much of the text is kept so far."""

    settings: GenerationSettings
    seed: int
    learn: bool = False
    kept: int = 0
    seen: set[int] = field(default_factory=set)

    def add(self, chunk: Chunk) -> None:
        """Count a chunk that is kept."""
        self.kept += len(chunk.tokens)
        self.seen.update(token.id for token in chunk.tokens)


def continuation(state: SessionState, progress: Progress) -> Continuation:
    """A text that goes on from a session's state, after what is kept of it already."""
    reader = state.evaluator.reader(state.adapted)
    after = state.place.unfinished or ((reader.cursor.last,) if state.adapted.position else ())
    return Continuation(
        reader=reader,
        cursor=reader.cursor,
        settings=progress.settings,
        seed=progress.seed,
        choice=0,
        stops=StopStrings(state.served.vocab, progress.settings.stop, after=after),
        seen=set(progress.seen),
        index=progress.kept,
    )


def read_pending(state: SessionState, *, learn: bool) -> Steps[Any, Reading | None]:
    """Read the word in progress, which generation ends; None when there is none."""
    if not state.place.pending:
        return None
    piece = read_passage(state.served.vocab, Passage(text=""), "", place=state.place, final=True)
    return (yield from read_piece(state, piece, learn=learn))


def keep_chunk(staging: Staging, progress: Progress, copy: SessionCopy) -> Steps[Any, Staged[Chunk]]:
    """Write the next chunk of a text and read it into the session."""
    pending = yield from read_pending(copy.state, learn=copy.facts.learning)
    state = copy.state if pending is None else pending.state
    text = continuation(state, progress)
    released: list[Released] = []
    while len(released) < CHUNK and text.finish_reason is None:
        released += text.choose((yield from performed(text.turn)))
    tokens = _fitting(released)
    own = yield from _read_own(state, tokens, learn=progress.learn and copy.facts.learning)
    state = (state if own is None else own.state).measured()
    readings = [reading for reading in (pending, own) if reading is not None]
    chunk = Chunk(
        tokens=tokens,
        finish_reason=text.finish_reason if len(tokens) == len(released) else None,
        position=state.adapted.position,
    )
    stored = _write(chunk)
    return staging.stage(
        copy,
        state,
        record=reading_record("generate", *(reading.record for reading in readings)),
        answer=chunk,
        stored=stored,
        summary=stored,
        tally=reduce(Tally.followed_by, (reading.tally for reading in readings), Tally()),
    )


def continue_session(progress: Progress, copy: SessionCopy) -> Steps[GenerationEvent, int]:
    """Continue a session's text and keep nothing; return the number of new tokens."""
    pending = yield from read_pending(copy.state, learn=False)
    state = copy.state if pending is None else pending.state
    return (yield from continue_text(continuation(state, progress)))


def read_chunk(stored: bytes) -> Chunk:
    """Read a chunk that was kept. Raises StateCorrupt."""
    content = answers.parse(stored)
    try:
        return Chunk(
            tokens=tuple(Released(*token) for token in content["tokens"]),
            finish_reason=content["finish_reason"],
            position=content["position"],
        )
    except (KeyError, TypeError) as error:
        raise StateCorrupt("a stored chunk lacks a field") from error


def _write(chunk: Chunk) -> bytes:
    return orjson.dumps(
        {
            "tokens": _plain(chunk.tokens),
            "finish_reason": chunk.finish_reason,
            "position": chunk.position,
        }
    )


def _plain(tokens: Sequence[Released]) -> list[list[Any]]:
    """Tokens as lists: orjson writes no named tuples."""
    return [list(token) for token in tokens]


def _fitting(released: Sequence[Released]) -> tuple[Released, ...]:
    """As many tokens as a stored summary holds; what is cut off is chosen again by the next chunk."""
    tokens = tuple(released[:MAX_TOKENS])
    while len(tokens) > 1 and len(orjson.dumps(_plain(tokens))) > MAX_STORED_BYTES:
        tokens = tokens[: len(tokens) // 2]
    return tokens


def _read_own(state: SessionState, tokens: Sequence[Released], *, learn: bool) -> Steps[Any, Reading | None]:
    if not tokens:
        return None
    ids = tuple(token.id for token in tokens)
    piece = read_passage(state.served.vocab, Passage(tokens=ids), "", place=state.place)
    return (yield from read_piece(state, piece, learn=learn, own=True))
