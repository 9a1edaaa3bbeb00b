"""Marks: ids of the tokens of a kept text, by which a reader who lost his connection says what he has.

A mark holds where in the text the token stands and which chunk it is stored in, so that any replica finds
its way back without reading the text from its beginning, and a digest that ties it to one text.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final

from rlstm_server.errors import InvalidField

_FORM: Final = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})\.([0-9a-f]{16})")


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A token of a kept text: its index, the number of its chunk, and the index that this begins at."""

    index: int
    chunk: int
    first: int

    def write(self, session: str, operation_id: str) -> str:
        """The mark as it is sent, for the text that this operation writes into this session."""
        plain = f"{self.index}.{self.chunk}.{self.first}"
        return f"{plain}.{_tie(session, operation_id, plain)}"


def read_mark(written: str, session: str, operation_id: str) -> Mark:
    """Read what `write` wrote. Raises InvalidField when it is no mark of this text."""
    match = _FORM.fullmatch(written)
    if match is not None:
        index, chunk, first, tie = match.groups()
        mark = Mark(index=int(index), chunk=int(chunk), first=int(first))
        known = _tie(session, operation_id, f"{index}.{chunk}.{first}")
        if hmac.compare_digest(known, tie) and mark.first <= mark.index:
            return mark
    raise InvalidField("last-event-id", "last-event-id: no event of the text that this key stands for")


def _tie(session: str, operation_id: str, plain: str) -> str:
    return hashlib.sha256(f"rlstm mark\0{session}\0{operation_id}\0{plain}".encode()).hexdigest()[:16]
