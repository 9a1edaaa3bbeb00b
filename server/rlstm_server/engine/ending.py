"""The end of a session: what is under way ends with it, and its memory is given back."""

from functools import partial

from rlstm_server.engine.session import Sessions
from rlstm_server.errors import Gone, NotFound, StateCorrupt
from rlstm_server.store.base import SessionKey


async def end_session(sessions: Sessions, key: SessionKey) -> None:
    """End a session for good; again and again while its tombstone lives. Raises NotFound, Gone.

    Once the store has buried it nobody commits to it any more, so what waits in its queue is told so. One
    that cannot be read, of another version's form too, can be ended.
    """
    live = True
    try:
        await sessions.store.load_head(key, with_state=False)
    except Gone:
        live = False
    except StateCorrupt:
        pass
    try:
        await sessions.store.delete(key)
    except Gone as error:
        sessions.end(key, partial(Gone, error.reason))
        raise
    except NotFound:
        sessions.end(key, NotFound)
        raise
    sessions.end(key, partial(Gone, "deleted"))
    if live:
        sessions.metrics.sessions_ended.labels("closed").inc()
