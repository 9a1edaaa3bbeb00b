"""The official `openai` client against `rlstm serve`: what it reads, what it raises, what it repeats."""

import hashlib
import http.client
import json
import math
import re
import signal

import pytest
from tests.end_to_end.cuts import CuttingProxy

openai = pytest.importorskip("openai", reason="install mogrifier-rlstm[harness] for the openai client")

pytestmark = pytest.mark.harness

KEYS = {
    "all": {"scopes": ["score", "generate"]},
    "writer": {"scopes": ["generate"]},
    "slow": {"scopes": ["score", "generate"], "quotas": {"requests_per_second": 0.6}},
}


@pytest.fixture(scope="module")
def keyed(start, tmp_path_factory):
    """A server with keys and a small body limit."""
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    records = [
        {"sha256": hashlib.sha256(key.encode()).hexdigest(), "tenant": "a", **record}
        for key, record in KEYS.items()
    ]
    path.write_text(json.dumps(records))
    with start(
        "--durability", "memory", RLSTM_API_KEYS_FILE=str(path), RLSTM_LIMITS__BODY_BYTES="20000"
    ) as one:
        assert one.url, one.errors()
        yield one


@pytest.fixture
def client(keyed):
    """Give what makes a client with a key, and the list of the statuses that it saw."""
    made = []

    def make(key="all", retries=2):
        seen = []
        hooks = {"response": [lambda response: seen.append(response.status_code)]}
        one = openai.OpenAI(
            base_url=f"{keyed.url}/v1",
            api_key=key,
            max_retries=retries,
            http_client=openai.DefaultHttpxClient(event_hooks=hooks, trust_env=False),
        )
        made.append(one)
        return one, seen

    yield make
    for one in made:
        one.close()


def test_the_lines_of_the_page(server, page, capsys):
    """Its Python prints a text and null before two numbers; its curl is a request that is answered."""
    section = page(server.url)
    with server.client() as one:
        one.post("/sessions", json={"name": "novel"})
    codes = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    names = {}
    exec(compile("\n".join(codes), "openai.md", "exec"), names)
    names["client"].close()
    assert capsys.readouterr().out.startswith("Call me Ishmael. ")
    first, *others = names["answer"].choices[0].logprobs.token_logprobs[:3]
    assert first is None
    assert all(number < 0 for number in others)
    ((url, body),) = re.findall(r"curl -s (\S+) .*-d '(.+)'", section)
    with server.client() as client:
        assert client.post(url, json=json.loads(body)).json()["logprob"] < 0


def test_models_are_listed(client):
    """And each can be had by its name, the colon included."""
    one, _ = client()
    assert [model.id for model in one.models.list()] == ["tiny", "tiny:adapt"]
    assert one.models.retrieve("tiny:adapt").object == "model"


def test_a_completion_is_read_whole(client):
    """Text, reason, log-probabilities and sums, of several choices."""
    one, _ = client()
    made = one.completions.create(model="tiny", prompt=["ab", "é"], n=2, max_tokens=3, logprobs=1, echo=True)
    assert [choice.index for choice in made.choices] == [0, 1, 2, 3]
    first = made.choices[0].logprobs
    assert len(first.tokens) == len(first.token_logprobs) == len(first.top_logprobs) == 5
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (4, 12)


