"""Where a stream of text stands: what its tokens span, and what is held back.

A session's spans count code points from the beginning of its stream. Text that is appended always holds
whole characters; token ids may cut a character of a byte vocabulary between two appends, so the ids of an
unfinished character are part of the place. A word vocabulary holds back the word in progress.
"""

import io
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rlstm_model.vocab import InvalidText as VocabInvalidText
from rlstm_model.vocab import InvalidToken as VocabInvalidToken
from rlstm_model.vocab import Vocab
from rlstm_server.errors import InvalidField, InvalidText, InvalidToken
from rlstm_server.schemas.text import Passage


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place in a stream.

    characters   code points before it, those of `unfinished` and `pending` not counted
    pending      text that waits for more before it can become tokens
    unfinished   ids whose character is not complete yet
    """

    characters: int = 0
    pending: str = ""
    unfinished: tuple[int, ...] = ()


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


START = Place()
EMPTY = Piece(ids=[], starts=[], ends=[], bytes=0, words=0, unknown=0, text="", after=START)
WORD: Final = re.compile(r"\S+")


def read_passage(
    vocab: Vocab, passage: Passage, field: str, *, place: Place = START, final: bool = True
) -> Piece:
    """The tokens of a passage at `place`. Without `final`, text that may go on is held back.

    Raises InvalidText, InvalidToken, and InvalidField (naming `field`) for an empty passage.
    """
    if passage.text == "" and not (final and place.pending):
        raise InvalidField(_name(field, "text"), "the text is empty")
    if passage.tokens == ():
        raise InvalidField(_name(field, "tokens"), "there are no tokens")
    try:
        if passage.text is not None:
            return _read_text(vocab, passage.text, place, final=final)
        return _read_tokens(vocab, passage.tokens or (), place)
    except VocabInvalidText as error:
        raise InvalidText(f"{_name(field, 'text')}: {error}", field=_name(field, "text")) from None
    except VocabInvalidToken as error:
        name = _name(field, "tokens")
        raise InvalidToken(f"{name}: {error} (0 to {vocab.size - 1})", field=name) from None


def read_context(vocab: Vocab, passage: Passage | None, field: str) -> Piece | None:
    """The tokens before a text; None where there are none, which is the beginning of all text."""
    if passage is None or passage in (Passage(text=""), Passage(tokens=())):
        return None
    piece = read_passage(vocab, passage, field)
    return piece if piece.ids else None


def _name(field: str, kind: str) -> str:
    return f"{field}.{kind}" if field else kind


def _read_text(vocab: Vocab, text: str, place: Place, *, final: bool) -> Piece:
    if place.unfinished:  # an unfinished character is given up: it reads as U+FFFD
        lost = vocab.decode(place.unfinished)
        place = replace(place, characters=place.characters + len(lost), unfinished=())
    ready, held = vocab.split_pending(place.pending + text, final=final)
    if held:
        vocab.encode(held)  # a lone surrogate is refused now, not when the word is complete
    encoded = vocab.encode(ready)
    return Piece(
        ids=encoded.ids,
        starts=_moved(encoded.starts, place.characters),
        ends=_moved(encoded.ends, place.characters),
        bytes=len(ready.encode()),
        words=_count_words(ready),
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
        words=_count_words(text),
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
        open_ids.append(token)
        waiting += 1
        piece = decoder.feed(token)
        if piece:
            starts.extend([at] * waiting)
            ends.extend([at + len(piece)] * waiting)
            at += len(piece)
            text.write(piece)
            waiting, open_ids = 0, []
    starts.extend([at] * waiting)
    ends.extend([at + 1] * waiting)
    return starts, ends, text.getvalue(), Place(characters=at, unfinished=tuple(open_ids))


def _moved(spans: Sequence[int], by: int) -> Sequence[int]:
    """Spans in a stream, of spans in a text that begins at `by`."""
    return array("q", (by + place for place in spans)) if by else spans


def _count_words(text: str) -> int:
    """Count runs without white space, one after the other: splitting a long text holds up other threads."""
    return sum(1 for _ in WORD.finditer(text))


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
