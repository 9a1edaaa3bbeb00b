"""The verdict: what clients were told, held against the log and the state that a store is left with.

Each log is done again, undisturbed, on a fresh server with a store in memory: every answer that a client was
given, every read, the probe and every byte of the state must come out the same.
"""

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
from tests.memory_store import MemoryStore

from rlstm_server.app import create_app
from rlstm_server.errors import Gone, NotFound, StateCorrupt
from rlstm_server.settings import Settings
from rlstm_server.store.base import SessionKey
from rlstm_server.store.redis_store import RedisStore

from .replay import Replay, probe, state_bytes

TENANT = "default"
AT_ONCE = 8
PAGE = 500


@dataclass
class Verdict:
    """What is wrong with what is left, one sentence each."""

    acknowledged: int
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def counts(self):
        """The line that a run is known by."""
        return (
            f"{self.acknowledged:,} acknowledged, {len(self.lost)} lost, {len(self.twice)} twice,"
            f" {len(self.digests)} digest mismatches"
        )

    @property
    def faults(self):
        """Everything, for a test to find empty."""
        return self.lost + self.twice + self.digests + self.wrong


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
        judging = _Judging(history, verdict, store, left, fresh)
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
    store: object
    left: object
    fresh: object
    _logs: dict = field(default_factory=dict)

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
        try:
            head = await self.store.load_head(SessionKey(TENANT, told.id), with_state=False)
        except (Gone, NotFound) as end:
            self._check_end(told, end)
            return
        if told.deleted:
            self.verdict.lost.append(f"the end of {told.id}: it is there")
        log = await self._log(told)
        if [record.version for record in log] != list(range(1, head.version + 1)):
            self.verdict.lost.append(f"records of {told.id}: {len(log)} of {head.version} are there")
            return
        self._check_operations(told, log)
        await self._check_snapshots(told)
        await self._check_replay(told, log)

    async def _log(self, told):
        """The records of a session, oldest first."""
        if told.id not in self._logs:
            log, key = [], SessionKey(TENANT, told.id)
            while records := await self.store.read_log(key, after=log[-1].version if log else 0, limit=PAGE):
                log += records
            self._logs[told.id] = log
        return self._logs[told.id]

    def _check_end(self, told, end):
        if not told.deleting:
            self.verdict.lost.append(f"{told.id} with {len(told.asked)} operations: it is gone")
        elif told.deleted and not isinstance(end, Gone):
            self.verdict.lost.append(f"the tombstone of {told.id}")

    def _check_operations(self, told, log):
        """Every acknowledged key has its record at its version, every record its key, and no key two."""
        found = {}
        for record in log:
            if found.setdefault(record.operation_id, record) is not record:
                self.verdict.twice.append(f"{record.operation_id} is in the log of {told.id} twice")
        for asked in told.asked.values():
            if asked.kind == "generate":
                self._check_generated(asked, found)
            else:
                self._check_record(told, asked, found.get(asked.key))
        for name in found:
            key = name.partition("#")[0]
            if key not in told.asked and key not in self.history.creations:
                self.verdict.wrong.append(f"nobody asked for {name} in the log of {told.id}")

    def _check_record(self, told, asked, record):
        if asked.outcome == "acknowledged" and (record is None or record.version != asked.version):
            where = "not in the log" if record is None else f"at version {record.version}"
            self.verdict.lost.append(f"{asked.key}, acknowledged at version {asked.version}, is {where}")
        if record is None:
            return
        if asked.outcome == "refused":
            self.verdict.wrong.append(f"{asked.key} was said not to be applied, and is at {record.version}")
        content = json.loads(record.record)
        if asked.kind == "append" and _ids(content) != list(asked.body["text"].encode()):
            self.verdict.wrong.append(f"the record of {asked.key} is of another text")
        if asked.kind == "restore" and content["of"] != told.snapshots[asked.body["snapshot"]]:
            self.verdict.wrong.append(f"the record of {asked.key} is of another snapshot")

    def _check_generated(self, asked, found):
        """The chunks of a kept text are what its reader was shown, whole once it was acknowledged."""
        kept, number, last = [], 0, None
        while (record := found.get(f"{asked.key}#{number}")) is not None:
            kept += _ids(json.loads(record.record))
            number, last = number + 1, record.version
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

    async def _check_replay(self, told, log):
        """The undisturbed replay gives each answer, each read, the probe and the state, to the last bit."""
        replay = await self._begin_again(told)
        answers = {asked.version: asked for asked in told.acknowledged("append")}
        reads = {}
        for read in told.reads:
            reads.setdefault(read.version, set()).add(read.logprob)
        for version in range(len(log) + 1):
            if version:
                logprobs = await replay.do(log[version - 1])
                asked = answers.get(version)
                if asked is not None and asked.reply.get("logprobs", logprobs) != logprobs:
                    self.verdict.wrong.append(f"the answer to {asked.key} has other scores than its replay")
            if version in reads and reads[version] != {await probe(self.fresh, replay.session)}:
                self.verdict.wrong.append(
                    f"a read of {told.id} at {version} has other scores than its replay"
                )
        try:
            left = await state_bytes(self.left, told.id), await probe(self.left, told.id)
        except StateCorrupt as damage:
            self.verdict.digests.append(f"{told.id} cannot be read: {damage}")
            return
        if left != (await state_bytes(self.fresh, replay.session), await probe(self.fresh, replay.session)):
            self.verdict.digests.append(f"{told.id} at version {len(log)} is not what its log makes of it")

    async def _begin_again(self, told):
        """A session that stands where `told` began: of a fork, after its parent's first records."""
        wanted = {json.loads(record.record).get("of") for record in await self._log(told)}
        if told.parent is None:
            return await Replay.begin(self.fresh, told.creation["adaptation"], wanted)
        parent, version = told.parent
        before = await self._begin_again(parent)
        for record in (await self._log(parent))[:version]:
            await before.do(record)
        return await before.fork(wanted)


def _ids(content):
    return [token for reading in content["readings"] for token in reading["ids"]]
