"""The adaptation object over HTTP: what is asked for, what was used, and what there is."""

import math

import pytest

from rlstm_server.schemas.text import DEFAULT_EXPERTS

OCTETS = {"content-type": "application/octet-stream"}
TEXT = "It was the best of times, it was the worst of times. "


async def created(client, **adaptation):
    return await client.ask(201, "POST", "/sessions", {"adaptation": adaptation})


async def test_a_session_that_asks_for_nothing_is_told_what_it_gets(client):
    """Create, info and listing name kind, size, experts and rates alike."""
    made = await created(client)
    found = (await client.get(f"/sessions/{made['id']}")).json()
    (listed,) = (await client.get("/sessions")).json()["sessions"]
    rule = (await client.get("/info")).json()["adaptation"]["rules"][0]

    assert made["adaptation"] == found["adaptation"] == listed["adaptation"]
    assert made["adaptation"] == {
        "kind": rule["kind"],
        "num_fast_weights": rule["num_fast_weights"],
        "experts": DEFAULT_EXPERTS,
        "rate_scale": 1.0,
        "static": True,
        "adapt": "both",
        "rates": [0.0, rule["rate"]],
    }
    assert (made["weights"], made["norm_ratio"]) == ([1 / 3] * 3, 0.0)


@pytest.mark.parametrize(
    ("asked", "weights"),
    [
        ({"kind": "output_bias", "experts": 4}, 5),
        ({"num_fast_weights": 256, "experts": 1}, 1),
        ({"kind": "output_bias", "static": False}, 1),
        ({"kind": "full", "rate_scale": 2.5}, DEFAULT_EXPERTS + 1),
    ],
)
async def test_a_session_learns_as_it_asked_to(client, asked, weights):
    """What was asked for comes back; the weights are one an expert and sum to 1, in every answer."""
    made = await created(client, **asked)
    answer = (await client.post(f"/sessions/{made['id']}/append", json={"text": TEXT})).json()
    found = (await client.get(f"/sessions/{made['id']}")).json()

    assert asked.items() <= found["adaptation"].items()
    remembers = found["adaptation"]["adapt"] == "both"
    assert len(found["adaptation"]["rates"]) + remembers == len(answer["weights"]) == weights
    assert sum(answer["weights"]) == pytest.approx(1.0)
    assert (answer["weights"], answer["norm_ratio"]) == (found["weights"], found["norm_ratio"])
    assert answer["norm_ratio"] > 0
    assert answer["guards"] == {}


@pytest.mark.parametrize(("adapt", "mixed"), [("weights", 2), ("memory", 2), ("both", 3)])
async def test_a_session_adapts_by_what_it_asks_for(client, adapt, mixed):
    """By the short form and the long one; `/score` gives the same numbers, and a session elsewhere."""
    made = (await client.post("/sessions", json={"adapt": adapt})).json()
    long = await created(client, adapt=adapt)
    usual = (await client.post("/sessions", json={"adapt": True})).json()
    assert (usual["adaptation"] == made["adaptation"]) == (adapt == "both")
    assert made["adaptation"] == long["adaptation"]
    assert made["adaptation"]["adapt"] == adapt
    answer = (await client.post(f"/sessions/{made['id']}/append", json={"text": TEXT})).json()
    scored = (await client.post("/score", json={"text": TEXT, "adapt": adapt})).json()
    (item,) = scored["items"]

    assert len(answer["weights"]) == mixed
    assert "memory_logprobs" not in answer
    assert item["logprobs"] == answer["logprobs"]
    assert scored["adaptation"] == made["adaptation"]
    assert (answer["updates"] > 0) == (adapt != "memory")
    file = (await client.get(f"/sessions/{made['id']}/export")).content
    brought = (await client.post("/sessions/import", content=file, headers=OCTETS)).json()
    assert "id" in brought, brought
    more = [
        (await client.post(f"/sessions/{session}/append", json={"text": TEXT})).json()["logprobs"]
        for session in (made["id"], brought["id"])
    ]
    assert more[0] == more[1]
    assert sum(more[0]) > sum(answer["logprobs"])


async def test_info_lists_all_rules_with_their_bytes(client):
    """Kind, size, rate and the bytes of a session that learns so, the default first."""
    learning = (await client.get("/info")).json()["adaptation"]
    full, bias = learning["rules"]

    assert (full["kind"], bias["kind"], bias["num_fast_weights"]) == ("full", "output_bias", 256)
    assert full["rate"] == bias["rate"] == 0.003
    assert full["state_bytes"] - bias["state_bytes"] == 4 * (full["num_fast_weights"] - 256)
    assert (learning["experts"], learning["default_experts"]) == ([1, 2, 4], DEFAULT_EXPERTS)
    made = await created(client, kind="output_bias")
    await client.post(f"/sessions/{made['id']}/append", json={"text": TEXT})
    stored = (await client.get(f"/sessions/{made['id']}")).json()["state_bytes"]
    assert (
        bias["state_bytes"] <= stored <= bias["state_bytes"] + 4_096
    )  # the header, and what it is sealed with


async def test_answers_tell_what_each_part_makes_of_a_token(client):
    """Weights and memory, on request; a repeat and `/score` tell the same, totals the sums."""
    made = (await client.post("/sessions", json={})).json()
    path, body = f"/sessions/{made['id']}/append", {"text": TEXT * 2, "scores": "parts", "spaces": True}
    answer = (await client.post(path, json=body, headers={"Idempotency-Key": "once"})).json()
    repeat = (await client.post(path, json=body, headers={"Idempotency-Key": "once"})).json()
    (item,) = (await client.post("/score", json={**body, "adapt": True})).json()["items"]
    sums = (await client.get(f"/sessions/{made['id']}")).json()["totals"]

    for part in ("static", "weights", "memory"):
        column = answer[f"{part}_logprobs"]
        assert len(column) == answer["totals"]["tokens"] == len(TEXT) * 2
        assert column == pytest.approx(item[f"{part}_logprobs"])
        assert column == repeat[f"{part}_logprobs"]
        assert answer["totals"][f"{part}_logprob"] == pytest.approx(sum(column))
        assert sums[f"{part}_bits"] == pytest.approx(-sum(column) / math.log(2))
    for column in ("space_logprobs", "static_space_logprobs"):
        assert answer[column] == pytest.approx(item[column])
        assert answer[column] == repeat[column]
    bound = math.log(len(answer["weights"])) + math.log(2 * len(TEXT) + 1)
    assert answer["totals"]["logprob"] > answer["totals"]["memory_logprob"] - bound
    assert answer["weights_logprobs"] != answer["memory_logprobs"]


async def test_without_a_memory_there_are_no_parts(client):
    """Then the weights' log-probabilities are the answer's own."""
    made = (await client.post("/sessions", json={"adapt": "weights"})).json()
    path = f"/sessions/{made['id']}/append"
    answer = (await client.post(path, json={"text": TEXT, "scores": "parts"})).json()
    assert "memory_logprobs" not in answer
    assert "memory_logprob" not in answer["totals"]
