"""Where load goes: to an engine of this process, or to a server over HTTP."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import orjson

from benchmarks.serving.load import Rounds
from benchmarks.serving.process import rounds_of
from rlstm_server.caller import Call
from rlstm_server.engine.engine import Engine
from rlstm_server.metrics import Metrics, Phase
from rlstm_server.schemas.sessions import AppendRequest, CreateSession
from rlstm_server.schemas.text import AdaptationRequest, ScoreDetail


class RequestFailed(Exception):
    """The server refused a request or failed at it; says with which status, and why."""


@dataclass(frozen=True, kw_only=True)
class EngineTarget:
    """An engine, as one tenant asks it. Sessions learn by ``asked``."""

    engine: Engine
    tenant: str
    asked: AdaptationRequest
    scores: ScoreDetail

    async def create(self) -> str:
        """Make a session; its id."""
        made = await self.engine.create_session(CreateSession(adaptation=self.asked).by(self._call()))
        return made.info.id

    async def append(self, session: str, text: str) -> int:
        """Append a text; the tokens that it was."""
        answer = await self.engine.append(
            AppendRequest(text=text, scores=self.scores).by(self._call(session))
        )
        return answer.totals.tokens if answer.totals else 0

    async def delete(self, session: str) -> None:
        """End a session."""
        await self.engine.delete(self._call(session))

    def _call(self, session: str = "") -> Call:
        return Call(tenant=self.tenant, request_id="bench", session=session)


@dataclass(frozen=True, kw_only=True)
class HttpTarget:
    """A server, as the owner of ``key`` asks it."""

    client: httpx.AsyncClient
    key: str
    asked: AdaptationRequest
    scores: ScoreDetail

    async def create(self, tokens: Sequence[int] | None = None) -> str:
        """Make a session, with a first text if one is given; its id."""
        learning = {
            "kind": self.asked.kind,
            "num_fast_weights": self.asked.num_fast_weights,
            "experts": self.asked.experts,
            "static": self.asked.static,
        }
        body = {"adaptation": learning, "scores": "none"} | ({} if tokens is None else {"tokens": tokens})
        made: str = orjson.loads(await self._send("POST", "/sessions", body))["id"]
        return made

    async def append(self, session: str, text: str) -> int:
        """Append a text; the tokens that it was."""
        body = {"text": text, "scores": self.scores}
        answer = orjson.loads(await self._send("POST", f"/sessions/{session}/append", body))
        tokens: int = answer["totals"]["tokens"]
        return tokens

    async def delete(self, session: str) -> None:
        """End a session."""
        await self._send("DELETE", f"/sessions/{session}")

    async def metrics(self) -> str:
        """All that the server counts, in Prometheus' text form."""
        return (await self._send("GET", "/metrics")).decode()

    async def _send(self, method: str, path: str, body: Any = None) -> bytes:
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        content = None if body is None else orjson.dumps(body)
        response = await self.client.request(method, path, content=content, headers=headers)
        if response.is_error:
            raise RequestFailed(f"{method} {path}: {response.status_code}: {response.text[:500]}")
        return response.content


class TimedMetrics(Metrics):
    """Metrics of an engine in this process, with the seconds of each batch step."""

    def __init__(self) -> None:
        super().__init__()
        self.each: list[float] = []

    def batch_step_finished(
        self, seconds: float, rows: Mapping[Phase, int], tokens: Mapping[Phase, int]
    ) -> None:
        """Count one more."""
        super().batch_step_finished(seconds, rows, tokens)
        self.each.append(seconds)

    async def read(self) -> Rounds:
        """The steps so far."""
        return replace(rounds_of(self.exposition()[0].decode()), each=tuple(self.each))
