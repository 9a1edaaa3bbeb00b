"""Secrets that one session has learned: no other, nor the next one in its place, knows a bit of them."""

import asyncio
import math
import random

import httpx
import pytest

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

DECOYS = 63
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEXT = "It was the best of times, it was the worst of times; it was the age of wisdom. "
READINGS = 4


def secret(dice):
    """Twelve letters that mean nothing."""
    return "".join(dice.choices(LETTERS, k=12))


async def scores(client, session, texts):
    """What each text is worth to a session."""
    candidates = {"candidates": [{"text": text} for text in texts]}
    answer = await client.post(f"/sessions/{session}/score", json=candidates)
    found = sorted(answer.json()["candidates"], key=lambda candidate: int(candidate["id"]))
    return [candidate["logprob"] for candidate in found]


def exposure(canaries, decoys):
    """Bits by which canaries rank before decoys, on average (the measure of The Secret Sharer)."""
    ranks = [1 + sum(decoy >= canary for decoy in decoys) for canary in canaries]
    return sum(math.log2((len(decoys) + 1) / rank) for rank in ranks) / len(ranks)


async def test_secrets_stay_in_the_session_that_learned_them(serve, sizes):
    """Canaries: known where they were read, unknown to the last bit elsewhere and after DELETE."""
    dice, number = random.Random(29), sizes.canaries
    canaries, decoys = [secret(dice) for _ in range(number)], [secret(dice) for _ in range(DECOYS)]
    learning = {"adaptation": {"experts": 1, "rate_scale": 10, "static": False}}
    async with serve() as service:
        clients = [httpx.AsyncClient(base_url=one.url, timeout=60) for one in service.replicas.seats]
        first = clients[0]

        async def begin(**more):
            return (await first.post("/sessions", json=learning | more)).json()["id"]

        async def read(session, text):
            answer = await dice.choice(clients).post(f"/sessions/{session}/append", json={"text": text})
            assert answer.status_code == 200

        async def learn(session):
            """Read every canary; give how well the session knows each just then."""
            known = []
            for canary in canaries:
                await read(session, f"{canary} " * READINGS)
                own, *others = await scores(dice.choice(clients), session, [canary, *decoys])
                known.append(exposure([own], others))
            return sum(known) / len(known)

        async def read_on(session):
            for _ in range(READINGS):
                await read(session, TEXT)

        nobody, alone, beside = [await begin() for _ in range(3)]
        knowing = await begin(name="knowing")
        asked = canaries + decoys
        untold = await scores(first, nobody, asked)
        await read_on(alone)
        expected = await scores(first, alone, asked)
        known, _ = await asyncio.gather(learn(knowing), read_on(beside))
        elsewhere = [await scores(client, beside, asked) for client in clients]
        assert (await first.delete(f"/sessions/{knowing}")).status_code == 204
        again = await begin(name="knowing")
        after = [await scores(client, again, asked) for client in clients]
        for client in clients:
            await client.aclose()

    bits = [exposure(found[:number], found[number:]) for found in (untold, elsewhere[0], after[0])]
    print(
        f"{number} canaries: exposure {known:.1f} bits where they were read, {bits[1]:.1f} elsewhere,"
        f" {bits[2]:.1f} after DELETE and a new session (chance {bits[0]:.1f})"
    )
    assert known > bits[0] + 2
    assert elsewhere == [expected] * len(clients)
    assert after == [untold] * len(clients)
