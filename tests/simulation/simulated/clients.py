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
        request = getattr(self, f"_{kind}")(session, key)
        intent = Intent(name=name, kind=kind, session=session, key=key, request=request)
        self._world.intents.append(intent)
        return intent

    def _text(self) -> str:
        return "".join(self._draw.choices(LETTERS, k=self._draw.randint(1, 6)))

    def _if_match(self, session: str) -> int | None:
        return self._world.floors.get(session, 0) if self._draw.random() < 0.15 else None

    def _create(self, session: None, key: str | None) -> CreateSession:
        draw = self._draw
        return CreateSession(
            adaptation=AdaptationRequest(kind="output_bias", experts=draw.choice((1, 2)), static=True),
            ttl_seconds=self._world.profile.ttl_s,
            text=self._text() if draw.random() < 0.4 else None,
        ).by(replace(CALLER, key=key))

    def _append(self, session: str, key: str | None) -> AppendRequest:
        return AppendRequest(
            text=self._text(),
            learn=self._draw.random() < 0.9,
            scores=self._draw.choice(("tokens", "tokens", "totals", "none")),
        ).by(replace(CALLER, session=session, key=key, if_match=self._if_match(session)))

    def _generate(self, session: str, key: str | None) -> SessionGenerate:
        max_tokens = self._draw.choice((2, 5, 9))
        learns = self._draw.random() < 0.5
        call = replace(CALLER, session=session, key=key, if_match=self._if_match(session))
        return SessionGenerate(
            max_tokens=max_tokens, temperature=0.0, commit=True, learn_from_output=learns
        ).by(call)

    def _reset(self, session: str, key: str | None) -> ResetRequest:
        scope = self._draw.choice(("fast_weights", "recurrent", "both"))
        return ResetRequest(what=scope).by(
            replace(CALLER, session=session, key=key, if_match=self._if_match(session))
        )

    def _rank(self, session: str, key: str | None) -> CandidatesRequest:
        candidate = Candidate(id="p", text="abc")
        return CandidatesRequest(
            candidates=[candidate],
            min_version=self._world.floors.get(session) if self._draw.random() < 0.5 else None,
        ).by(replace(CALLER, session=session))

    def _update(self, session: str, key: str | None) -> UpdateRequest:
        learning = self._draw.choice((None, True, False))
        return UpdateRequest(metadata={"note": self._text()}, learning=learning).by(
            replace(CALLER, session=session, key=key, if_match=self._if_match(session))
        )

    def _name(self, session: str, key: str | None) -> SnapshotRequest:
        return SnapshotRequest(name=self._draw.choice(SNAPSHOTS)).by(
            replace(CALLER, session=session, key=key, if_match=self._if_match(session))
        )

    def _names(self, session: str, key: str | None) -> str:
        return session

    def _unname(self, session: str, key: str | None) -> tuple[str, str]:
        return session, self._snapshot(session)

    def _restore(self, session: str, key: str | None) -> RestoreRequest:
        return RestoreRequest(snapshot=self._snapshot(session)).by(
            replace(CALLER, session=session, key=key, if_match=self._if_match(session))
        )

    def _fork(self, session: str, key: str | None) -> ForkRequest:
        snapshot = self._snapshot(session) if self._draw.random() < 0.4 else None
        return ForkRequest(snapshot=snapshot).by(replace(CALLER, session=session, key=key))

    def _export(self, session: str, key: str | None) -> str:
        return session

    def _import(self, session: None, key: str | None) -> ImportRequest:
        return ImportRequest(data=self._draw.choice(self._world.exports)).by(replace(CALLER, key=key))

    def _snapshot(self, session: str) -> str:
        known = self._world.snapshots.get(session)
        return self._draw.choice(known if known and self._draw.random() < 0.8 else SNAPSHOTS)

    def _info(self, session: str, key: str | None) -> str:
        return session

    def _delete(self, session: str, key: str | None) -> str:
        return session

    # ---- pursuing them ----------------------------------------------------------------------------------

    async def pursue(self, intent: Intent, tries: int = TRIES) -> None:
        """Ask until it is known what became of it, or for so long; then perhaps once more, to be sure."""
        draw = self._draw
        for number in range(tries):
            if draw.random() < 0.08 and intent.key is not None:
                await asyncio.gather(self._ask(intent), self._ask(intent))
            else:
                await self._ask(intent)
            if intent.settled or (intent.key is None and intent.kind not in ENDS):
                break
            await asyncio.sleep(draw.random() * 2.0**number * 0.3)
        if intent.key is not None and intent.settled and draw.random() < 0.15:
            await self._ask(intent)
        if intent.kind == "append" and intent.key is not None and draw.random() < 0.08:
            await self._misuse(intent)

    async def _ask(self, intent: Intent) -> None:
        replica: Replica = self._world.replica_for(intent, self._draw)
        floor = self._world.floors.get(intent.session, 0)
        attempt = Attempt(intent, self._again(intent), replica.name, self._world.loop.time(), floor=floor)
        intent.attempts.append(attempt)
        patient = self._world.at_peace or self._draw.random() < 0.94
        patience = None if patient else self._draw.random() * 0.6
        self._world.asked(attempt)
        await replica.ask(attempt, work_of(attempt), patience_s=patience)
        self._world.told(attempt)

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
        await self._ask(misuse)


def work_of(attempt: Attempt) -> Work:
    """What the replica is asked to do."""
    kind, request = attempt.intent.kind, attempt.request
    call = CALLS.get(kind, kind)
    match kind:
        case "generate":
            return lambda engine: _read_stream(engine, request, attempt)
        case "export":
            return lambda engine: _read_export(engine, request)
        case "unname":
            session, name = request
            return lambda engine: engine.drop_snapshot(replace(CALLER, session=session), name)
        case "info" | "names" | "delete":
            return lambda engine: getattr(engine, call)(replace(CALLER, session=request))
        case _:
            return lambda engine: getattr(engine, call)(request)


CALLS: Final[dict[str, str]] = {
    "create": "create_session",
    "rank": "score_candidates",
    "info": "session_info",
    "misuse": "append",
    "name": "take_snapshot",
    "names": "list_snapshots",
    "import": "import_session",
}


async def _read_export(engine: Engine, session: str) -> tuple[int, bytes]:
    """Read a file to its end; its version, and its bytes."""
    exported = await engine.export(replace(CALLER, session=session))
    return exported.version, exported.data


async def _read_stream(engine: Engine, request: SessionGenerate, attempt: Attempt) -> None:
    """Read a stream to its end; every event reaches the client as it comes."""
    async with aclosing(engine.generate_in_session(request)) as events:
        async for batch in events:
            attempt.events += batch
