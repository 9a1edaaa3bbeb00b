"""Reading text in a session: its tokens and what they span, a segment a batch step, and what comes of it.

A session's spans count code points from the beginning of its stream. Text that is appended always holds
whole characters; token ids may cut a character of a byte vocabulary between two appends, so the ids of an
unfinished character are part of the place. A word vocabulary holds back the word in progress. Sums are taken
in float64.
"""

import io
import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.adaptation.items import ObservedChunk
from rlstm_model.adaptation.loss_guard import LossGuard
from rlstm_model.adaptation.state import NonFiniteState
from rlstm_model.scores import TokenScores
from rlstm_model.vocab import InvalidText as VocabInvalidText
from rlstm_model.vocab import InvalidToken as VocabInvalidToken
from rlstm_model.vocab import Vocab
from rlstm_server.engine.state import START, Place, SessionState
from rlstm_server.engine.worker import compute
from rlstm_server.errors import InvalidField, InvalidText, InvalidToken, StateCorrupt
from rlstm_server.metrics import GUARDS, PARTS, Metrics
from rlstm_server.schemas.sessions import SessionTotals
from rlstm_server.schemas.text import Alternatives, Columns, Passage, Totals

WORD: Final = re.compile(r"\S+")


# ---- tokens -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Tokens to read, with their spans in the stream, and the place after them."""

    ids: list[int]
    starts: Sequence[int]
    ends: Sequence[int]
    bytes: int
    words: int
    unknown: int
    text: str
    after: Place


EMPTY = Piece(ids=[], starts=[], ends=[], bytes=0, words=0, unknown=0, text="", after=START)


def read_passage(
    vocab: Vocab, passage: Passage, field: str, *, place: Place = START, final: bool = True
) -> Piece:
    """The tokens of a passage at `place`. Without `final`, text that may go on is held back.

    Raises InvalidText, InvalidToken, and InvalidField (naming `field`) for an empty passage.
    """
    name = ".".join(part for part in (field, "text" if isinstance(passage, str) else "tokens") if part)
    try:
        if not isinstance(passage, str):
            if not passage:
                raise InvalidField(name, "there are no tokens")
            return _read_tokens(vocab, passage, place)
        if not passage and not (final and place.pending):
            raise InvalidField(name, "the text is empty")
        return _read_text(vocab, passage, place, final=final)
    except VocabInvalidText as error:
        raise InvalidText(f"{name}: {error}", field=name) from None
    except VocabInvalidToken as error:
        raise InvalidToken(f"{name}: {error} (0 to {vocab.size - 1})", field=name) from None


def read_context(vocab: Vocab, passage: Passage, field: str) -> Piece | None:
    """The tokens before a text; None where there are none, which is the beginning of all text."""
    if not passage:
        return None
    piece = read_passage(vocab, passage, field)
    return piece if piece.ids else None


def _read_text(vocab: Vocab, text: str, place: Place, *, final: bool) -> Piece:
    if place.unfinished:  # an unfinished character is given up: it reads as U+FFFD
        lost = vocab.decode(place.unfinished)
        place = replace(place, characters=place.characters + len(lost), unfinished=())
    ready, held = vocab.split_pending(place.pending + text, final=final)
    if held:
        vocab.encode(held)  # a lone surrogate is refused now, not when the word is complete
    encoded, by = vocab.encode(ready), place.characters
    starts, ends = encoded.starts, encoded.ends
    if by:
        starts, ends = (array("q", (by + at for at in spans)) for spans in (starts, ends))
    return Piece(
        ids=encoded.ids,
        starts=starts,
        ends=ends,
        bytes=len(ready.encode()),
        words=sum(1 for _ in WORD.finditer(ready)),  # splitting a long text holds up other threads
        unknown=encoded.unknown,
        text=ready,
        after=Place(characters=place.characters + len(ready), pending=held),
    )


