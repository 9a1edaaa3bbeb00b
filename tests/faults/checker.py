"""The verdict: what clients were told, held against the log and the state that a store is left with.

Each log is done again, undisturbed, on a fresh engine with a store in memory: every answer that a client was
given, every probe and every byte of the state must come out the same.
"""

import asyncio
import hashlib
import json
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

from rlstm_server.app import create_app
from rlstm_server.engine.messages import Caller
from rlstm_server.errors import Gone, NotFound
from rlstm_server.settings import Settings
from rlstm_server.store.base import SessionKey
from rlstm_server.store.in_memory import MemoryStore
from rlstm_server.store.in_redis import RedisStore
from tests.faults.load import PROBE

TENANT = "default"
AT_ONCE = 8


@dataclass
class Verdict:
    """What is wrong with what is left, one sentence each."""

    acknowledged: int = 0
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def faults(self):
        """Everything, for a test to find empty."""
        return self.lost + self.twice + self.digests + self.wrong


@asynccontextmanager
async def application(checkpoint, store):
    """Give an application on `store` in this process, and a client of it."""
    app = create_app(Settings(model=str(checkpoint), threads=1), store=store)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client,
    ):
        client.engine = app.state.services.engine
        yield client


async def judge(history, url, checkpoint):
    """Give the verdict over the store at `url`."""
    store = RedisStore(url)
    await store.check()
    verdict = Verdict(acknowledged=history.acknowledged, wrong=list(history.wrong))
    async with application(checkpoint, store) as left, application(checkpoint, MemoryStore()) as fresh:
        judging = _Judging(history, verdict, store, left, fresh)
        await judging.check_creations()
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(told):
            async with turns:
                await judging.check_session(told)

        await asyncio.gather(*(one(told) for told in history.sessions.values()))
    return verdict


