"""The checker itself: it has nothing to say of a run without a fault, and something once that is forged."""

import asyncio
from copy import deepcopy

import pytest

from .checker import judge
from .history import Asked
from .load import Clients

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


def some(history, kind):
    """A session that nobody asked to end, and an operation on it that was acknowledged."""
    return next((told, asked) for told in history.living for asked in told.acknowledged(kind))


def forget(store, key):
    """Remove a key of the store."""
    with store.admin() as admin:
        assert admin.delete(key) == 1


def claim_what_never_was(history, store):
    """Say that an operation was acknowledged which is not there."""
    told, asked = some(history, "append")
    told.asked["never"] = Asked(
        "append", "never", asked.body, None, "acknowledged", asked.version, asked.reply
    )


def move(history, store):
    """Say that an operation was acknowledged at another version."""
    some(history, "append")[1].version += 1


def deny(history, store):
    """Say that an operation was refused which is there."""
    some(history, "append")[1].outcome = "refused"


def change_a_score(history, store):
    """Say that an answer had another score."""
    some(history, "append")[1].reply["logprobs"][0] -= 1e-9


def change_a_text(history, store):
    """Say that a kept text was another one."""
    some(history, "generate")[1].reply["ids"][0] ^= 1


def lose_a_session(history, store):
    """Remove a session from the store."""
    forget(store, f"rlstm:{{default/{some(history, 'append')[0].id}}}:head")


def lose_a_log(history, store):
    """Remove a log from the store."""
    forget(store, f"rlstm:{{default/{some(history, 'append')[0].id}}}:log")


def keep_what_was_ended(history, store):
    """Say that somebody was told of the end of a session."""
    told, _ = some(history, "append")
    told.deleting = told.deleted = True


TAMPERINGS = (
    claim_what_never_was,
    move,
    deny,
    change_a_score,
    change_a_text,
    keep_what_was_ended,
    lose_a_log,
    lose_a_session,
)


async def test_what_is_tampered_with_is_found(serve, tiny_checkpoint):
    """Each kind of loss, lie and difference; and nothing before that."""
    missed = []
    async with serve(seats=2) as service:
        history = service.history
        async with Clients(
            service.replicas, history, seed=43, workers=6, sessions=6, without={"delete", "fork"}
        ) as clients:
            while not any(told.acknowledged("generate") for told in history.living):
                await service.nemesis.some_work(clients)
        assert (await judge(history, service.store.url, tiny_checkpoint)).faults == []
        for tamper in TAMPERINGS:
            told = deepcopy(history)
            await asyncio.to_thread(tamper, told, service.store)
            if not (await judge(told, service.store.url, tiny_checkpoint)).faults:
                missed.append(tamper.__name__)
    print(f"{len(TAMPERINGS) - len(missed)}/{len(TAMPERINGS)} kinds of tampering found")

    assert missed == []
