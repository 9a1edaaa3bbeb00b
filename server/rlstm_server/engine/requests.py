"""What every request goes through before any work: limits, and the digest that tells a repeat."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import orjson

from rlstm_server.caller import Call
from rlstm_server.engine.reading import Piece
from rlstm_server.errors import InvalidText, TooLarge
from rlstm_server.schemas.generation import CompletionRequest, GenerationSettings
from rlstm_server.schemas.wire import Request
from rlstm_server.settings import Limits
from rlstm_server.store.base import SessionKey

SMALL: Final = 4_096
"""Characters or ids that are read at once."""

STATE_BYTES: Final = 1 << 18
"""Of a state that are read or written at once: some tenths of a millisecond."""
MAX_PENDING: Final = 4_096
"""Characters that wait for the end of their word. Every record of a session carries them."""
MAX_METADATA_BYTES: Final = 16_384

UNDIGESTED: Final = {"unit", "logprobs", "stream", "min_version", "data"}
"""Fields that say how to answer, or when to refuse: a repeat may have others. Data have their own digest."""

Result = TypeVar("Result")


def digest(request: Request, **more: object) -> bytes:
    """Tell this request from another with the same key, and one part of its work from the others."""
    fields = request.model_dump(exclude=UNDIGESTED)
    if metadata := fields.get("metadata"):
        fields["metadata"] = sorted(metadata.items())  # the order of a JSON object says nothing
    said = (type(request).__name__, request.call.session, fields, more)
    return hashlib.sha256(repr(said).encode()).digest()


async def off_loop(size: int, work: Callable[[], Result], small: int = SMALL) -> Result:
    """Do work whose time grows with `size` beside the event loop, when that is more than `small`."""
    return await asyncio.to_thread(work) if size > small else work()


def within(what: str, given: int, limit: int) -> None:
    """Raise TooLarge when `given` is over the limit."""
    if given > limit:
        raise TooLarge(what, given, limit)


def check_append(piece: Piece, limits: Limits) -> Piece:
    """Raise TooLarge when a piece is too long for one append, or leaves too long a word unfinished."""
    within("tokens of one append", len(piece.ids), limits.append_tokens)
    within("characters of an unfinished word", len(piece.after.pending), MAX_PENDING)
    return piece


def check_note(note: str, limits: Limits) -> None:
    """Raise TooLarge for a note that is too long in UTF-8, InvalidText for one that is no text."""
    try:
        size = len(note.encode())
    except UnicodeEncodeError as error:
        raise InvalidText("note: it holds a lone surrogate") from error
    within("bytes of a note (RLSTM_LIMITS__NOTE_BYTES)", size, limits.note_bytes)


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Raise TooLarge for metadata that are too long as JSON, InvalidText for a string that is no text."""
    try:
        size = len(orjson.dumps(metadata))
    except TypeError as error:
        raise InvalidText("metadata: a string holds a lone surrogate") from error
    within("bytes of metadata", size, MAX_METADATA_BYTES)


def check_completion(request: CompletionRequest, limits: Limits) -> None:
    """Raise TooLarge for prompts that are too many, or written too much to."""
    within("number of prompts", len(request.prompts), limits.score_items)
    check_generation(request.settings, limits)
    tokens = len(request.prompts) * request.settings.choices * request.settings.max_tokens
    within("prompts x n x max_tokens", tokens, limits.generate_tokens)


def check_generation(settings: GenerationSettings, limits: Limits) -> None:
    """Raise TooLarge where too much would be written."""
    within("n x max_tokens", settings.choices * settings.max_tokens, limits.generate_tokens)


def session_key(call: Call) -> SessionKey:
    """The session that is asked for."""
    return SessionKey(call.tenant, call.session)
