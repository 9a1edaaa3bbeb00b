"""Sessions as files that travel."""

from rlstm_server.engine import requests
from rlstm_server.engine.models import Models
from rlstm_server.engine.state import Header, SessionCopy, SessionState, Unreadable, read, write
from rlstm_server.errors import ImportRejected, InputError, ModelMismatch
from rlstm_server.schemas.text import MAX_RATE_SCALE

_ROUNDING = 1.001
"""What a norm may be beyond its bound, when it is taken in another order."""


def write_file(copy: SessionCopy) -> bytes:
    """A session as a file. Raises StateCorrupt for one that is not finite."""
    return write(
        copy.state,
        tenant="",
        session=copy.key.session_id,
        version=copy.revision.version,
        learning=copy.facts.learning,
        metadata=dict(copy.facts.metadata),
    )


def read_file(data: bytes, models: Models) -> tuple[Header, SessionState]:
    """The session in a file. Raises ImportRejected."""
    try:
        header, state = read(data, models)
        requests.check_metadata(header.metadata)
    except Unreadable as error:
        raise ImportRejected(f"the file is no session that this server can take: {error}") from None
    except ModelMismatch as error:
        raise ImportRejected(error.detail) from None
    except InputError:
        raise ImportRejected("the metadata are too long, or no text") from None
    state = state.measured()  # what a file says of its norms is not believed
    _check_bounds(state)
    return header, state


def _check_bounds(state: SessionState) -> None:
    """Raise ImportRejected for what no session comes to by reading."""
    most = state.evaluator.calibration.config.max_norm_ratio * _ROUNDING
    if state.adapted.rate_scale > MAX_RATE_SCALE or not state.norm_ratio <= most:
        raise ImportRejected("the state is out of bounds")
    if len(state.place.pending) > requests.MAX_PENDING:
        raise ImportRejected("the state holds back more text than a session may")
