"""Clients: random wishes for sessions that they share, pursued with the patience of a good client.

A client with a key asks again until it knows what became of its wish; one without asks once.
"""

import asyncio
import random
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

from rlstm_server.caller import Call
from rlstm_server.engine.engine import Engine
from rlstm_server.schemas.generation import SessionGenerate
from rlstm_server.schemas.sessions import (
    AppendRequest,
    Candidate,
    CandidatesRequest,
    CreateSession,
    ForkRequest,
    ImportRequest,
    ResetRequest,
    RestoreRequest,
    SnapshotRequest,
    UpdateRequest,
)
from rlstm_server.schemas.text import AdaptationRequest
from rlstm_server.schemas.wire import Request
from simulated.replica import Replica, Work
from simulated.told import Attempt, Intent

TENANT: Final = "acme"
CALLER: Final = Call(tenant=TENANT, request_id="r", endpoint="test")
LETTERS: Final = "abcdefghij."
SNAPSHOTS: Final = ("first", "second")
TRIES: Final = 5

WISHES: Final = {
    "append": 10,
    "generate": 2,
    "reset": 1,
    "rank": 2,
    "info": 1,
    "create": 1,
    "delete": 0.5,
    "update": 0.7,
    "name": 2,
    "names": 0.5,
    "unname": 0.3,
    "restore": 2,
    "fork": 1.5,
    "export": 0.4,
}
READS: Final = frozenset({"rank", "info", "names", "export"})
MAKES: Final = frozenset({"create", "fork", "import"})
"""What makes a session."""

ENDS: Final = frozenset({"delete", "unname"})
"""What may be asked for again without a key: it is the same once or twice."""

UNKEYED: Final = READS | ENDS
MATCHING: Final = frozenset({"append", "generate", "reset", "update", "name", "restore"})
"""What may insist on a version."""