def _read_tokens(vocab: Vocab, ids: Sequence[int], place: Place) -> Piece:
    vocab.validate(ids)
    pending = _read_text(vocab, "", place, final=True) if place.pending else None
    place = pending.after if pending else place
    starts, ends, text, after = _spans(vocab, ids, place)
    piece = Piece(
        ids=list(ids),
        starts=starts,
        ends=ends,
        bytes=sum(len(vocab.token_bytes(token)) for token in ids),
        words=sum(1 for _ in WORD.finditer(text)),
        unknown=sum(token == vocab.unknown_id for token in ids),
        text=text,
        after=after,
    )
    return _joined(pending, piece) if pending else piece


def _spans(vocab: Vocab, ids: Sequence[int], place: Place) -> tuple[Sequence[int], Sequence[int], str, Place]:
    """Spans of the characters that the tokens complete; all tokens of one character share its span."""
    decoder, open_ids = vocab.decoder(), list(place.unfinished)
    for token in open_ids:
        decoder.feed(token)
    at, waiting, text = place.characters, 0, io.StringIO()
    starts, ends = array("q"), array("q")
    for token in ids:
        piece = decoder.feed(token)
        text.write(piece)
        if decoder.lost:
            starts.extend([at] * waiting)
            at += decoder.lost
            ends.extend([at] * waiting)
            waiting, open_ids = 0, []
        open_ids.append(token)
        waiting += 1
        if completed := len(piece) - decoder.lost:
            starts.extend([at] * waiting)
            at += completed
            ends.extend([at] * waiting)
            waiting, open_ids = 0, []
    starts.extend([at] * waiting)
    ends.extend([at + 1] * waiting)
    return starts, ends, text.getvalue(), Place(characters=at, unfinished=tuple(open_ids))


def _joined(first: Piece, second: Piece) -> Piece:
    return Piece(
        ids=first.ids + second.ids,
        starts=array("q", first.starts) + array("q", second.starts),
        ends=array("q", first.ends) + array("q", second.ends),
        bytes=first.bytes + second.bytes,
        words=first.words + second.words,
        unknown=first.unknown + second.unknown,
        text=first.text + second.text,
        after=second.after,
    )


