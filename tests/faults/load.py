"""Clients under which a service is broken: they append, read, generate, make sessions, end them, and repeat.

Every changing request carries a key and is sent again until somebody says what became of it; now and then a
client loses patience, repeats what was acknowledged long ago, or insists on a version. Every answer is held
against its request by content, at once.
"""

import asyncio
import random

from .history import Asked, Read, Told
from .requests import Requests
from .workers import Workers

PROBE = "the quick brown fox"
LETTERS = "the quick brown fox jumps\n"
SNAPSHOTS = 4
ACTS = {
    "append": 56,
    "insist": 6,
    "repeat": 8,
    "mismatch": 1,
    "read": 8,
    "generate": 5,
    "stream": 4,
    "reset": 2,
    "update": 2,
    "snapshot": 2,
    "restore": 2,
    "create": 3,
    "fork": 3,
    "delete": 3,
}
ROUTES = {
    "append": ("POST", "/append"),
    "generate": ("POST", "/generate"),
    "reset": ("POST", "/reset"),
    "restore": ("POST", "/restore"),
    "update": ("PATCH", ""),
}


class Clients:
    """`workers` clients of the replicas; each draws what it does from the seed and its number.

    sessions       how many there are about at any time
    adaptations    of the sessions that they make, drawn evenly
    timeout        seconds that they wait for one answer
    without        what they never do
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
        timeout=15.0,
        without=(),
    ):
        self.history = history
        self._requests = Requests(replicas, history, timeout)
        self.workers = Workers(seed, workers, self._act)
        self._seed = seed
        self._count = sessions
        self._adaptations = adaptations
        self._acts = {act: weight for act, weight in ACTS.items() if act not in without}
        self._keys = 0

    async def __aenter__(self):
        """Make the first sessions, then begin."""
        dice = random.Random(f"{self._seed} first")
        await asyncio.gather(*(self._create(dice) for _ in range(self._count)))
        self.workers.start()
        return self

    async def __aexit__(self, *_):
        """Let everybody finish what they are at."""
        try:
            await self.workers.end()
        finally:
            await self._requests.close()

    async def end_sessions(self):
        """End all sessions, and forget them; only while nobody works."""
        dice = random.Random(f"{self._seed} last")
        for told in self.history.living:
            told.forked = False
            await self._delete(dice, told)
        self.history.sessions.clear()

    async def _act(self, dice):
        living, act = self.history.living, dice.choices(list(self._acts), list(self._acts.values()))[0]
        if len(living) < self._count:
            act = "create"
        elif len(living) > 2 * self._count:
            act = "delete"
        if act == "create":
            await self._create(dice)
        else:
            await getattr(self, f"_{act}")(dice, dice.choice(living))

    # ---- sessions -----------------------------------------------------------------------------------------

    async def _create(self, dice):
        body = {"adaptation": dice.choice(self._adaptations)}
        if dice.random() < 0.3:
            body["text"] = some_text(dice)
        key, made = await self._make(dice, "/sessions", body)
        if made is None:
            return
        told = self._tell_of(made, body)
        if "text" in body:
            first = Asked("append", f"{key}#first", {"text": body["text"]})
            self._acknowledge(told, told.asked.setdefault(first.key, first), made["append"])

    async def _fork(self, dice, parent):
        body, parent.forked = {}, True
        if parent.snapshots and dice.random() < 0.5:
            body["snapshot"] = dice.choice(list(parent.snapshots))
        _, made = await self._make(dice, f"/sessions/{parent.id}/fork", body, parent)
        if made is None:
            return
        origin = made["forked_from"]
        told = self._tell_of(made, body, parent=(parent, origin["version"], made["learning"]))
        expected = parent.snapshots.get(body.get("snapshot"), origin["version"])
        if (origin["session"], origin["version"]) != (parent.id, expected):
            self.history.wrong.append(f"the fork {told.id} says that it is of another version or session")

    async def _make(self, dice, path, body, told=None):
        key = self._key()
        self.history.creations.add(key)
        body["metadata"] = {"asked": key}
        if dice.random() < 0.3:
            body["name"] = key
        answer = await self._requests.until_known(dice, "POST", path, body, key, told=told)
        return key, answer.document if answer.status == 201 else None

    def _tell_of(self, made, body, parent=None):
        told = self.history.sessions.setdefault(made["id"], Told(made["id"], body, parent))
        if told.creation["metadata"] != body["metadata"]:
            self.history.wrong.append(f"two creations were given the session {told.id}")
        self.history.acknowledge()
        return told

    async def _delete(self, dice, told):
        if told.forked:
            # What a fork began with is in the history of its parent, for the checker to read.
            await self._append(dice, told)
            return
        told.deleting = True
        answer = await self._requests.until_known(dice, "DELETE", f"/sessions/{told.id}", told=told)
        told.deleted = told.deleted or answer.status == 204

    # ---- changes ------------------------------------------------------------------------------------------

    async def _append(self, dice, told):
        body = {"text": some_text(dice), "learn": dice.random() < 0.8}
        await self._change(dice, told, Asked("append", self._key(), body))

    async def _insist(self, dice, told):
        body = {"text": some_text(dice)}
        await self._change(dice, told, Asked("append", self._key(), body, if_match=told.newest))

    async def _reset(self, dice, told):
        body = {"what": dice.choice(["fast_weights", "recurrent", "both"])}
        await self._change(dice, told, Asked("reset", self._key(), body))

    async def _update(self, dice, told):
        await self._change(dice, told, Asked("update", self._key(), {"learning": dice.random() < 0.7}))

    async def _restore(self, dice, told):
        if told.snapshots:
            body = {"snapshot": dice.choice(list(told.snapshots))}
            await self._change(dice, told, Asked("restore", self._key(), body))

    async def _generate(self, dice, told, **more):
        body = {"max_tokens": dice.randint(1, 40), "learn_from_output": dice.random() < 0.5}
        await self._change(dice, told, Asked("generate", self._key(), body | {"commit": True} | more))

    async def _stream(self, dice, told):
        await self._generate(dice, told, stream=True)

    async def _change(self, dice, told, asked):
        told.asked[asked.key] = asked
        method, route = ROUTES[asked.kind]
        answer = await self._requests.until_known(
            dice,
            method,
            f"/sessions/{told.id}{route}",
            asked.body,
            asked.key,
            told=told,
            if_match=asked.if_match,
            seen=asked.seen,
            allowed=() if asked.if_match is None else {412},
        )
        if answer.status == 200:
            self._acknowledge(told, asked, answer.document)
        else:
            asked.outcome = "unknown" if answer.in_doubt else "refused"

    def _acknowledge(self, told, asked, document):
        asked.outcome, asked.version, asked.reply = "acknowledged", document["version"], document
        told.newest = max(told.newest, asked.version)
        self.history.acknowledge()
        if asked.kind == "append":
            self._check_text(asked, document)
        if asked.if_match is not None and asked.version != asked.if_match + 1:
            self.history.wrong.append(f"{asked.key} insisted on version {asked.if_match}: {asked.version}")
        if asked.kind == "generate" and len(document["ids"]) > asked.body["max_tokens"]:
            self.history.wrong.append(f"{asked.key} was given more than it asked for")

    def _check_text(self, asked, document):
        """An answer is of its request's text, or says that its scores are no longer stored."""
        if document["scores_stored"] and document.get("ids") != list(asked.body["text"].encode()):
            self.history.wrong.append(f"the answer to {asked.key} is of another text")

    # ---- what changes nothing -----------------------------------------------------------------------------

    async def _repeat(self, dice, told):
        """Send again what was acknowledged: the answer is the same, and nothing happens."""
        if not (known := told.acknowledged("append")):
            return
        asked = dice.choice(known)
        answer = await self._requests.until_known(
            dice, "POST", f"/sessions/{told.id}/append", asked.body, asked.key, told=told
        )
        if answer.status == 200:
            self._check_text(asked, answer.document)
            # Not always `replayed`: a server that had no reply to its own commit cannot tell the two apart.
            if answer.document["version"] != asked.version:
                self.history.wrong.append(f"a repeat of {asked.key} was told {answer.document['version']}")

    async def _mismatch(self, dice, told):
        """Use a key again for another text: refused, and nothing happens."""
        if not (known := told.acknowledged("append")):
            return
        asked = dice.choice(known)
        body = asked.body | {"text": asked.body["text"] + "!"}
        answer = await self._requests.until_known(
            dice, "POST", f"/sessions/{told.id}/append", body, asked.key, told=told, allowed={422}
        )
        if answer.status == 200:
            self.history.wrong.append(f"the key {asked.key} was taken for two texts")

    async def _read(self, dice, told):
        floor = told.newest
        body = {"candidates": [{"text": PROBE}], "min_version": floor}
        answer = await self._requests.until_known(dice, "POST", f"/sessions/{told.id}/score", body, told=told)
        if answer.status == 200:
            told.reads.append(Read(answer.document["version"], answer.document["candidates"][0]["logprob"]))
            if answer.document["version"] < floor:
                self.history.wrong.append(f"a read of {told.id} was older than what was acknowledged")

    async def _snapshot(self, dice, told):
        """Give the present version a name; no version is made."""
        if len(told.snapshots) >= SNAPSHOTS:
            return
        name = self._key()
        answer = await self._requests.until_known(
            dice, "POST", f"/sessions/{told.id}/snapshots", {"name": name}, name, told=told
        )
        if answer.status == 201:
            told.snapshots[name] = answer.document["version"]
            self.history.acknowledge()

    def _key(self):
        self._keys += 1
        return f"k{self._keys}"


def some_text(dice):
    """Up to some segments, so that faults fall into every phase of the grid."""
    return "".join(dice.choices(LETTERS, k=dice.randint(1, 24)))
