"""Both clients, one after the other, against the real application: every operation."""

import io
from pathlib import Path
from typing import Any

import httpx
import pytest

from rlstm_client import Client, errors
from rlstm_client.models import EndEvent, TokenEvent

LONG = "é" * 2100  # 4,200 bytes: two pieces


@pytest.fixture
def session(client: Any) -> Any:
    """A new session."""
    return client.sessions.create()


def test_score(client: Any) -> None:
    """A text comes back as columns and sums, with the names of the numbers; items in their order."""
    result = client.score("ab", unit="bits", words=True, top=2)
    item = result.items[0]
    items = client.score(items=[{"id": "x", "text": "a"}, {"text": "bc"}], scores="totals").items

    assert (result.model, result.unit, item.ids, item.starts, item.ends) == (
        "tiny",
        "bits",
        (97, 98),
        (0, 1),
        (1, 2),
    )
    assert sum(item.logprobs) == pytest.approx(item.totals.logprob) == pytest.approx(item.words[0].logprob)
    assert [len(row) for row in item.top.logprobs] == [2, 2]
    assert [(item.id, item.totals.tokens, item.ids) for item in items] == [("x", 1, ()), ("1", 2, ())]


def test_score_learns(client: Any) -> None:
    """How the texts were learned from is said, and what it saved."""
    result = client.score("the quick brown fox " * 4, adaptation={"experts": 1, "rate_scale": 0.5})

    assert (result.adaptation.experts, result.adaptation.rate_scale) == (1, 0.5)
    assert result.items[0].updates > 0
    assert len(result.items[0].static_logprobs) == 80


def test_a_note_comes_with_its_text(client: Any, session: Any) -> None:
    """Of a text in two pieces, or alone; it is read back with the version."""
    session.append(LONG, note="one")
    first = session.note()
    session.update(note="two")

    assert (first.version, first.note) == (2, "one")
    assert (session.note().version, session.note(min_version=3).note) == (3, "two")


def test_operations(client: Any) -> None:
    """Health, information, metrics, and the vocabulary."""
    info = client.info()

    assert (client.live().status, client.ready().status) == ("live", "ready")
    assert (info.model, len(info.models)) == ("tiny", 1)
    assert "rlstm_" in client.metrics()
    assert client.detokenize(client.tokenize("aé")) == "aé"
    assert client.tokenizer_info().vocab_size == 256
    with pytest.raises(errors.ModelNotFoundError):
        client.tokenizer_info(model="none")


def test_generate(client: Any) -> None:
    """Whole, and as events that come one by one and end with an end: the same text by the same seed."""
    whole = client.generate("a", seed=5, max_tokens=4)
    *tokens, end = client.generate_stream("a", seed=5, max_tokens=4)

    assert (whole.seed, len(whole.ids), whole.finish_reason) == (5, 4, "length")
    assert all(isinstance(token, TokenEvent) for token in tokens)
    assert "".join(token.text for token in tokens) == whole.text
    assert isinstance(end, EndEvent)
    assert len([*client.generate_stream("a", n=2, max_tokens=1)]) == 4


def test_closing_a_stream_early(client: Any) -> None:
    """A closed stream gives no more events, and the client goes on working."""
    events = client.generate_stream("a")
    events.close()

    assert list(events) == []
    assert client.live().status == "live"


def test_the_key_of_the_api(url: str, network: Any) -> None:
    """The API key is a bearer token on every request; the address may end in a path."""
    with (
        Client(f"{url}/base", api_key="secret", transport=network) as client,
        pytest.raises(errors.NotFoundError),
    ):
        client.live()

    assert network.requests[0].headers["authorization"] == "Bearer secret"
    assert network.requests[0].url.path == "/base/health/live"


def test_append(session: Any) -> None:
    """An append tells what the text cost, static and adapted, and where the session stands."""
    answer = session.append("abc")

    assert (answer.version, answer.position, answer.replayed, answer.totals.tokens) == (1, 3, False, 3)
    assert answer.totals.gain == pytest.approx(answer.totals.logprob - answer.totals.static_logprob)
    assert len(answer.ids) == len(answer.logprobs) == len(answer.static_logprobs) == 3
    assert (session.info().version, session.info().totals.tokens) == (1, 3)
    assert session.append([100, 101]).ids == (100, 101)