@dataclass
class _Judging:
    history: object
    verdict: Verdict
    store: object
    left: object
    fresh: object
    logs: dict = field(default_factory=dict)

    async def check_creations(self):
        """No creation made two sessions, and none is there that nobody asked for."""
        made, cursor = [], None
        while True:
            page = (await self.left.get("/sessions", params={"limit": 1000} | ({"cursor": cursor} if cursor else {}))).json()
            made += page["sessions"]
            cursor = page["cursor"]
            if cursor is None:
                break
        keys = Counter(session["metadata"]["asked"] for session in made)
        self.verdict.twice += [f"the creation {key} made {count} sessions" for key, count in keys.items() if count > 1]
        self.verdict.wrong += [f"nobody asked for the creation {key}" for key in keys if key not in self.history.creations]

    async def check_session(self, told):
        """Hold one session against all that was said of it."""
        try:
            head = await self.store.load_head(SessionKey(TENANT, told.id), with_state=False)
        except (Gone, NotFound) as end:
            self._check_end(told, end)
            return
        if told.deleted:
            self.verdict.lost.append(f"the end of {told.id}: it is there")
        log = await self.log_of(told)
        if [record.version for record in log] != list(range(1, head.version + 1)):
            self.verdict.lost.append(f"records of {told.id}: {len(log)} of {head.version} are there, or not in order")
            return
        self._check_operations(told, log)
        await self._check_replay(told, log, head.version)

    async def log_of(self, told):
        """The records of a session, oldest first."""
        if told.id not in self.logs:
            log, key = [], SessionKey(TENANT, told.id)
            while records := await self.store.read_log(key, after=log[-1].version if log else 0, limit=500):
                log += records
            self.logs[told.id] = log
        return self.logs[told.id]

    def _check_end(self, told, end):
        if not told.deleting:
            self.verdict.lost.append(f"{told.id} with {len(told.asked)} operations: it is gone")
        elif told.deleted and not isinstance(end, Gone):
            self.verdict.lost.append(f"the tombstone of {told.id}")

    def _check_operations(self, told, log):
        """Every acknowledged key has its record at its version, every record its key, and no key two."""
        found = {}
        for record in log:
            if record.operation_id in found:
                self.verdict.twice.append(f"{record.operation_id} is in the log of {told.id} twice")
            found[record.operation_id] = record
        asked_for = Counter(name.split("#")[0] for name in found)
        for asked in told.asked.values():
            if asked.kind == "generate":
                self._check_generated(asked, found)
            else:
                self._check_record(asked, found.get(asked.key))
        for key in asked_for:
            if key not in told.asked and f"{key}#first" not in told.asked and key not in self.history.creations:
                self.verdict.wrong.append(f"nobody asked for {key} in the log of {told.id}")

    def _check_record(self, asked, record):
        if asked.outcome == "acknowledged" and (record is None or record.version != asked.version):
            where = "not in the log" if record is None else f"at version {record.version}"
            self.verdict.lost.append(f"{asked.key}, acknowledged at version {asked.version}, is {where}")
        if asked.outcome == "refused" and record is not None:
            self.verdict.wrong.append(f"{asked.key} was said not to be applied, and is at {record.version}")
        if record is not None and asked.kind == "append":
            if json.loads(record.record)["ids"] != list(asked.body["text"].encode()):
                self.verdict.wrong.append(f"the record of {asked.key} is of another text")

    def _check_generated(self, asked, found):
        """The chunks of a kept text are what its reader was shown, whole once it was acknowledged."""
        kept, number = [], 0
        while (record := found.get(f"{asked.key}#{number}")) is not None:
            kept += json.loads(record.record)["ids"]
            number += 1
        if asked.outcome == "acknowledged":
            last = found.get(f"{asked.key}#{number - 1}")
            if kept != asked.reply["ids"] or last.version != asked.version:
                self.verdict.lost.append(f"text of {asked.key}: {len(kept)} of {len(asked.reply['ids'])} are kept")
        if kept[: len(asked.seen)] != asked.seen:
            self.verdict.lost.append(f"text of {asked.key} that its reader saw")
        if asked.outcome == "refused" and number:
            self.verdict.wrong.append(f"{asked.key} was said not to be applied, and {number} chunks are kept")

    # ---- doing it again -----------------------------------------------------------------------------------

    async def _check_replay(self, told, log, version):
        """The undisturbed replay gives each answer, each read, the probe and the state, to the last bit."""
        session = await self._begin_again(told)
        answers = {
            asked.version: asked
            for asked in told.asked.values()
            if asked.kind == "append" and asked.outcome == "acknowledged"
        }
        reads = {}
        for read in told.reads:
            reads.setdefault(read.version, set()).add(read.logprob)
        for record in log[:version]:
            await self._check_reads(told, session, record.version - 1, reads)
            logprobs = await self._do_again(session, record)
            asked = answers.get(record.version)
            if asked is not None and asked.reply.get("logprobs", logprobs) != logprobs:
                self.verdict.wrong.append(f"the answer to {asked.key} has other scores than its replay")
        await self._check_reads(told, session, version, reads)
        probes = [await self._probe(client, told_id) for client, told_id in ((self.left, told.id), (self.fresh, session))]
        digests = [await self._digest(client, told_id) for client, told_id in ((self.left, told.id), (self.fresh, session))]
        if probes[0] != probes[1] or digests[0] != digests[1]:
            self.verdict.digests.append(f"{told.id} at version {version} is not what its log makes of it")

    async def _begin_again(self, told):
        """A new session that stands where the session began: for a fork, after its parent's first records."""
        if told.parent is None:
            body = {"adaptation": told.creation["adaptation"]}
            return (await self.fresh.post("/sessions", json=body)).json()["id"]
        parent, version = told.parent
        session = await self._begin_again(parent)
        for record in (await self.log_of(parent))[:version]:
            await self._do_again(session, record)
        return session

    async def _do_again(self, session, record):
        """Do what a record says; gives the scores of what was read."""
        content = json.loads(record.record)
        match content["op"]:
            case "append" | "generate":
                if not content["ids"]:
                    return []
                body = {"tokens": content["ids"], "learn": content["learn"]}
                path = f"/sessions/{session}/append"
            case "reset":
                body, path = {"what": content["scope"]}, f"/sessions/{session}/reset"
        answer = await self.fresh.post(path, json=body)
        if answer.status_code != 200:
            raise AssertionError(f"a record could not be done again: {answer.text}")
        return answer.json().get("logprobs", [])

    async def _check_reads(self, told, session, version, reads):
        if version in reads and reads[version] != {await self._probe(self.fresh, session)}:
            self.verdict.wrong.append(f"a read of {told.id} at version {version} has other scores than its replay")

    async def _probe(self, client, session):
        answer = await client.post(f"/sessions/{session}/score", json={"candidates": [{"text": PROBE}]})
        return answer.json()["candidates"][0]["logprob"]

    async def _digest(self, client, session):
        """A hash of everything that a session's scores depend on, whichever session it is."""
        caller = Caller(tenant=TENANT, request_id="", endpoint="")
        copy = await client.engine.sessions.read(SessionKey(TENANT, session), caller)
        digest = hashlib.sha256(json.dumps(copy.state.adapted.header(), sort_keys=True).encode())
        for name, tensor in sorted(copy.state.adapted.tensors().items()):
            digest.update(name.encode())
            digest.update(tensor.contiguous().cpu().numpy().tobytes())
        return digest.hexdigest()
