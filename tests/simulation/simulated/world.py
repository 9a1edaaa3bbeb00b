"""The simulated world: clients, replicas and one store, what is known of them, and what goes wrong.

Everything in it follows from the seed. When the clients have had their wishes, all faults end, what is still
unknown is asked for until it is known, and every replica must serve every session.
"""

import asyncio
import random
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

from rlstm_server.metrics import Metrics
from rlstm_server.store.base import SessionKey
from simulated.clients import MAKES, READS, TENANT, Client
from simulated.loop import Host, SimulatedLoop, on
from simulated.network import Call, Network
from simulated.profile import Profile
from simulated.replica import Replica
from simulated.storage import Storage, finished
from simulated.told import Attempt, Intent, version_told

QUIET_S: Final = 15.0
"""So long after the last fault every message has arrived."""


@cache
def metrics() -> Metrics:
    """What all replicas of all worlds count into: a registry of its own takes longer to make than a seed."""
    return Metrics()


class World:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(f"world {seed}")
        self.profile = Profile.of(self.draw)
        self.loop = SimulatedLoop(random.Random(f"order {seed}"))
        self.storage = Storage(self.loop, self.profile.limits, self.profile.durability)
        self.sessions: list[str] = []
        self.floors: dict[str | None, int] = {}
        self.snapshots: dict[str, list[str]] = {}
        self.exports: list[bytes] = []
        self.intents: list[Intent] = []
        self.trace: list[tuple[float, str, Any]] = []
        self.wrong: list[str] = []
        self.at_peace = False
        self._aims: Counter[tuple[str, str]] = Counter()

    # ---- the course of things ---------------------------------------------------------------------------

    def build(self) -> None:
        """Start everything; clocks and random bits are the seed's by now."""
        profile, draw = self.profile, self.draw
        self.network = Network(
            self.loop,
            self.storage,
            random.Random(draw.random()),
            profile.rate,
            profile.slow_s,
            self.see,
        )
        self.replicas = [self._replica(f"r{number}") for number in range(profile.replicas)]
        for fuse in profile.fuses:
            self._set_fuse(draw.choice(self.replicas), fuse)

    async def run(self) -> None:
        """From the first wish to the last."""
        draw, profile = self.draw, self.profile
        clients = [
            Client(f"c{number}", self, random.Random(draw.random())) for number in range(profile.clients)
        ]
        events = [asyncio.ensure_future(self._event(at, kind)) for at, kind in profile.events]
        await asyncio.gather(*(client.live(profile.wishes) for client in clients))
        for event in events:
            event.cancel()
        await self._make_peace()
        await self._ask_again(clients[0])
        await self._everybody_serves(clients[0])

    async def end(self) -> None:
        """Stop every replica as SIGTERM does."""
        for replica in self.replicas:
            replica.check()
            await replica.drain(5.0)

    # ---- what clients see -------------------------------------------------------------------------------

    def replica_for(self, intent: Intent, draw: random.Random) -> Replica:
        """Where a request goes: to one that seems to be up, and with a good proxy always to the same."""
        up = [replica for replica in self.replicas if replica.host.alive] or self.replicas
        if self.profile.sticky and intent.session is not None and draw.random() < 0.9:
            return up[self.sessions.index(intent.session) % len(up)]
        return draw.choice(up)

    def asked(self, attempt: Attempt) -> None:
        """A request leaves a client."""
        self.note("ask", attempt, attempt.replica)

    def told(self, attempt: Attempt) -> None:
        """A client was told something: from now on nobody may say less."""
        self.note("told", attempt, attempt.error or attempt.outcome)
        intent, answer = attempt.intent, attempt.answer
        if intent.kind == "export" and attempt.outcome == "answered":
            self.exports.append(answer.data)
        if intent.kind == "name" and attempt.outcome == "answered":
            self.snapshots.setdefault(intent.session, []).append(answer.snapshot.name)
        if intent.kind in MAKES and attempt.outcome == "answered":
            if intent.kind == "create":
                intent.session = answer.info.id
            if answer.info.id not in self.sessions:
                self.sessions.append(answer.info.id)
        version = version_told(attempt)
        if version is not None:
            self.floors[intent.session] = max(self.floors.get(intent.session, 0), version)

    def see(self, event: str, call: Call) -> None:
        """Something happened to a message; some crashes are aimed at such moments."""
        self.note(event, call, call.host.name)
        if self.at_peace or event not in ("sent", "applied", "answered", "over"):
            return
        self._aim(call.name, event, call.host)
        if call.name in ("commit", "create") and call.attempt is not None:
            self._aim(f"to {call.attempt.intent.kind}", event, call.host)

    def computed(self, host: Host) -> None:
        """A device has done a round."""
        if not self.at_peace:
            self._aim("device", "round", host)

    def _aim(self, name: str, phase: str, host: Host) -> None:
        self._aims[name, phase] += 1
        for aim in self.profile.aims:
            replica = next((one for one in self.replicas if one.host is host), None)
            if aim[:3] != (name, phase, self._aims[name, phase]) or replica is None or not replica.up:
                continue
            if aim[3]:
                self._set_fuse(replica, host.steps + aim[3])
            else:  # between two steps: no time passes before
                self.loop.call_soon(self._strike, replica, context=on(None))

    def note(self, event: str, what: Any, more: Any = "") -> None:
        """One line of the trace."""
        self.trace.append((self.loop.time(), event, (what, more)))

    # ---- what goes wrong --------------------------------------------------------------------------------

    def _replica(self, name: str) -> Replica:
        replica = Replica(
            name,
            self.loop,
            self.network,
            metrics=metrics(),
            cache_bytes=self.profile.cache_bytes,
            limits=self.profile.engine_limits,
            computed=self.computed,
        )
        if self.profile.skewed:
            replica.host.skew_s = replica.skew_s = self.draw.uniform(-3600.0, 3600.0)
        return replica

    def _set_fuse(self, replica: Replica, steps: int) -> None:
        replica.host.fuse = steps
        replica.host.burn = lambda: self._strike(replica)

    def _strike(self, replica: Replica) -> None:
        """Crash a replica, or stop it for a while."""
        if not replica.up:
            return
        later = partial(self.loop.call_later, context=on(None))
        if self.draw.random() < self.profile.pauses:
            self.note("pause", replica.host.name)
            replica.pause()
            later(self.draw.choice((0.2, 2.0, 6.0)), self._go_on, replica)
        else:
            self.crash(replica)
            later(self.draw.uniform(0.05, 2.0), self._start, replica)

    def crash(self, replica: Replica) -> None:
        """Kill a replica."""
        self.note("crash", replica.host.name)
        for call in self.network.in_flight(replica.host):
            self.note("died", call, call.phase)
            if call.phase == "sent" and self.draw.random() < 0.5:
                call.dropped = True
        replica.crash()

    def _start(self, replica: Replica) -> None:
        if not replica.host.alive:
            replica.start()
            self.note("start", replica.host.name)

    def _go_on(self, replica: Replica) -> None:
        if replica.host.paused:
            self.note("go on", replica.host.name)
            replica.go_on()

    async def _event(self, at: float, kind: str) -> None:
        await asyncio.sleep(at)
        self.note("event", kind)
        draw, storage = self.draw, self.storage
        if kind == "down":
            storage.down = True
            await self._and_then(draw.uniform(0.2, 5.0), "up")
            storage.down = False
        elif kind == "full":
            storage.fill()
            await self._and_then(draw.uniform(0.5, 3.0), "room")
            storage.make_room()
        elif kind == "drain":
            await self._restart(draw.choice(self.replicas))
        elif kind == "failover":
            if storage.durability == "fsync":
                storage.hold_back()
            await self._and_then(draw.uniform(0.2, 2.0), "failover")
            self._fail_over()

    async def _and_then(self, seconds: float, event: str) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.storage.down = False
            raise
        self.note("event", event)

    async def _restart(self, replica: Replica) -> None:
        if not replica.up:
            return
        if self.draw.random() < 0.3:
            self._set_fuse(replica, replica.host.steps + self.draw.randint(2, 12))
        await replica.drain(self.draw.choice((0.0, 0.1, 2.0)))
        self._start(replica)

    def _fail_over(self) -> None:
        self.storage.fail_over()
        for session in list(self.floors):
            history = [c for c in self.storage.applied if c.key.session_id == session and not c.lost]
            newest = max((c.after.version for c in history if c.after is not None), default=0)
            self.floors[session] = min(self.floors[session], newest)

    # ---- peace ------------------------------------------------------------------------------------------

    async def _make_peace(self) -> None:
        self.note("event", "peace")
        self.at_peace = True
        self.storage.down = False
        self.storage.make_room()
        self.network.rate = 0.0
        self.storage.catch_up()
        for replica in self.replicas:
            replica.host.fuse = 0
            self._go_on(replica)
            self._start(replica)
        await asyncio.sleep(QUIET_S)
        finished(self.storage.store.sweep())
        for replica in self.replicas:  # one may have been about to start, or draining
            self._start(replica)
            if replica.draining:
                await replica.drain(0.0)
                self._start(replica)

    async def _ask_again(self, client: Client) -> None:
        """Nothing that has a key stays unknown."""
        for intent in self.intents:
            if intent.attempts and intent.key is not None and not intent.settled and intent.kind not in READS:
                await client.pursue(intent)
                if not intent.settled:
                    self.wrong.append(f"{intent.name} is never settled")

    async def _everybody_serves(self, client: Client) -> None:
        """Each replica that remembers a session appends to it at the first try; another one reads it."""
        for session in list(self.sessions):
            knowing = [
                one
                for one in self.replicas
                if SessionKey(TENANT, session) in one.engine.sessions.cache._copies
            ]
            for replica in knowing or [self.draw.choice(self.replicas)]:
                await self._must_serve(client, replica, client.intent("append", session, keyed=True))
            reader = self.draw.choice(self.replicas)
            reader.engine.sessions.cache.drop(SessionKey(TENANT, session))
            await self._must_serve(client, reader, client.intent("rank", session, keyed=False))

    async def _must_serve(self, client: Client, replica: Replica, intent: Intent) -> None:
        if intent.kind == "append":
            intent.request = intent.request.by(replace(intent.request.call, if_match=None))
        else:
            intent.request = intent.request.model_copy(update={"min_version": None})
        attempt = await client.ask(intent, replica)
        code = "" if attempt.error is None else attempt.error.code
        if attempt.outcome != "answered" and code not in ("session_deleted", "session_expired", "not_found"):
            self.wrong.append(f"{attempt}: in peace {replica.name} says {attempt.error!r}")