def test_ranking(session: Any) -> None:
    """Candidates keep their order and their ids; the best is the one of rank 1, also without adaptation."""
    session.append("the quick brown fox")
    ranking = session.score(
        ["long one", {"id": "x", "text": "q", "given": 1.0}], weights={"lm": 1, "given": 2}
    )
    first, second = ranking.candidates

    assert ([first.id, second.id], {first.rank, second.rank}) == (["0", "x"], {1, 2})
    assert second.score == pytest.approx(second.logprob + 2)
    assert ranking.best.rank == ranking.static_best.static_rank == 1
    assert session.info().version == ranking.version


def test_generate_in_a_session(session: Any, network: Any) -> None:
    """Only what is kept carries a key and changes the session."""
    session.generate(max_tokens=2)
    events = list(session.generate_stream(commit=True, max_tokens=3, temperature=0))

    assert (events[-1].position, session.info().position) == (3, 3)
    keyed = ["idempotency-key" in r.headers for r in network.requests if r.url.path.endswith("/generate")]
    assert keyed == [False, True]
    with pytest.raises(errors.RequestError, match="commit"):
        session.generate(idempotency_key="k")


def test_listing_and_finding(client: Any) -> None:
    """All pages are gone through; a handle is found by its name, or None where no session has it."""
    made = [client.sessions.create(name=f"listed-{index}").id for index in range(3)]
    try:
        assert set(made) <= {info.id for info in client.sessions.list()}
        assert len(client.sessions.page(limit=2).sessions) == 2
        assert client.sessions.find("listed-1").id == made[1]
        assert client.sessions.find("nobody") is None
        with pytest.raises(errors.SessionExistsError):
            client.sessions.create(name="listed-1")
    finally:
        for one in made:
            client.sessions.get(one).delete()


def test_an_older_server_finds_no_other_session(client: Any, network: Any) -> None:
    """It answers the question that it does not know with all sessions: the first of them is another's."""
    other = {"id": "other", "version": 0, "position": 0, "name": None}
    network.answer(httpx.Response(200, json={"sessions": [other], "cursor": None}))

    assert client.sessions.find("nobody") is None


def test_a_life(client: Any) -> None:
    """A session is made with a text, changed, reset, deleted twice, and is gone then."""
    session = client.sessions.create(text="some text", metadata={"a": 1}, ttl_seconds=60)
    updated = session.update(learning=False)

    assert session.created.append.totals.tokens == 9
    assert (updated.learning, updated.metadata) == (False, {"a": 1})
    assert not session.append("more text").learn
    assert session.reset(what="fast_weights").position == 18
    session.delete()
    session.delete()
    with pytest.raises(errors.SessionDeletedError):
        session.append("a")
    with pytest.raises(errors.NotFoundError):
        client.sessions.get("0" * 32).info()
    with pytest.raises(errors.RequestError):
        client.sessions.get("../admin")


def test_snapshots_and_forks(client: Any, session: Any) -> None:
    """A version is named, listed, gone back to, and forgotten; a fork goes on by itself."""
    session.append("abc")
    assert session.snapshot("here").position == 3
    session.append("def")
    fork = session.fork(name="twin", snapshot="here")
    assert (fork.created.forked_from.session, fork.append("d").position) == (session.id, 4)
    assert [snapshot.name for snapshot in session.snapshots()] == ["here"]
    assert (session.restore("here").position, session.info().version) == (3, 3)
    session.drop_snapshot("here")
    with pytest.raises(errors.NotFoundError):
        session.restore("here")
    with pytest.raises(errors.RequestError):
        session.drop_snapshot("../s2")
    fork.delete()


@pytest.mark.parametrize("opened", [False, True])
def test_a_session_travels_as_a_file(client: Any, session: Any, tmp_path: Path, opened: bool) -> None:
    """To a path or an open file, and from there into a new session."""
    file: Any = io.BytesIO() if opened else tmp_path / "session.rlstm"
    session.append("abc")
    session.export(file)
    if opened:
        file.seek(0)
    copy = client.sessions.import_session(file, name=f"copy-{opened}")

    assert (copy.info().position, copy.id == session.id) == (3, False)
    copy.delete()
