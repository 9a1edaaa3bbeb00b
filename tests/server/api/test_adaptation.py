"""The adaptation object over HTTP: what is asked for, what was used, and what there is."""

import pytest

from rlstm_server.api.session_shapes import CreatedOut, SessionOut
from rlstm_server.schemas import DEFAULT_EXPERTS

TEXT = "It was the best of times, it was the worst of times. "


async def created(client, status=201, **adaptation):
    answer = await client.post("/sessions", json={"adaptation": adaptation})
    assert answer.status_code == status, answer.text
    if status == 201:
        CreatedOut.model_validate(answer.json())
    return answer.json()


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
        "rates": [0.0, rule["rate"]],
    }
    assert (made["weights"], made["norm_ratio"]) == ([0.5, 0.5], 0.0)


@pytest.mark.parametrize(
    ("asked", "weights"),
    [
        ({"kind": "output_bias", "experts": 4}, 4),
        ({"num_fast_weights": 256, "experts": 1}, 1),
        ({"kind": "output_bias", "static": False}, 1),
        ({"kind": "full", "rate_scale": 2.5}, DEFAULT_EXPERTS),
    ],
)
async def test_a_session_learns_as_it_asked_to(client, asked, weights):
    """What was asked for comes back; the weights are one an expert and sum to 1, in every answer."""
    made = await created(client, **asked)
    answer = (await client.post(f"/sessions/{made['id']}/append", json={"text": TEXT})).json()
    found = (await client.get(f"/sessions/{made['id']}")).json()
    SessionOut.model_validate(found)

    assert asked.items() <= found["adaptation"].items()
    assert len(found["adaptation"]["rates"]) == len(answer["weights"]) == weights
    assert sum(answer["weights"]) == pytest.approx(1.0)
    assert (answer["weights"], answer["norm_ratio"]) == (found["weights"], found["norm_ratio"])
    assert answer["norm_ratio"] > 0
    assert answer["guards"] == {}


async def test_kinds_learn_differently_and_each_session_by_its_own(client):
    """Two sessions of two kinds, read in turn, are what each is alone."""
    kinds = [{"kind": "full"}, {"kind": "output_bias"}]
    mixed = [await created(client, **kind) for kind in kinds]
    turns = [
        [(await client.post(f"/sessions/{one['id']}/append", json={"text": TEXT})).json() for one in mixed]
        for _ in range(2)
    ]
    for index, kind in enumerate(kinds):
        alone = (await created(client, **kind))["id"]
        for turn in turns:
            again = (await client.post(f"/sessions/{alone}/append", json={"text": TEXT})).json()
            assert again["logprobs"] == turn[index]["logprobs"]
    assert turns[1][0]["logprobs"] != turns[1][1]["logprobs"]


async def test_a_scored_text_names_what_was_used(client):
    """Adapting inside a text takes the same object, and a static score says nothing of it."""
    asked = {"kind": "output_bias", "experts": 4}
    adapted = (await client.post("/score", json={"text": TEXT, "adaptation": asked})).json()
    session = await created(client, **asked)
    read = (await client.post(f"/sessions/{session['id']}/append", json={"text": TEXT})).json()

    assert adapted["adaptation"] == session["adaptation"]
    assert adapted["items"][0]["logprobs"] == read["logprobs"]
    assert "adaptation" not in (await client.post("/score", json={"text": TEXT})).json()


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


async def test_the_choice_is_part_of_a_creations_body(client):
    """The same key with another choice is another request."""
    headers = {"Idempotency-Key": "k"}
    first = await client.post("/sessions", json={"adaptation": {"experts": 4}}, headers=headers)
    again = await client.post("/sessions", json={"adaptation": {"experts": 4}}, headers=headers)
    other = await client.post("/sessions", json={"adaptation": {"experts": 1}}, headers=headers)

    assert (again.json()["id"], again.json()["adaptation"]) == (
        first.json()["id"],
        first.json()["adaptation"],
    )
    assert other.status_code == 422
