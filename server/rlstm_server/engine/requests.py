"""What every request goes through before any work: limits, and the digest that tells a repeat."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import orjson

from rlstm_server.engine.text import Piece
from rlstm_server.errors import InvalidField, InvalidText, NotFound, TooLarge
from rlstm_server.schemas.generation import CompletionRequest, GenerationSettings
from rlstm_server.schemas.sessions import AppendRequest, CandidatesRequest, CreateSession
from rlstm_server.schemas.text import AdaptationRequest, EngineLimits, Passage, ScoreRequest
from rlstm_server.store.base import MAX_NAME_BYTES, MAX_TTL_MS, SessionKey

SMALL: Final = 4_096
"""Characters or ids that are read at once."""

STATE_BYTES: Final = 1 << 18
"""Of a state that are read or written at once: some tenths of a millisecond."""
MAX_RATE_SCALE: Final = 10.0
MAX_PENDING: Final = 4_096
"""Characters that wait for the end of their word. Every record of a session carries them."""
MAX_METADATA_BYTES: Final = 16_384

Result = TypeVar("Result")


def request_digest(operation: str, **fields: Any) -> bytes:
    """Give the SHA-256 of an operation and its fields. Raises InvalidText for a string that is not text."""
    try:
        return hashlib.sha256(orjson.dumps([operation, fields], option=orjson.OPT_SORT_KEYS)).digest()
    except TypeError as error:
        raise InvalidText("a string holds a lone surrogate") from error


def append_digest(request: AppendRequest) -> bytes:
    """Give that of an append, whose text may be long: it is hashed as it is. Raises InvalidText."""
    said = (request.session, request.learn, request.final, request.scores, request.text is None)
    given = str(request.tokens) if request.text is None else request.text
    try:
        return hashlib.sha256(f"append {said}\n{given}".encode()).digest()
    except UnicodeEncodeError as error:
        raise InvalidText("a string holds a lone surrogate") from error


async def off_loop(size: int, work: Callable[[], Result], small: int = SMALL) -> Result:
    """Do work whose time grows with `size` beside the event loop, when that is more than `small`."""
    return await asyncio.to_thread(work) if size > small else work()


def size_of(passage: Passage | None) -> int:
    """Characters or ids of a passage."""
    if passage is None:
        return 0
    return len(passage.text if passage.text is not None else passage.tokens or ())


def within(what: str, given: int, limit: int) -> None:
    """Raise TooLarge when `given` is over the limit."""
    if given > limit:
        raise TooLarge(what, given, limit)


def check_append(piece: Piece, limits: EngineLimits) -> Piece:
    """Raise TooLarge when a piece is too long for one append, or leaves too long a word unfinished."""
    within("tokens of one append", len(piece.ids), limits.append_tokens)
    within("characters of an unfinished word", len(piece.after.pending), MAX_PENDING)
    return piece


def check_score(request: ScoreRequest, limits: EngineLimits) -> None:
    """Raise TooLarge or InvalidField for a score request that cannot be taken."""
    if not request.named_items:
        raise InvalidField("items", "there are no items")
    within("items", len(request.named_items), limits.score_items)
    within("top", request.top, limits.top)
    if request.learning is not None:
        check_adaptation(request.learning)


def check_adaptation(asked: AdaptationRequest) -> None:
    """Raise InvalidField for a rate out of bounds."""
    if not 0 <= asked.rate_scale <= MAX_RATE_SCALE:
        raise InvalidField("adaptation.rate_scale", f"rate_scale must lie in [0, {MAX_RATE_SCALE:g}]")


def check_create(request: CreateSession) -> None:
    """Raise InvalidField, InvalidText or TooLarge for a session that cannot be made."""
    check_adaptation(request.adaptation)
    check_facts(name=request.name, ttl_seconds=request.ttl_seconds, metadata=request.metadata)


def check_facts(
    *, name: str | None = None, ttl_seconds: float | None = None, metadata: Mapping[str, Any] | None = None
) -> None:
    """Raise InvalidField, InvalidText or TooLarge for what cannot be said of a session."""
    if name is not None and not 1 <= len(_utf8(name)) <= MAX_NAME_BYTES:
        raise InvalidField("name", f"name must be 1 to {MAX_NAME_BYTES} bytes long")
    if ttl_seconds is not None and not 0.001 <= ttl_seconds <= MAX_TTL_MS / 1000:
        raise InvalidField("ttl_seconds", f"ttl_seconds must be 0.001 to {MAX_TTL_MS // 1000}")
    if metadata is not None:
        check_metadata(metadata)


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Raise TooLarge for metadata that are too long as JSON, InvalidText for a string that is no text."""
    try:
        size = len(orjson.dumps(metadata))
    except TypeError as error:
        raise InvalidText("metadata: a string holds a lone surrogate") from error
    within("bytes of metadata", size, MAX_METADATA_BYTES)


def _utf8(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        raise InvalidText("name: holds a lone surrogate") from error


def check_candidates(request: CandidatesRequest, limits: EngineLimits) -> None:
    """Raise TooLarge or InvalidField for candidates that cannot be ranked."""
    if not request.candidates:
        raise InvalidField("candidates", "there are no candidates")
    within("candidates", len(request.candidates), limits.candidates)


def check_completion(request: CompletionRequest, limits: EngineLimits) -> None:
    """Raise TooLarge or InvalidField for prompts that cannot be read and continued."""
    if not request.prompts:
        raise InvalidField("prompt", "there is no prompt")
    within("number of prompts", len(request.prompts), limits.score_items)
    within("logprobs", request.top, limits.top)
    settings = request.settings
    check_generation(settings, limits, least=0)
    tokens = len(request.prompts) * settings.choices * settings.max_tokens
    within("prompts x n x max_tokens", tokens, limits.max_tokens)
    if request.adaptation is not None:
        check_adaptation(request.adaptation)


def check_generation(settings: GenerationSettings, limits: EngineLimits, *, least: int = 1) -> None:
    """Raise TooLarge or InvalidField for settings that cannot be met."""
    if settings.max_tokens < least:
        raise InvalidField("max_tokens", f"max_tokens must be at least {least}")
    if settings.choices < 1:
        raise InvalidField("n", "n must be at least 1")
    within("n", settings.choices, limits.choices)
    within("n x max_tokens", settings.choices * settings.max_tokens, limits.max_tokens)
    within("stop strings", len(settings.stop), limits.stop_strings)
    if any(not stop for stop in settings.stop):
        raise InvalidField("stop", "a stop string is empty")
    longest = max((len(stop) for stop in settings.stop), default=0)
    within("characters of a stop string", longest, limits.stop_characters)


def session_key(tenant: str, session: str) -> SessionKey:
    """The key of a session. Raises NotFound for an id that cannot be one."""
    try:
        return SessionKey(tenant, session)
    except ValueError as error:
        raise NotFound from error
