"""The engine: every request gets exactly one outcome.

The event loop checks, queues and commits; the device thread computes; the store decides. See session.py for the
life of a change.
"""

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from rlstm_model.vocab import Vocab
from rlstm_server.engine import answers, requests
from rlstm_server.engine.cache import SessionCache
from rlstm_server.engine.creation import Creator
from rlstm_server.engine.generation import continue_prompt, token_events
from rlstm_server.engine.keeping import Chunk, Progress, continue_session, keep_chunk, read_chunk
from rlstm_server.engine.messages import (
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
    GenerateRequest,
    GenerationEvent,
    GenerationSettings,
    Passage,
    ResetRequest,
    ScoreAnswer,
    ScoreItem,
    ScoreRequest,
    SessionGenerate,
    SessionInfo,
    SessionPage,
    Timings,
)
