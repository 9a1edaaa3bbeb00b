"""The verdict: what clients were told, held against what a store is left with.

The store still knows which operations each session has applied, and the session's chain proves that it was
these, each once and in this order. They are done again, as they were asked for, on a server that nobody
disturbs: every answer that a client was given, every read, the probe and every byte of the state must come
out the same.
"""

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import httpx
from redis import Redis

from rlstm_server.app import create_app
from rlstm_server.errors import Gone, NotFound, StateCorrupt
from rlstm_server.settings import Settings
from rlstm_server.store.base import Revision, SessionKey
from rlstm_server.store.memory_store import MemoryStore
from rlstm_server.store.redis_client import session_key
from rlstm_server.store.redis_store import RedisStore

from .load import PROBE

TENANT = "default"
AT_ONCE = 8
PAGE = 500


@dataclass
class Verdict:
    """What is wrong with what is left, one sentence each; `states` are those that nothing leads to."""

    acknowledged: int
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def counts(self):
        """The line that a run is known by."""
        return (
            f"{self.acknowledged:,} acknowledged, {len(self.lost)} lost, {len(self.twice)} twice,"
            f" {len(self.states)} other states"
        )

    @property
    def faults(self):
        """Everything, for a test to find empty."""
        return self.lost + self.twice + self.states + self.wrong


class Applied(NamedTuple):
    """An operation that the store says it has applied."""

    id: str
    version: int
    body_hash: bytes
    summary: dict


@asynccontextmanager
async def application(checkpoint, store):
    """Give a client of an application on `store` in this process; its engine is the client's `engine`."""
    app = create_app(Settings(model=str(checkpoint), threads=1), store=store)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
    ):
        client.engine = app.state.services.engine
        yield client


async def judge(history, url, checkpoint):
    """Give the verdict over the store at `url`."""
    store, verdict = RedisStore(url), Verdict(history.acknowledged, wrong=list(history.wrong))
    async with application(checkpoint, store) as left, application(checkpoint, MemoryStore()) as fresh:
        with Redis.from_url(url, protocol=2) as admin:
            judging = _Judging(history, verdict, store, admin, left, fresh)
            await judging.check_creations()
            turns = asyncio.Semaphore(AT_ONCE)

            async def check(told):
                async with turns:
                    await judging.check_session(told)

            await asyncio.gather(*(check(told) for told in history.sessions.values()))
    return verdict


