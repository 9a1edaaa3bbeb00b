"""Frames of continuous text: numbered, kept until acknowledged, sent again. No input, no output."""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from rlstm_client import _problems, _read, _wire
from rlstm_client._call import Call, encode, new_key
from rlstm_client.errors import AppendProgress, UnreadableAnswerError
from rlstm_client.models import AppendResult

WINDOW: Final = 8
"""Frames under way: as many answers the server's store keeps whole, for a frame that is sent again."""

FRAME_BYTES: Final = 1024
"""Of text in a frame: the answer about so many bytes is short enough to be kept whole, columns and all."""


class _Frame(NamedTuple):
    seq: int
    text: str
    content: str


class Frames:
    """The frames of one stream into a session, and the answers to them, which come in the same order."""

    def __init__(self, session_id: str, *, learn: bool | None = None, **options: Any) -> None:
        self._learn = learn
        self._name = new_key()
        self._open: deque[_Frame] = deque()
        self._sent = 0
        self._characters = 0
        given = {"stream": self._name} | {name: value for name, value in options.items() if value is not None}
        self.call: Call[AppendResult] = Call(
            method="POST",
            path=f"{_wire.session_path(session_id, 'stream')}?{urlencode(given)}",
            read=_read.append_result,
            headers={"Idempotency-Key": self._name},
            resumable=True,
        )

    @property
    def unacknowledged(self) -> list[str]:
        """What is to be sent again on a new connection, in this order."""
        return [frame.content for frame in self._open]

    def make(self, text: str, *, final: bool = False) -> str:
        """Number a text and give the frame to send."""
        self._sent += 1
        body = {"seq": self._sent, "text": text, "learn": self._learn, "final": final or None}
        frame = _Frame(self._sent, text, encode(body).decode())
        self._open.append(frame)
        return frame.content

    def take(self, message: str | bytes) -> AppendResult | None:
        """Read what the server sent: the answer to the oldest frame, or None where it only greets.

        Raises:
            APIError: what the server closes the connection for.
            UnreadableAnswerError: the answer is not what this client expects.
        """
        fields = _object(message)
        match fields.get("type"):
            case "ready":
                return None
            case "error":
                problem = fields.get("problem")
                document: Mapping[str, Any] = problem if isinstance(problem, dict) else {}
                raise _problems.from_problem(_status(document), document)
            case "scores" if self._open and fields.get("seq") == self._open[0].seq:
                answer = _read.append_result(fields)
                self._characters += len(self._open.popleft().text)
                known = {name: value for name, value in answer.extra.items() if name not in ("type", "seq")}
                return replace(answer, extra=known)
        raise UnreadableAnswerError("the server acknowledged what was not sent", applied="unknown")

    def progress(self) -> AppendProgress:
        """Say how much of the whole stream is in the session for certain, and what is on its way."""
        under_way = [(frame.text, f"stream:{self._name}:{frame.seq}") for frame in self._open]
        piece, key = under_way[0] if under_way else (None, None)
        return AppendProgress(
            answer=None, characters=self._characters, piece=piece, key=key, following=under_way[1:]
        )


def _object(message: str | bytes) -> dict[str, Any]:
    try:
        fields = json.loads(message)
    except (ValueError, RecursionError) as error:
        raise UnreadableAnswerError(f"a frame is not JSON: {error}", applied="unknown") from error
    if not isinstance(fields, dict):
        raise UnreadableAnswerError("a frame is no object", applied="unknown")
    return fields


def _status(document: Mapping[str, Any]) -> int:
    status = document.get("status")
    return status if isinstance(status, int) else 500
