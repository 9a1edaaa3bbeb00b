"""Clients under which a service is broken: they append, read, generate, create, fork, delete, and repeat.

Every changing request carries a key and is sent again, to any replica, until somebody says what became of it;
now and then a client loses patience, repeats what was acknowledged long ago, or insists on a version. Every
answer is held against its request by content, at once.
"""

import asyncio
import json
import random
import time

import httpx

from tests.faults.history import Asked, Read, Told

PROBE = "the quick brown fox"
LETTERS = "the quick brown fox jumps\n"
RETRIED = {408, 409, 429, 503, 504}
PATIENCE_SECONDS = 40
GIVE_UP = 0.02
WORDS = {
    "append": 60,
    "conditional": 6,
    "repeat": 8,
    "mismatch": 1,
    "read": 8,
    "generate": 6,
    "stream": 4,
    "reset": 2,
    "create": 3,
    "fork": 3,
    "delete": 2,
}


class Clients:
    """`workers` clients of the replicas; each draws what it does from the seed and its number.

    adaptations    of the sessions that they make, drawn evenly
    sessions       how many there are about at any time
    """

    def __init__(
        self,
        replicas,
        history,
        seed,
        *,
        workers=12,
        sessions=24,
        adaptations=({},),
        timeout=4.0,
        without=(),
    ):
        self._replicas = replicas
        self.history = history
        self._seed = seed
        self._workers = workers
        self._count = sessions
        self._adaptations = adaptations
        self._http = httpx.AsyncClient(timeout=timeout, limits=httpx.Limits(keepalive_expiry=30))
        self._words = {word: weight for word, weight in WORDS.items() if word not in without}
        self._drawn = 0
        self._ending = asyncio.Event()

    async def __aenter__(self):
        """Make the first sessions, then begin."""
        dice = random.Random(f"{self._seed} first")
        await asyncio.gather(*(self._create(dice) for _ in range(self._count)))
        self.history.resume()
        self._tasks = [asyncio.create_task(self._work(number)) for number in range(self._workers)]
        return self

    async def __aexit__(self, *_):
        """Let everybody finish what they are at."""
        self._ending.set()
        try:
            await asyncio.gather(*self._tasks)
        finally:
            await self._http.aclose()

    def check(self):
        """Raise what a client failed of, while there is still something to see."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def _work(self, number):
        dice = random.Random(f"{self._seed} {number}")
        words, weights = zip(*self._words.items(), strict=True)
        while not self._ending.is_set():
            living = self.history.living
            if len(living) < self._count:
                await self._create(dice)
                continue
            act = getattr(self, f"_{dice.choices(words, weights)[0]}")
            if act in (self._create, self._fork) and len(living) > 2 * self._count:
                act = self._delete
            await (act(dice) if act == self._create else act(dice, dice.choice(living)))

    # ---- what clients do ----------------------------------------------------------------------------------

    async def _create(self, dice):
        key = self._key()
        body = {"adaptation": dice.choice(self._adaptations), "metadata": {"asked": key}}
        if dice.random() < 0.3:
            body["name"] = key
        if dice.random() < 0.3:
            body["text"] = some_text(dice)
        self.history.creations.add(key)
        status, made, _ = await self._until_known(dice, "/sessions", body, key)
        if status != 201:
            return
        told = self._tell_of(made, body)
        if "text" in body:
            first = told.asked.setdefault(f"{key}#first", Asked("append", f"{key}#first", {"text": body["text"]}))
            self._acknowledge(told, first, made["append"])

    async def _fork(self, dice, parent):
        key = self._key()
        self.history.creations.add(key)
        body = {"metadata": {"asked": key}}
        status, made, _ = await self._until_known(
            dice, f"/sessions/{parent.id}/fork", body, key, told=parent
        )
        if status == 201:
            told = self._tell_of(made, body, parent=(parent, made["forked_from"]["version"]))
            if made["forked_from"]["session"] != parent.id:
                self.history.wrong.append(f"a fork of {parent.id} says it is of another")
            told.newest = 0

    async def _append(self, dice, told):
        body = {"text": some_text(dice), "learn": dice.random() < 0.8}
        await self._change(dice, told, Asked("append", self._key(), body))

    async def _conditional(self, dice, told):
        body = {"text": some_text(dice)}
        await self._change(dice, told, Asked("append", self._key(), body, if_match=told.newest))

    async def _reset(self, dice, told):
        body = {"what": dice.choice(["fast_weights", "recurrent", "both"])}
        await self._change(dice, told, Asked("reset", self._key(), body))

    async def _generate(self, dice, told):
        await self._change(dice, told, Asked("generate", self._key(), _generation(dice)))

    async def _stream(self, dice, told):
        await self._change(dice, told, Asked("generate", self._key(), _generation(dice) | {"stream": True}))

    async def _repeat(self, dice, told):
        """Send again what was acknowledged: the answer is the same, and nothing happens."""
        known = [asked for asked in told.asked.values() if asked.outcome == "acknowledged" and asked.kind == "append"]
        if not known:
            return
        asked = dice.choice(known)
        status, document, _ = await self._until_known(
            dice, f"/sessions/{told.id}/append", asked.body, asked.key, told=told
        )
        if status == 200:
            self.history.repeats += 1
            if not document["replayed"] or document["version"] != asked.version:
                self.history.wrong.append(f"a repeat of {asked.key} was told {document['version']}")
            if "ids" in document and document["ids"] != list(asked.body["text"].encode()):
                self.history.wrong.append(f"a repeat of {asked.key} was told of another text")

    async def _mismatch(self, dice, told):
        """Use a key again for another text: refused, and nothing happens."""
        known = [asked for asked in told.asked.values() if asked.outcome == "acknowledged" and asked.kind == "append"]
        if known:
            asked = dice.choice(known)
            body = {"text": asked.body["text"] + "!"}
            status, _, _ = await self._until_known(
                dice, f"/sessions/{told.id}/append", body, asked.key, told=told, allowed={422}
            )
            if status == 200:
                self.history.wrong.append(f"the key {asked.key} was taken for two texts")

    async def _read(self, dice, told):
        floor = told.newest
        body = {"candidates": [{"text": PROBE}], "min_version": floor}
        status, document, _ = await self._until_known(dice, f"/sessions/{told.id}/score", body, None, told=told)
        if status == 200:
            if document["version"] < floor:
                self.history.wrong.append(f"a read of {told.id} was older than what was acknowledged")
            told.reads.append(Read(document["version"], document["candidates"][0]["logprob"]))

    async def _delete(self, dice, told):
        told.deleting = True
        status, _, _ = await self._until_known(
            dice, f"/sessions/{told.id}", None, None, told=told, method="DELETE"
        )
        told.deleted = told.deleted or status == 204

    # ---- how they do it -----------------------------------------------------------------------------------

    def _key(self):
        self._drawn += 1
        return f"k{self._drawn}"

    def _tell_of(self, made, body, parent=None):
        told = self.history.sessions.setdefault(made["id"], Told(made["id"], body, parent))
        if told.creation["metadata"] != body["metadata"]:
            self.history.wrong.append(f"two creations were given the session {told.id}")
        self.history.acknowledge()
        return told

    async def _change(self, dice, told, asked):
        told.asked[asked.key] = asked
        status, document, in_doubt = await self._until_known(
            dice,
            f"/sessions/{told.id}/{asked.kind}",
            asked.body,
            asked.key,
            told=told,
            if_match=asked.if_match,
            seen=asked.seen,
            allowed={412} if asked.if_match is not None else (),
        )
        if status == 200:
            self._acknowledge(told, asked, document)
        elif asked.outcome == "open":
            asked.outcome = "unknown" if in_doubt else "refused"

    def _acknowledge(self, told, asked, document):
        asked.outcome, asked.version, asked.reply = "acknowledged", document["version"], document
        told.newest = max(told.newest, asked.version)
        self.history.acknowledge()
        if asked.kind == "append" and document.get("ids", []) != list(asked.body["text"].encode()):
            if "ids" in document or not document["replayed"]:
                self.history.wrong.append(f"the answer to {asked.key} is of another text")
        if asked.if_match is not None and asked.version != asked.if_match + 1:
            self.history.wrong.append(f"{asked.key} insisted on version {asked.if_match}, made {asked.version}")
        if asked.kind == "generate" and len(document["ids"]) > asked.body["max_tokens"]:
            self.history.wrong.append(f"{asked.key} was given more than it asked for")

    async def _until_known(
        self, dice, path, body, key, *, told=None, method="POST", if_match=None, seen=None, allowed=()
    ):
        """Send until the outcome is known or patience ends; gives status, document, and whether it is in doubt."""
        headers = {} if key is None else {"idempotency-key": key}
        if if_match is not None:
            headers["if-match"] = f'"{if_match}"'
        began, in_doubt = time.monotonic(), False
        while True:
            status, document = await self._send(dice, method, path, body, headers, seen)
            self.history.statuses[status] += 1
            if status < 300:
                return status, document, in_doubt
            if status in (404, 410) and told is not None and told.deleting:
                return status, document, in_doubt
            in_doubt = in_doubt or document.get("applied") != "no"
            if status in allowed:
                return status, document, in_doubt
            if status not in RETRIED and status != 0:
                self.history.wrong.append(f"{method} {path} was answered {status} {document.get('detail')}")
                return status, document, in_doubt
            if dice.random() < GIVE_UP or time.monotonic() > began + PATIENCE_SECONDS:
                return status, document, in_doubt
            await asyncio.sleep(dice.uniform(0.01, 0.1))

    async def _send(self, dice, method, path, body, headers, seen):
        """Send once, to any replica; status 0 says that no answer came."""
        serving = self._replicas.serving
        if not serving:
            await asyncio.sleep(0.02)
            return 0, {"applied": "no"}
        url, began = dice.choice(serving).url + path, time.monotonic()
        try:
            if body is not None and body.get("stream"):
                return await self._read_stream(url, body, headers, seen)
            answer = await self._http.request(method, url, json=body, headers=headers)
            self.history.slowest_seconds = max(self.history.slowest_seconds, time.monotonic() - began)
            return answer.status_code, json.loads(answer.content) if answer.content else {}
        except (httpx.ConnectError, httpx.ConnectTimeout):
            return 0, {"applied": "no"}
        except httpx.TransportError:
            return 0, {}

    async def _read_stream(self, url, body, headers, seen):
        """Read events to the end; what a reader was shown must be in every later answer to the same key."""
        ids, name = [], None
        async with self._http.stream("POST", url, json=body, headers=headers) as answer:
            if answer.status_code != 200:
                return answer.status_code, json.loads(await answer.aread())
            async for line in answer.aiter_lines():
                if line.startswith("event:"):
                    name = line.removeprefix("event:").strip()
                if not line.startswith("data:"):
                    continue
                data = json.loads(line.removeprefix("data:"))
                if name == "token":
                    ids.append(data["id"])
                    self._compare(seen, ids, headers)
                elif name == "end":
                    return 200, data | {"ids": ids}
                else:
                    return data["status"], data
        return 0, {}

    def _compare(self, seen, ids, headers):
        if len(ids) > len(seen):
            seen.append(ids[-1])
        elif seen[len(ids) - 1] != ids[-1]:
            self.history.wrong.append(f"a repeat of {headers['idempotency-key']} streamed another text")


def some_text(dice):
    """Up to some segments, so that faults fall into every phase of the grid."""
    return "".join(dice.choices(LETTERS, k=dice.randint(1, 24)))


def _generation(dice):
    return {
        "max_tokens": dice.randint(1, 40),
        "commit": True,
        "learn_from_output": dice.random() < 0.5,
    }