@dataclass
class _Judging:
    """`left` is a client of the service as it was left, `fresh` of one that was never disturbed."""

    history: object
    verdict: Verdict
    store: RedisStore
    admin: Redis
    left: httpx.AsyncClient
    fresh: httpx.AsyncClient

    async def check_creations(self):
        """No creation made two sessions, and none is there that nobody asked for."""
        made, cursor = [], None
        while made == [] or cursor is not None:
            page = await self.left.get(
                "/sessions", params={"limit": PAGE} | ({"cursor": cursor} if cursor else {})
            )
            made += page.json()["sessions"]
            cursor = page.json()["cursor"]
            if not made:
                break
        for key, count in Counter(session["metadata"]["asked"] for session in made).items():
            if count > 1:
                self.verdict.twice.append(f"the creation {key} made {count} sessions")
            if key not in self.history.creations:
                self.verdict.wrong.append(f"nobody asked for the creation {key}")

    async def check_session(self, told):
        """Hold one session against all that was said of it."""
        key = SessionKey(TENANT, told.id)
        try:
            head = await self.store.load_head(key, with_state=False)
        except (Gone, NotFound) as end:
            self._check_end(told, end)
            return
        if told.deleted:
            self.verdict.lost.append(f"the end of {told.id}: it is there")
        applied = self._applied(told)
        self._check_operations(told, applied)
        at = Revision.first(key)
        for operation in applied:
            at = at.after(operation.id, operation.body_hash)
        if at != head.revision:
            self.verdict.twice.append(f"the {len(applied)} operations of {told.id} lead elsewhere")
            return
        await self._check_snapshots(told)
        await self._check_again(told, applied)

    def _applied(self, told):
        """What the store says was done to a session, in its order."""
        found = []
        for name, entry in self.admin.hgetall(session_key(SessionKey(TENANT, told.id), "ops")).items():
            if name.startswith(b"o:"):
                version, _, body_hash, _, summary = entry.split(b"|", 4)
                found.append(
                    Applied(
                        name[2:].decode(),
                        int(version),
                        bytes.fromhex(body_hash.decode()),
                        json.loads(summary),
                    )
                )
        return sorted(found, key=lambda one: one.version)

    def _check_end(self, told, end):
        if not told.deleting:
            self.verdict.lost.append(f"{told.id} with {len(told.asked)} operations: it is gone")
        elif told.deleted and not isinstance(end, Gone):
            self.verdict.lost.append(f"the tombstone of {told.id}")

    def _check_operations(self, told, applied):
        """Every acknowledged key was applied at its version, and nothing that nobody asked for."""
        found = {one.id: one for one in applied}
        for asked in told.asked.values():
            if asked.kind == "generate":
                self._check_generated(asked, found)
                continue
            done = found.get(asked.key)
            if asked.outcome == "acknowledged" and (done is None or done.version != asked.version):
                where = "not there" if done is None else f"at version {done.version}"
                self.verdict.lost.append(f"{asked.key}, acknowledged at version {asked.version}, is {where}")
            if asked.outcome == "refused" and done is not None:
                self.verdict.wrong.append(f"{asked.key} was said not to be applied, and is at {done.version}")
        for name in found:
            key = name.partition("#")[0]
            if key not in told.asked and key not in self.history.creations:
                self.verdict.wrong.append(f"nobody asked for {name} in {told.id}")

    def _check_generated(self, asked, found):
        """The chunks of a kept text are what its reader was shown, whole once it was acknowledged."""
        kept, number, last = [], 0, None
        while (done := found.get(f"{asked.key}#{number}")) is not None:
            kept += _tokens(done)
            number, last = number + 1, done.version
        if asked.outcome == "acknowledged" and (kept, last) != (asked.reply["ids"], asked.version):
            self.verdict.lost.append(
                f"text of {asked.key}: {len(kept)} of {len(asked.reply['ids'])} tokens kept"
            )
        if kept[: len(asked.seen)] != asked.seen:
            self.verdict.lost.append(f"text of {asked.key} that its reader saw")
        if asked.outcome == "refused" and number:
            self.verdict.wrong.append(f"{asked.key} was said not to be applied, and {number} chunks are kept")

    async def _check_snapshots(self, told):
        page = await self.left.get(f"/sessions/{told.id}/snapshots")
        found = {snapshot["name"]: snapshot["version"] for snapshot in page.json()["snapshots"]}
        for name, version in told.snapshots.items():
            if found.get(name) != version:
                self.verdict.lost.append(f"the snapshot {name} of {told.id}")

    async def _check_again(self, told, applied):
        """Done again, undisturbed, each answer, each read, the probe and the state are to the last bit."""
        again = await self._begin_again(told, applied)
        answers = {asked.version: asked for asked in told.acknowledged("append")}
        reads = {}
        for read in told.reads:
            reads.setdefault(read.version, set()).add(read.logprob)
        for version in range(len(applied) + 1):
            if version:
                logprobs = await again.do(told, applied[version - 1])
                asked = answers.get(version)
                if asked is not None and asked.reply.get("logprobs", logprobs) != logprobs:
                    self.verdict.wrong.append(f"the answer to {asked.key} has other scores than again")
            if version in reads and reads[version] != {await probe(self.fresh, again.session)}:
                self.verdict.wrong.append(f"a read of {told.id} at {version} has other scores than again")
        try:
            left = await parts_of(self.left, told.id)
        except StateCorrupt as damage:
            self.verdict.states.append(f"{told.id} cannot be read: {damage}")
            return
        made = await parts_of(self.fresh, again.session)
        if different := sorted(name for name in left | made if left.get(name) != made.get(name)):
            self.verdict.states.append(
                f"{told.id} is not what its history makes: {different} after"
                f" {[one.id for one in applied]}, made as {told.creation}"
            )

    async def _begin_again(self, told, applied):
        """A session that stands where `told` began: of a fork, after its parent's first operations."""
        asked = (told.asked.get(one.id) for one in applied)
        wanted = {
            told.snapshots[one.body["snapshot"]] for one in asked if one is not None and one.kind == "restore"
        }
        if told.parent is None:
            return await Again.begin(self.fresh, told.creation["adaptation"], wanted)
        parent, version, learning = told.parent
        theirs = self._applied(parent)
        before = await self._begin_again(parent, theirs)
        for operation in theirs[:version]:
            await before.do(parent, operation)
        return await before.fork(wanted, learning=learning)


