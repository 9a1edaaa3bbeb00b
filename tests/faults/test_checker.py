"""The checker itself: it has nothing to say of a run without a fault, and something once that is forged."""

import asyncio
import json
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass

import httpx
import pytest
from rlstm_server.store.sealing import MAGIC, Seal, seal

from .checker import judge
from .history import Asked
from .load import Clients

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Scene:
    """What is tampered with: what clients were told, what the store holds, and a server to ask for more."""

    history: object
    store: object
    url: str

    def some(self, kind):
        """A session that nobody asked to end, and an operation on it that was acknowledged."""
        return next((told, asked) for told in self.history.living for asked in told.acknowledged(kind))

    @contextmanager
    def key(self, told, part):
        """Give the store's client, and the key of a part of a session."""
        with self.store.admin() as admin:
            key = f"rlstm:{{default/{told.id}}}:{part}".encode()
            assert admin.exists(key) == 1
            yield admin, key

    def ask(self, path, body):
        """Have a server do something that nobody is told of."""
        httpx.post(f"{self.url}{path}", json=body, timeout=30).raise_for_status()


# ---- lost --------------------------------------------------------------------------------------------------


def claim_what_never_was(scene):
    """Say that an operation was acknowledged which is not there."""
    told, asked = scene.some("append")
    told.asked["never"] = Asked(
        "append", "never", asked.body, None, "acknowledged", asked.version, asked.reply
    )


def move(scene):
    """Say that an operation was acknowledged at another version."""
    scene.some("generate")[1].version += 1


def change_a_text(scene):
    """Say that a kept text was another one."""
    scene.some("generate")[1].reply["ids"][0] ^= 1


def keep_what_was_ended(scene):
    """Say that somebody was told of the end of a session."""
    told, _ = scene.some("append")
    told.deleting = told.deleted = True


def lose_a_log(scene):
    """Remove a log from the store."""
    with scene.key(scene.some("append")[0], "log") as (admin, key):
        admin.delete(key)


def lose_a_session(scene):
    """Remove a session from the store."""
    with scene.key(scene.some("append")[0], "head") as (admin, key):
        admin.delete(key)


# ---- twice -------------------------------------------------------------------------------------------------


def do_it_again(scene):
    """Have a text in a session twice, as an operation that was committed under its key two times."""
    told, asked = scene.some("append")
    scene.ask(f"/sessions/{told.id}/append", asked.body)
    with scene.key(told, "log") as (admin, key):
        *records, (last, record) = admin.xrange(key)
        admin.delete(key)
        for version, fields in (*records, (last, {**record, b"operation": asked.key.encode()})):
            admin.xadd(key, fields, id=version)


def create_it_again(scene):
    """Make a second session for one creation."""
    told, _ = scene.some("append")
    scene.ask("/sessions", {"metadata": told.creation["metadata"]})


# ---- digests -----------------------------------------------------------------------------------------------


def damage_a_state(scene):
    """Flip a byte of a stored state, and of the one before it that would help out."""
    with scene.key(scene.some("append")[0], "head") as (admin, key):
        for name, value in _states(admin, key):
            admin.hset(key, name, value[:-4] + bytes([value[-4] ^ 1]) + value[-3:])


def change_a_state(scene):
    """Flip a byte of a stored state, and seal it as if it had been computed so."""
    with scene.key(scene.some("append")[0], "head") as (admin, key):
        for name, value in _states(admin, key):
            length = int.from_bytes(value[len(MAGIC) : len(MAGIC) + 4], "little")
            start = len(MAGIC) + 4
            header = json.loads(value[start : start + length])
            payload = value[-header.pop("length") :]
            changed = payload[:-4] + bytes([payload[-4] ^ 1]) + payload[-3:]
            admin.hset(key, name, seal(Seal(**header), changed))


def _states(admin, key):
    states = {name: admin.hget(key, name) for name in ("base_state", "previous_state")}
    assert states["base_state"]
    return [(name, value) for name, value in states.items() if value]


# ---- wrong -------------------------------------------------------------------------------------------------


def deny(scene):
    """Say that an operation was refused which is there."""
    scene.some("append")[1].outcome = "refused"


def change_a_score(scene):
    """Say that an answer had another score."""
    scene.some("append")[1].reply["logprobs"][0] -= 1e-9


TAMPERINGS = {
    "lost": (
        claim_what_never_was,
        move,
        change_a_text,
        keep_what_was_ended,
        lose_a_log,
        lose_a_session,
    ),
    "twice": (do_it_again, create_it_again),
    "digests": (damage_a_state, change_a_state),
    "wrong": (deny, change_a_score),
}


@contextmanager
def as_it_was(store):
    """Have all that a store holds afterwards as it was before."""
    with store.admin() as admin:
        held = {key: (max(0, admin.pttl(key)), admin.dump(key)) for key in admin.keys("*")}
        yield
        admin.flushdb()
        for key, (ttl_ms, dumped) in held.items():
            admin.restore(key, ttl_ms, dumped)


async def test_what_is_tampered_with_is_found(serve, tiny_checkpoint):
    """Each loss, repetition, difference and lie fills the list that it belongs to and no other."""
    found = {}
    async with serve(seats=2) as service:
        history = service.history
        async with Clients(
            service.replicas, history, seed=43, workers=6, sessions=4, without={"delete", "fork"}
        ) as clients:
            while not any(told.acknowledged("generate") for told in history.living):
                await service.nemesis.some_work(clients)
        assert (await judge(history, service.store.url, tiny_checkpoint)).faults == []
        for tamper in (one for kind in TAMPERINGS.values() for one in kind):
            with as_it_was(service.store):
                scene = Scene(deepcopy(history), service.store, service.replicas.serving[0].url)
                await asyncio.to_thread(tamper, scene)
                verdict = await judge(scene.history, service.store.url, tiny_checkpoint)
            found[tamper.__name__] = [kind for kind in TAMPERINGS if getattr(verdict, kind)]
    expected = {one.__name__: [kind] for kind, those in TAMPERINGS.items() for one in those}
    missed = [name for name, kinds in expected.items() if found[name] != kinds]
    print(f"{len(expected) - len(missed)}/{len(expected)} kinds of tampering found")

    assert found == expected