class Client:
    """One client. `world` knows the sessions, the replicas and the time."""

    def __init__(self, name: str, world: Any, draw: random.Random) -> None:
        self.name = name
        self._world, self._draw = world, draw
        self._count = 0

    async def live(self, wishes: int) -> None:
        """Wish for so many things, one after the other."""
        for _ in range(wishes):
            await self.pursue(self._wish())
            await asyncio.sleep(0.0 if self._world.profile.crowd else self._draw.random() * 0.3)

    # ---- wishes -----------------------------------------------------------------------------------------

    def _wish(self) -> Intent:
        draw, sessions = self._draw, self._world.sessions
        if self._world.profile.crowd and sessions:
            return self.intent("append", sessions[0], keyed=True)
        kind = draw.choices(list(WISHES), list(WISHES.values()))[0] if sessions else "create"
        if self._world.exports and draw.random() < 0.1:
            kind = "import"
        session = draw.choice(sessions) if kind not in ("create", "import") else None
        if kind == "restore" and session not in self._world.snapshots and draw.random() < 0.8:
            kind = "name"
        return self.intent(kind, session, keyed=draw.random() < 0.75)

    def intent(self, kind: str, session: str | None, *, keyed: bool) -> Intent:
        """Something to wish for."""
        self._count += 1
        name = f"{self.name}.{self._count}.{kind}"
        key = name if keyed else None
        call = replace(CALLER, session=session or "", key=None if kind in UNKEYED else key)
        if kind in MATCHING and self._draw.random() < 0.15:
            call = replace(call, if_match=self._world.floors.get(session, 0))
        request = self._request(kind, session)
        asked = call if request is None else request.by(call)
        intent = Intent(name=name, kind=kind, session=session, key=key, request=asked)
        self._world.intents.append(intent)
        return intent

    def _request(self, kind: str, session: str | None) -> Request | None:
        """What is asked for; None where the call says it all."""
        draw, world = self._draw, self._world
        match kind:
            case "create":
                return CreateSession(
                    adaptation=AdaptationRequest(
                        kind="output_bias", experts=draw.choice((1, 2)), static=True
                    ),
                    ttl_seconds=world.profile.ttl_s,
                    text=self._text() if draw.random() < 0.4 else None,
                )
            case "append":
                scores = draw.choice(("tokens", "tokens", "totals", "none"))
                return AppendRequest(text=self._text(), learn=draw.random() < 0.9, scores=scores)
            case "generate":
                most, learns = draw.choice((2, 5, 9)), draw.random() < 0.5
                return SessionGenerate(
                    max_tokens=most, temperature=0.0, commit=True, learn_from_output=learns
                )
            case "reset":
                return ResetRequest(what=draw.choice(("fast_weights", "recurrent", "both")))
            case "rank":
                floor = world.floors.get(session) if draw.random() < 0.5 else None
                return CandidatesRequest(candidates=[Candidate(id="p", text="abc")], min_version=floor)
            case "update":
                learning = draw.choice((None, True, False))
                return UpdateRequest(metadata={"note": self._text()}, learning=learning)
            case "name":
                return SnapshotRequest(name=draw.choice(SNAPSHOTS))
            case "restore" | "unname":
                return RestoreRequest(snapshot=self._snapshot(session))
            case "fork":
                return ForkRequest(snapshot=self._snapshot(session) if draw.random() < 0.4 else None)
            case "import":
                return ImportRequest(data=draw.choice(world.exports))
            case _:
                return None

    def _text(self) -> str:
        return "".join(self._draw.choices(LETTERS, k=self._draw.randint(1, 6)))

    def _snapshot(self, session: str | None) -> str:
        known = self._world.snapshots.get(session)
        return self._draw.choice(known if known and self._draw.random() < 0.8 else SNAPSHOTS)

    # ---- pursuing them ----------------------------------------------------------------------------------

    async def pursue(self, intent: Intent, tries: int = TRIES) -> None:
        """Ask until it is known what became of it, or for so long; then perhaps once more, to be sure."""
        draw = self._draw
        for number in range(tries):
            if draw.random() < 0.08 and intent.key is not None:
                await asyncio.gather(self.ask(intent), self.ask(intent))
            else:
                await self.ask(intent)
            if intent.settled or (intent.key is None and intent.kind not in ENDS):
                break
            await asyncio.sleep(draw.random() * 2.0**number * 0.3)
        if intent.key is not None and intent.settled and draw.random() < 0.15:
            await self.ask(intent)
        if intent.kind == "append" and intent.key is not None and draw.random() < 0.08:
            await self._misuse(intent)

    async def ask(self, intent: Intent, replica: Replica | None = None) -> Attempt:
        """Ask once: this replica, or one that seems to be up."""
        replica = replica or self._world.replica_for(intent, self._draw)
        floor = self._world.floors.get(intent.session, 0)
        attempt = Attempt(intent, self._again(intent), replica.name, self._world.loop.time(), floor=floor)
        intent.attempts.append(attempt)
        patient = self._world.at_peace or self._draw.random() < 0.94
        patience = None if patient else self._draw.random() * 0.6
        self._world.asked(attempt)
        await replica.ask(attempt, work_of(attempt), patience_s=patience)
        self._world.told(attempt)
        return attempt

    def _again(self, intent: Intent) -> Any:
        """The request of an intent; a reader whose stream broke off may say which event came last."""
        had = [
            event.mark for attempt in intent.attempts for event in attempt.events if hasattr(event, "mark")
        ]
        if intent.kind == "generate" and intent.key is not None and had and self._draw.random() < 0.5:
            return intent.request.by(replace(intent.request.call, after=had[-1]))
        return intent.request

    async def _misuse(self, intent: Intent) -> None:
        """Ask for something else under a key that was used."""
        if not any(attempt.outcome == "answered" for attempt in intent.attempts):
            return
        other = intent.request.model_copy(update={"text": intent.request.text + "j"})
        misuse = Intent(f"{intent.name}.misuse", "misuse", intent.session, intent.key, other)
        self._world.intents.append(misuse)
        await self.ask(misuse)


def work_of(attempt: Attempt) -> Work:
    """What the replica is asked to do."""
    kind, request = attempt.intent.kind, attempt.request
    match kind:
        case "generate":
            return lambda engine: _read_stream(engine, request, attempt)
        case "unname":
            return lambda engine: engine.drop_snapshot(request.call, request.snapshot)
        case _:
            return lambda engine: getattr(engine, CALLS.get(kind, kind))(request)


CALLS: Final[dict[str, str]] = {
    "create": "create_session",
    "rank": "score_candidates",
    "info": "session_info",
    "misuse": "append",
    "name": "take_snapshot",
    "names": "list_snapshots",
    "import": "import_session",
}


async def _read_stream(engine: Engine, request: SessionGenerate, attempt: Attempt) -> None:
    """Read a stream to its end; every event reaches the client as it comes."""
    async with aclosing(engine.generate_in_session(request)) as events:
        async for batch in events:
            attempt.events += batch