class Again:
    """A session of `client` to which operations are done again; versions in `wanted` are named on the way."""

    def __init__(self, client, session, wanted):
        self._client = client
        self.session = session
        self._wanted = wanted

    @classmethod
    async def begin(cls, client, adaptation, wanted):
        """Begin with a new session."""
        made = await _post(client, "/sessions", {"adaptation": adaptation})
        return await cls(client, made["id"], wanted)._arrived(0)

    async def fork(self, wanted, *, learning):
        """Begin where this one stands."""
        made = await _post(self._client, f"/sessions/{self.session}/fork", {})
        await _post(self._client, f"/sessions/{made['id']}", {"learning": learning}, method="PATCH")
        return await Again(self._client, made["id"], wanted)._arrived(0)

    async def do(self, told, operation):
        """Do what was asked for; gives the scores of what was read."""
        path = f"/sessions/{self.session}"
        key, _, part = operation.id.partition("#")
        asked = told.asked.get(operation.id) or told.asked.get(key)
        kind = "append" if part == "first" else asked.kind
        body, logprobs = told.creation if asked is None else asked.body, []
        match kind:
            case "append":
                text = {"text": body["text"], "learn": body.get("learn", True)}
                logprobs = (await _post(self._client, f"{path}/append", text))["logprobs"]
            case "generate" if ids := _tokens(operation):
                text = {"tokens": ids, "learn": body["learn_from_output"]}
                logprobs = (await _post(self._client, f"{path}/append", text))["logprobs"]
            case "reset":
                await _post(self._client, f"{path}/reset", body)
            case "restore":
                named = {"snapshot": f"v{told.snapshots[body['snapshot']]}"}
                await _post(self._client, f"{path}/restore", named)
            case "update":
                await _post(self._client, path, body, method="PATCH")
        await self._arrived(operation.version)
        return logprobs

    async def _arrived(self, version):
        if version in self._wanted:
            await _post(self._client, f"/sessions/{self.session}/snapshots", {"name": f"v{version}"})
        return self


async def probe(client, session):
    """The log-probability of a fixed text after a session's present state."""
    answer = await _post(client, f"/sessions/{session}/score", {"candidates": [{"text": PROBE}]})
    return answer["candidates"][0]["logprob"]


async def parts_of(client, session):
    """Everything that a session's scores depend on, whichever session it is, by name; and the probe's."""
    copy = await client.engine.sessions.read(SessionKey(TENANT, session))
    adapted = copy.state.adapted
    arrays = {name: array.tobytes() for name, array in adapted.arrays().items()}
    return {**adapted.header(), **arrays, "probe": await probe(client, session)}


def _tokens(operation):
    """The ids of a chunk that was kept."""
    return [token[0] for token in operation.summary["tokens"]]


async def _post(client, path, body, method="POST"):
    answer = await client.request(method, path, json=body)
    if answer.status_code >= 300:
        raise AssertionError(f"an operation could not be done again: {answer.text}")
    return answer.json()
