"""The checker itself: it has nothing to say of a run without a fault, and something once that is forged."""

import asyncio
import hashlib
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass

import httpx
import pytest

from rlstm_server.engine.state import MAGIC

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


def lose_a_snapshot(scene):
    """Say that a version was given a name."""
    scene.some("append")[0].snapshots["never"] = 1


def lose_a_session(scene):
    """Remove a session from the store."""
    with scene.key(scene.some("append")[0], "head") as (admin, key):
        admin.delete(key)


# ---- twice -------------------------------------------------------------------------------------------------


def do_it_again(scene):
    """Have a text in a session twice, under a key of its own, and nothing left that says so."""
    told, asked = scene.some("append")
    scene.ask(f"/sessions/{told.id}/append", asked.body)
    with scene.key(told, "ops") as (admin, key):
        version = admin.hget(key.replace(b":ops", b":head"), "version")
        for name, entry in admin.hgetall(key).items():
            if name.startswith(b"o:") and entry.startswith(version + b"|"):
                admin.hdel(key, name)


def create_it_again(scene):
    """Make a second session for one creation."""
    told, _ = scene.some("append")
    scene.ask("/sessions", {"metadata": told.creation["metadata"]})


# ---- states ------------------------------------------------------------------------------------------------


def damage_a_state(scene):
    """Flip a byte of a stored state."""
    _change_state(scene, lambda value: _flipped(value))


def change_a_state(scene):
    """Flip a byte of a stored state, with the right checksum, as if it had been computed so."""

    def changed(value):
        content = _flipped(value)[len(MAGIC) + 32 :]
        return MAGIC + hashlib.blake2b(content, digest_size=32).digest() + content

    _change_state(scene, changed)


def _flipped(value):
    return value[:-4] + bytes([value[-4] ^ 1]) + value[-3:]


def _change_state(scene, change):
    with scene.key(scene.some("append")[0], "head") as (admin, key):
        admin.hset(key, "state", change(admin.hget(key, "state")))


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
        lose_a_snapshot,
        lose_a_session,
    ),
    "twice": (do_it_again, create_it_again),
    "states": (damage_a_state, change_a_state),
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
