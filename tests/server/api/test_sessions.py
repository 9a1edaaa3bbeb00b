import asyncio
import math

import pytest

TEXT = "It was the best of times, it was the worst of times. "


async def create(client, headers=None, **body):
    answer = await client.post("/sessions", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def act(client, session, verb, headers=None, **body):
    answer = await client.post(f"/sessions/{session}/{verb}", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def info(client, session):
    answer = await client.get(f"/sessions/{session}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_session_learns_from_its_stream(client):
    """Scores come first, updates after; versions and positions count; the gain adds up."""
    session = (await create(client))["id"]
    answers = [await act(client, session, "append", text=TEXT) for _ in range(4)]
    assert [answer["version"] for answer in answers] == [1, 2, 3, 4]
    assert answers[-1]["position"] == 4 * len(TEXT)
    assert sum(answer["updates"] for answer in answers) == 4 * len(TEXT) // 8
    assert answers[-1]["totals"]["gain"] > 0
    found = await info(client, session)
    gained = math.fsum(answer["totals"]["gain"] for answer in answers) / math.log(2)
    assert found["totals"]["gain"] == pytest.approx(gained, abs=1e-6)
    assert found["totals"]["tokens"] == 4 * len(TEXT)


async def test_a_first_text_is_answered_under_append(client):
    """Creating with a text is creating, then appending."""
    made = await create(client, text=TEXT, scores="totals", unit="bits")
    bare = (await create(client))["id"]
    appended = await act(client, bare, "append", text=TEXT, scores="totals", unit="bits")
    assert made["append"]["totals"] == appended["totals"]
    assert made["version"] == appended["version"]


async def test_a_stream_may_be_cut_anywhere(client):
    """The same text whole and in two pieces scores the same to 1e-5 nats a token."""
    whole = await create(client, text=TEXT)
    parts = await create(client, text=TEXT[:13])
    rest = await act(client, parts["id"], "append", text=TEXT[13:])
    pieces = parts["append"]["logprobs"] + rest["logprobs"]
    assert pieces == pytest.approx(whole["append"]["logprobs"], abs=1e-5)
    assert rest["starts"][0] == 13


async def test_a_session_without_learning_scores_like_a_text(client):
    """Static scores are those of /score."""
    made = await create(client, adaptation={"rate_scale": 0.0}, text=TEXT)
    scored = (await client.post("/score", json={"text": TEXT})).json()["items"][0]
    assert made["append"]["logprobs"] == pytest.approx(scored["logprobs"], abs=1e-5)
    assert made["append"]["totals"]["gain"] == pytest.approx(0.0, abs=1e-9)


async def test_learn_false_scores_without_learning(client):
    """The weights stay, the state moves on."""
    session = (await create(client))["id"]
    answer = await act(client, session, "append", text=TEXT, learn=False)
    assert answer["updates"] == 0
    assert answer["position"] == len(TEXT)


@pytest.mark.parametrize("scores", ["none", "totals", "tokens"])
async def test_an_answer_is_as_detailed_as_asked(client, scores):
    """Nothing, sums, or columns too."""
    session = (await create(client))["id"]
    answer = await act(client, session, "append", text="abc", scores=scores)
    assert ("ids" in answer) == (scores == "tokens")
    assert ("totals" in answer) == (scores != "none")


async def test_a_repeat_with_the_same_key_is_the_same_append(client):
    """It takes effect once; the second answer says so and repeats the first."""
    session = (await create(client))["id"]
    headers = {"Idempotency-Key": "k-1"}
    first = await act(client, session, "append", headers, text="abc")
    again = await act(client, session, "append", headers, text="abc")
    assert (first["replayed"], again["replayed"]) == (False, True)
    assert again["logprobs"] == first["logprobs"]
    assert (await info(client, session))["version"] == 1
    other = await client.post(f"/sessions/{session}/append", json={"text": "abd"}, headers=headers)
    assert other.status_code == 422
    assert other.json()["type"].endswith(":idempotency_mismatch")


async def test_a_repeated_create_makes_one_session(client):
    """The key belongs to the tenant."""
    headers = {"Idempotency-Key": "make-1"}
    first, again = await create(client, headers), await create(client, headers)
    assert first["id"] == again["id"]
    assert again["replayed"] is True
    listed = (await client.get("/sessions")).json()["sessions"]
    assert len(listed) == 1


async def test_if_match_refuses_a_session_that_has_moved_on(client):
    """412 carries the present version; the tag of any answer is what to send."""
    created = await client.post("/sessions", json={})
    path = f"/sessions/{created.json()['id']}/append"
    assert created.headers["etag"] == '"0"'
    first = await client.post(path, json={"text": "a"}, headers={"If-Match": created.headers["etag"]})
    assert first.headers["etag"] == '"1"'
    stale = await client.post(path, json={"text": "b"}, headers={"If-Match": '"0"'})
    assert stale.status_code == 412
    assert stale.json()["version"] == 1
    assert stale.headers["etag"] == '"1"'


async def test_reading_changes_nothing(client):
    """Candidates and uncommitted text leave version and next scores as they were."""
    session = (await create(client, text=TEXT))["id"]
    before = await info(client, session)
    await act(client, session, "score", candidates=[{"text": "cat"}])
    await client.post(f"/sessions/{session}/generate", json={"max_tokens": 5})
    assert await info(client, session) == before


async def test_candidates_are_ranked_by_their_mix(client):
    """Score = lm * logprob + length * tokens + given * given, in the order given, rank 1 the best."""
    session = (await create(client, text=TEXT))["id"]
    candidates = [{"id": "a", "text": "12 monkeys", "given": 3.0}, {"text": "cat"}]
    answer = await act(
        client,
        session,
        "score",
        candidates=candidates,
        weights={"lm": 0.5, "length": 0.25, "given": 2.0},
        unit="bits",
    )
    first, second = answer["candidates"]
    assert (first["id"], second["id"]) == ("a", "1")
    assert first["score"] == pytest.approx(0.5 * first["logprob"] + 0.25 * 10 + 2 * 3.0)
    assert second["score"] == pytest.approx(0.5 * second["logprob"] + 0.25 * 3)
    better = first if first["score"] > second["score"] else second
    assert better["rank"] == 1
    assert second["static_score"] == pytest.approx(0.5 * second["static_logprob"] + 0.25 * 3)
    better = first if first["static_score"] > second["static_score"] else second
    assert better["static_rank"] == 1
    appended = await act(client, session, "append", text="cat", unit="bits", scores="totals")
    for name in ("logprob", "static_logprob", "gain"):
        assert second[name] == pytest.approx(appended["totals"][name], abs=1e-4)


async def test_candidates_of_a_session_without_a_static_row_have_no_static_figures(client):
    """They are null, as in the sums of its appends."""
    session = (await create(client, adaptation={"static": False}))["id"]
    (one,) = (await act(client, session, "score", candidates=[{"text": "cat"}]))["candidates"]
    appended = await act(client, session, "append", text="cat", scores="totals")
    for name in ("static_logprob", "gain"):
        assert one[name] is appended["totals"][name] is None
    assert one["static_score"] is one["static_rank"] is None


async def test_kept_text_becomes_part_of_the_session(client):
    """The next scores follow it; the answer says where the session stands."""
    session = (await create(client, text=TEXT))["id"]
    made = (
        await client.post(f"/sessions/{session}/generate", json={"max_tokens": 5, "seed": 1, "commit": True})
    ).json()
    found = await info(client, session)
    assert (made["version"], made["position"]) == (found["version"], found["position"])
    assert found["position"] == len(TEXT) + 5


async def test_reset_forgets_and_goes_on(client):
    """Weights and state are those of a new session; totals and position stay."""
    segments = (TEXT * 4)[:160]  # whole ones: updates keep to the stream's own grid
    session = (await create(client, text=segments))["id"]
    changed = await act(client, session, "reset", what="both")
    assert changed["position"] == changed["totals"]["tokens"] == 160
    again = await act(client, session, "append", text=TEXT)
    fresh = await create(client, text=TEXT)
    assert again["logprobs"] == pytest.approx(fresh["append"]["logprobs"], abs=1e-5)


async def test_a_deleted_session_is_gone_and_stays_gone(client):
    """204, 204 again, then 410 with the reason on every route; never created is 404."""
    session = (await create(client, name="mine"))["id"]
    for _ in range(2):
        assert (await client.delete(f"/sessions/{session}")).status_code == 204
    for verb, body in (("append", {"text": "a"}), ("score", {"candidates": [{"text": "a"}]}), ("reset", {})):
        answer = await client.post(f"/sessions/{session}/{verb}", json=body)
        assert answer.status_code == 410
        assert answer.json()["type"].endswith(":session_deleted")
    assert (await client.get(f"/sessions/{session}")).status_code == 410
    assert (await client.delete(f"/sessions/{'0' * 32}")).status_code == 404
    assert (await create(client, name="mine"))["id"] != session


async def test_a_name_is_taken_once(client):
    """The second session of that name is refused."""
    await create(client, name="mine")
    answer = await client.post("/sessions", json={"name": "mine"})
    assert answer.status_code == 409
    assert answer.json()["type"].endswith(":session_exists")


async def test_sessions_are_listed_in_pages(client):
    """Each once, newest first."""
    made = [(await create(client, metadata={"number": number}))["id"] for number in range(5)]
    listed, cursor = [], None
    for _ in range(3):
        page = (
            await client.get("/sessions", params={"limit": 2} | ({"cursor": cursor} if cursor else {}))
        ).json()
        listed += page["sessions"]
        cursor = page["cursor"]
    assert cursor is None
    assert sorted(session["id"] for session in listed) == sorted(made)
    assert {session["metadata"]["number"] for session in listed} == set(range(5))


async def test_a_session_is_found_by_its_name(client):
    """The one that has it now: none before, none after, and no other."""
    made = await create(client, name="mine")
    await create(client, name="other")

    async def found(name):
        return (await client.get("/sessions", params={"name": name})).json()

    assert await found("mine") == {
        "sessions": [(await client.get(f"/sessions/{made['id']}")).json()],
        "cursor": None,
    }
    assert await found("nobody") == {"sessions": [], "cursor": None}
    await client.delete(f"/sessions/{made['id']}")
    assert (await found("mine"))["sessions"] == []


@pytest.mark.parametrize("asked", [{"name": "no name"}, {"name": "mine", "cursor": "abc"}])
async def test_what_is_no_name_is_refused(client, asked):
    """And a second page of one session."""
    assert (await client.get("/sessions", params=asked)).status_code == 422


async def test_concurrent_appends_all_land_once(client):
    """Fifty at once to one session: fifty versions, fifty tokens."""
    session = (await create(client))["id"]
    answers = await asyncio.gather(
        *(act(client, session, "append", text="x", scores="none") for _ in range(50))
    )
    assert sorted(answer["version"] for answer in answers) == list(range(1, 51))
    assert (await info(client, session))["position"] == 50


async def test_sessions_side_by_side_are_what_they_are_alone(client):
    """Sixteen learning at once score what each scores alone."""
    texts = [f"session {number} says {'ab' * number} " * 3 for number in range(16)]
    together = await asyncio.gather(*(create(client, text=text) for text in texts))
    for text, made in list(zip(texts, together, strict=True))[::5]:
        alone = await create(client, text=text)
        assert made["append"]["logprobs"] == pytest.approx(alone["append"]["logprobs"], abs=1e-5)


async def test_numbers_in_metadata_keep_all_their_digits(client):
    """An integer that would become the nearest double is refused; one of 64 bits comes back as it was."""
    notes = {"most": 2**63 - 1, "least": -(2**63), "odd": 2**53 + 1, "float": 0.1, "yes": True, "none": None}
    made = await create(client, metadata=notes)
    found = (await client.get(f"/sessions/{made['id']}")).json()["metadata"]
    assert found == notes
    assert {name: type(value) for name, value in found.items()} == {n: type(v) for n, v in notes.items()}
