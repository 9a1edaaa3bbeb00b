"""Where a page of a listing begins: after the session with this time of creation and this id."""

import re
from typing import Final

from rlstm_server.errors import InvalidField

_CURSOR: Final = re.compile(r"([0-9]{1,15})\.([a-z0-9]{1,64})")


def write_cursor(created_at_ms: int, session_id: str) -> str:
    """Return the cursor of the page after this session."""
    return f"{created_at_ms}.{session_id}"


def read_cursor(cursor: str | None) -> tuple[int, str]:
    """Return the last session before a page as (created_at_ms, session_id); (0, "") for the first page.

    Raises errors.InvalidField if it is not a cursor.
    """
    if cursor is None:
        return 0, ""
    matched = _CURSOR.fullmatch(cursor)
    if matched is None:
        raise InvalidField("cursor", "cursor must be the one that came with the page before")
    return int(matched[1]), matched[2]