# ---- reading them -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """A piece was read: the state after it, its scores, and how it was learned from.

    updates    segments learned from; `row_steps` are those of single rows, of skipped ones none
    adapted    tokens learned from
    own        it was generated, not read from somebody
    """

    state: SessionState
    columns: Columns
    totals: Totals
    updates: int = 0
    row_steps: int = 0
    guards: Counter[str] = field(default_factory=Counter)
    gradient_norms: Sequence[float] = ()
    adapted: int = 0
    own: bool = False

    def count(self, metrics: Metrics, *, in_session: bool = False) -> None:
        """Add what was learned to the metrics, and of a session that has it now what was read."""
        metrics.tokens.labels("adapted").inc(self.adapted)
        clipped = self.guards["projected"]
        metrics.updates.labels("clipped").inc(clipped)
        metrics.updates.labels("applied").inc(self.row_steps - clipped)
        for guard, outcome in GUARDS.items():
            metrics.updates.labels(outcome).inc(self.guards[guard])
        for norm in self.gradient_norms:
            metrics.gradient_norm.observe(norm)
        if not in_session:
            return
        totals = self.totals
        metrics.tokens.labels("generated" if self.own else "scored").inc(totals.tokens)
        if self.own:
            return
        parts = totals.static_logprob, totals.weights_logprob, totals.memory_logprob, totals.logprob
        for part, logprob in zip(PARTS, parts, strict=True):
            if logprob is not None:
                metrics.loss_nats.labels(part).inc(max(-logprob, 0.0))
                metrics.loss_tokens.labels(part).inc(totals.tokens)
        if totals.gain is not None:
            metrics.gain_nats.labels("positive" if totals.gain >= 0 else "negative").inc(abs(totals.gain))


async def read_piece(
    state: SessionState,
    piece: Piece,
    *,
    learn: bool,
    top: int = 0,
    spaces: bool = False,
    own: bool = False,
) -> Reading:
    """Score a piece, then learn from it, a segment a batch step. `own` text was generated: not in the totals.

    Raises StateCorrupt when the session's state cannot be used; the state that was given stays as it is.
    """
    evaluator, adapted, guard, done = state.evaluator, state.adapted, state.loss_guard, 0
    updates, row_steps, guards = 0, 0, Counter[str]()
    scores: list[TokenScores] = []
    static: list[float] = []
    norms: list[float] = []
    try:
        while done < len(piece.ids):
            ids = piece.ids[done : done + evaluator.room(adapted)]
            begin = state.served.spaces if spaces else None
            chunk = evaluator.chunk(adapted, ids, learn=learn and not guard.frozen, top=top, spaces=begin)
            part = await compute(chunk)
            if part.state.expert_config.guarded:
                part, guard = _guarded(evaluator, guard, part, learn=learn)
            adapted, done = part.state, done + len(chunk.ids)
            updates += part.updates
            rows = len(adapted.expert_config.rates) - part.guards.count("step_skipped")
            row_steps += part.updates * rows
            guards.update(part.guards)
            norms += part.gradient_norms
            scores.append(part.scores)
            static += [] if part.static_logprobs is None else part.static_logprobs.tolist()
    except NonFiniteState as error:
        raise StateCorrupt("the session's state holds values that are not finite") from error
    columns = columns_of(
        piece,
        TokenScores.concatenate(scores) if scores else None,
        tuple(static) if adapted.expert_config.static else None,
        remembers=adapted.expert_config.remembers,
    )
    totals = Totals.of(columns, bytes=piece.bytes, words=piece.words, unknown=piece.unknown)
    sums = state.totals if own else _add(state.totals, totals)
    sums = replace(sums, updates=sums.updates + updates, guards=sums.guards + guards.total())
    return Reading(
        state=replace(state, adapted=adapted, totals=sums, place=piece.after, loss_guard=guard),
        columns=columns,
        totals=totals,
        updates=updates,
        row_steps=row_steps,
        guards=guards,
        gradient_norms=norms,
        adapted=len(piece.ids) if learn else 0,
        own=own,
    )


def _guarded(
    evaluator: DynamicEvaluator, guard: LossGuard, part: ObservedChunk, *, learn: bool
) -> tuple[ObservedChunk, LossGuard]:
    """A part under the loss guard of a single expert, beside which the frozen baseline reads."""
    static = () if part.static_logprobs is None else part.static_logprobs.tolist()
    ends = part.state.position % evaluator.segment == 0
    seen = guard.after(part.scores.logprobs.tolist(), static, ends=ends)
    if seen.lost:
        state = evaluator.reset(part.state, fast_weights=True, recurrent=False)
        part = replace(part, state=state, guards=(*part.guards, "reset"))
    elif seen.frozen and learn:
        part = replace(part, guards=(*part.guards, "frozen"))
    return part, seen.guard


def columns_of(
    piece: Piece,
    scores: TokenScores | None,
    static_logprobs: tuple[float, ...] | None,
    *,
    remembers: bool = False,
) -> Columns:
    """Per-token data of a piece; `scores` None is for a piece without tokens.

    Those of the weights and of the memory where one `remembers`.
    """
    told: dict[str, Any] = dict.fromkeys(("logprobs", "ranks", "entropies"), ())
    told |= dict.fromkeys(("weights_logprobs", "memory_logprobs"), ()) if remembers else {}
    columns = {} if scores is None else vars(scores)
    told |= {name: tuple(column.tolist()) for name, column in columns.items() if column is not None}
    top_ids, top_logprobs = told.pop("top_ids", None), told.pop("top_logprobs", None)
    return Columns(
        ids=tuple(piece.ids),
        static_logprobs=static_logprobs,
        starts=tuple(piece.starts),
        ends=tuple(piece.ends),
        top=None if top_ids is None else Alternatives(ids=top_ids, logprobs=top_logprobs),
        **told,
    )


def _add(sums: SessionTotals, totals: Totals) -> SessionTotals:
    added: dict[str, Any] = {"adapted_nats": sums.adapted_nats - totals.logprob}
    for part in ("static", "weights", "memory"):
        nats, logprob = getattr(sums, f"{part}_nats"), getattr(totals, f"{part}_logprob")
        added[f"{part}_nats"] = None if nats is None or logprob is None else nats - logprob
    return replace(sums, tokens=sums.tokens + totals.tokens, bytes=sums.bytes + totals.bytes, **added)