def test_a_stream_is_read_to_its_end(client):
    """The same text as at once, and the sums in the last chunk."""
    one, _ = client()
    asked = {"model": "tiny:adapt", "prompt": "the é", "max_tokens": 20, "seed": 3, "n": 2}
    whole = one.completions.create(**asked)
    *chunks, last = one.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    texts = ["", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    assert last.usage == whole.usage


@pytest.mark.parametrize(
    ("key", "change", "error", "status", "param"),
    [
        ("all", {"temperature": -1}, openai.BadRequestError, 400, "temperature"),
        ("all", {"prompt": [999]}, openai.BadRequestError, 400, "prompt"),
        ("wrong", {}, openai.AuthenticationError, 401, None),
        ("writer", {"echo": True, "logprobs": 1}, openai.PermissionDeniedError, 403, None),
        ("all", {"model": "other"}, openai.NotFoundError, 404, "model"),
        ("all", {"prompt": "x" * 30_000}, openai.APIStatusError, 413, None),
    ],
)
def test_what_cannot_succeed_is_an_exception_of_its_kind_at_once(client, key, change, error, status, param):
    """One try each, and the sentence comes through."""
    one, seen = client(key)
    with pytest.raises(error) as caught:
        one.completions.create(**{"model": "tiny", "prompt": "a", **change})
    assert seen == [status]
    assert (caught.value.status_code, caught.value.param) == (status, param)
    assert caught.value.body["message"] in str(caught.value)


def test_other_routes_of_the_interface_are_not_found(server):
    """Chat is not built, and says so in a form that the client reads."""
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as one,
        pytest.raises(openai.NotFoundError, match="no such route"),
    ):
        one.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a"}])


def test_a_used_up_quota_is_waited_for(client):
    """The client obeys `Retry-After`, and succeeds."""
    one, seen = client("slow")
    for _ in range(2):
        one.completions.create(model="tiny", prompt="a", max_tokens=1)
    assert seen[0] == seen[-1] == 200
    assert 429 in seen


def test_a_stream_that_breaks_off_raises(start):
    """A server that is told to end says so within the stream; nobody takes half a text for a whole one."""
    with start("--durability", "memory", RLSTM_LIMITS__DRAIN_SECONDS="0.2") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        asked = {"model": "tiny", "prompt": "a", "max_tokens": 65_536}
        chunks = []

        def read():
            for chunk in client.completions.create(**asked, stream=True):
                chunks.append(chunk)
                if len(chunks) == 3:
                    server.process.send_signal(signal.SIGTERM)

        with client, pytest.raises(openai.APIError) as caught:
            read()
        assert (caught.value.code, caught.value.type) == ("draining", "server_error")
        assert len(chunks) >= 3
        assert not any(choice.finish_reason for chunk in chunks for choice in chunk.choices)


def test_a_session_learns_what_is_stored_once_and_outlives_a_kill(start, tmp_path):
    """The second call costs fewer bits, with a kill -9 between; an answer that is cut is asked for again."""
    text = "It is a truth universally acknowledged, that a single man must be in want of a wife. " * 3

    def cost(url, key):
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=30) as one:
            answer = one.completions.create(
                model="tiny@novel",
                prompt=text,
                max_tokens=3,
                extra_body={"store": True, "prompt_logprobs": 1},
                extra_headers={"Idempotency-Key": key},
            )
        rows = zip(text.encode(), answer.choices[0].prompt_logprobs, strict=True)
        return -sum(row[str(token)]["logprob"] for token, row in rows) / math.log(2)

    def version(server):
        with server.client() as client:
            return client.get("/sessions", params={"name": "novel"}).json()["sessions"][0]["version"]

    with start(data_dir=tmp_path) as server, server.client() as client:
        client.post("/sessions", json={"name": "novel"})
        with CuttingProxy(server.url, {0: 8_000}) as proxy:  # within the answer
            first = cost(proxy.url, "one")
            assert proxy.cuts == 1
        assert version(server) == 1
        server.end(signal.SIGKILL)
    with start(data_dir=tmp_path) as server:
        assert cost(server.url, "one") == first
        second = cost(server.url, "two")
        assert version(server) == 2
    print(f"\nbits: {first:.1f}, again {second:.1f}")
    assert second < 0.9 * first


def test_a_server_without_keys_takes_an_empty_one(server):
    """`Bearer ` and nothing after it, as clients without a key send it."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    connection.request("GET", "/v1/models", headers={"authorization": "Bearer "})
    assert connection.getresponse().status == 200
    connection.close()
