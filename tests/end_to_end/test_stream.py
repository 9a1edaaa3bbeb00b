"""Continuous text over a WebSocket, by the client and by hand: what is said, and what a cut does to it."""

import json
import random
import signal
import socket
import subprocess
from contextlib import contextmanager

import httpx
import pytest
from jsonschema import Draft202012Validator
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from rlstm_client import Client, Retries
from rlstm_client.errors import NotFoundError, SessionDeletedError

from .cuts import CuttingProxy

PATIENT = Retries(attempts=20, first_wait_s=0.01)


def text_of(size, seed=1):
    """So many bytes of text, of characters of one to four bytes."""
    draw = random.Random(seed)
    text = "".join(draw.choice("abcdefg hij\né世🎈") for _ in range(size))
    whole = text.encode()[:size].decode(errors="ignore")  # without the beginning of a last character
    return whole + "." * (size - len(whole.encode()))


@pytest.fixture
def client(server):
    with Client(server.url) as client:
        yield client


@contextmanager
def opened(server, session, query="", protocols=("rlstm.v1",), **headers):
    url = f"{server.url.replace('http', 'ws')}/sessions/{session}/stream{query}"
    with connect(url, subprotocols=protocols, additional_headers=headers, compression=None) as socket:
        yield socket


def told(socket):
    return json.loads(socket.recv(timeout=30))


def test_a_stream_is_the_same_as_appends(client):
    """Columns, position and totals: how a text travels changes none of them."""
    text = text_of(1_500)
    plain, session = client.sessions.create(), client.sessions.create()
    logprobs = plain.append(text).logprobs
    answers = list(session.stream([text[:10], "", text[10:]]))
    assert [x for answer in answers for x in answer.logprobs] == [*logprobs]
    assert session.info().position == plain.info().position == len(text.encode())
    assert session.info().totals == plain.info().totals


def test_answers_come_while_the_text_goes_on(client):
    """The answer to what was sent does not wait for what comes next."""
    session, seen = client.sessions.create(), []

    def texts():
        for number in range(5):
            while len(seen) < number:
                pass  # the answer to the text before must come first
            yield "a line\n"

    for answer in session.stream(texts()):
        seen += [answer.position]
    assert seen == [7, 14, 21, 28, 35]


@pytest.mark.parametrize(("size", "cuts"), [(2_000, 6), pytest.param(200_000, 50, marks=pytest.mark.faults)])
@pytest.mark.timeout(1_200)
def test_every_byte_is_scored_once_whatever_is_cut(server, client, size, cuts):
    """Connections end after any byte in any direction; the text is in the session once, with all answers."""
    text, draw = text_of(size), random.Random(cuts)
    most = max(1_600, 2 * size // cuts)
    lifetimes = {number: draw.randint(600, most) for number in range(cuts)}
    session = client.sessions.create()
    with CuttingProxy(server.url, lifetimes) as proxy, Client(proxy.url, retries=PATIENT) as cut_off:
        lines = text.splitlines(keepends=True)
        answers = list(cut_off.sessions.get(session.id).stream(lines, scores="totals"))
        made = proxy.cuts
    info = session.info()
    print(f"\n{size:,} bytes, {made} cuts: {info.position:,} scored once, {len(answers):,} answers")
    assert made == cuts
    assert sum(answer.totals.tokens for answer in answers) == info.position == info.totals.tokens == size


def test_a_frame_that_is_sent_again_takes_effect_once(server, client):
    """On another connection, under the stream's name; another text under its number is refused."""
    session = client.sessions.create()
    for replayed in (False, True):
        with opened(server, session.id, "?stream=mine") as socket:
            assert told(socket)["type"] == "ready"
            socket.send(json.dumps({"seq": 1, "text": "once"}))
            answer = told(socket)
            assert (answer["seq"], answer["position"], answer["replayed"]) == (1, 4, replayed)
            assert len(answer["logprobs"]) == 4
    with opened(server, session.id, "?stream=mine") as socket:
        told(socket)
        socket.send(json.dumps({"seq": 1, "text": "else"}))
        assert told(socket)["problem"]["type"].endswith("idempotency_mismatch")
    assert session.info().position == 4


@pytest.mark.parametrize(
    ("frame", "status", "word"),
    [
        ("{", 400, "invalid_json"),
        ('{"seq": 1, "seq": 1, "text": "a"}', 400, "invalid_json"),
        ('{"seq": 1, "text": "a", "text2": "SECRET"}', 422, "invalid_field"),
        ('{"seq": 0, "text": "a"}', 422, "invalid_field"),
        ('{"seq": "1", "text": "a"}', 422, "invalid_field"),
        ('{"seq": 2, "text": "a"}', 422, "invalid_field"),
        ('{"seq": 1}', 422, "invalid_field"),
        ('{"seq": 1, "text": ""}', 422, "invalid_field"),
        ('{"seq": 1, "tokens": [256]}', 400, "invalid_token"),
        ('{"seq": 1, "text": "\\ud800"}', 400, "invalid_text"),
        (b"\x00SECRET", 400, "invalid_json"),
    ],
)
def test_a_wrong_frame_is_answered_and_closed(server, client, frame, status, word):
    """By a problem document without a word of the frame, and a code with the status; nothing is lost."""
    session = client.sessions.create()
    with opened(server, session.id) as socket:
        told(socket)
        if '"seq": 2' in str(frame):
            socket.send('{"seq": 5, "text": "b"}')
            told(socket)
        socket.send(frame)
        message = told(socket)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=10)
    assert message["type"] == "error"
    assert (message["problem"]["status"], message["problem"]["type"]) == (status, f"urn:rlstm:problem:{word}")
    assert closed.value.rcvd.code == 4_000 + status
    assert "SECRET" not in json.dumps(message)
    assert session.info().position == (1 if '"seq": 2' in str(frame) else 0)


def test_a_frame_that_is_too_long_closes_the_connection(server, client):
    """With the code that the protocol has for it."""
    session = client.sessions.create()
    with opened(server, session.id) as socket:
        told(socket)
        socket.send(json.dumps({"seq": 1, "text": "a" * 70_000}))
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=10)
    assert closed.value.rcvd.code == 1009
    assert session.info().position == 0


def test_what_is_no_stream_is_refused_before_it_opens(server, client):
    """With the same problem documents as anywhere; a plain request to the address is told the same."""
    session = client.sessions.create()
    queries = ("?scores=all", "?stream=", "?stream=a%20b", "?unit=nits", "?else=1")
    for path, query, status, word in (
        ("0" * 32, "", 404, "not_found"),
        ("UPPER", "", 404, "not_found"),
        *((session.id, query, 422, "invalid_field") for query in queries),
    ):
        with pytest.raises(InvalidStatus) as refused, opened(server, path, query):
            pass
        response = refused.value.response
        problem = json.loads(response.body)
        assert (response.status_code, problem["type"]) == (status, f"urn:rlstm:problem:{word}")
        plain = httpx.get(f"{server.url}/sessions/{path}/stream{query}")
        assert plain.json()["detail"] == problem["detail"]
        assert plain.status_code == status
    session.delete()
    with pytest.raises(SessionDeletedError):
        list(session.stream(["a"]))
    with pytest.raises(NotFoundError):
        list(client.sessions.get("0" * 32).stream(["a"]))


def test_a_plain_request_is_told_to_ask_for_a_websocket(server, client):
    """Where nothing else is wrong with it: browsers, and users of proxies, learn it in no other way."""
    session = client.sessions.create()
    answer = httpx.get(f"{server.url}/sessions/{session.id}/stream", params={"unit": "bits"})
    assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")
    assert answer.json()["type"] == "urn:rlstm:problem:upgrade_required"
    assert session.info().version == 0


def test_frames_are_what_the_document_says(server, client):
    """Each that comes down is one of its kinds, with no other members."""
    session = client.sessions.create()
    with opened(server, session.id) as socket:
        said = [told(socket)]
        for frame in ({"seq": 1, "text": "some"}, {"seq": 2, "tokens": [97], "learn": False}, {"seq": 9}):
            socket.send(json.dumps(frame))
            said.append(told(socket))
    document = httpx.get(f"{server.url}/openapi.json").json()
    known = Draft202012Validator({"$ref": "#/components/schemas/FrameAnswer", **document})
    assert [frame["type"] for frame in said if known.is_valid(frame)] == [
        "ready",
        "scores",
        "scores",
        "error",
    ]
    assert not known.is_valid(said[0] | {"more": 1})


def test_a_key_comes_as_a_header_or_a_subprotocol(start):
    """No key and a wrong one open nothing; the key is never sent back."""
    with start("--durability", "memory", RLSTM_API_KEYS="right-key") as server:
        with Client(server.url, api_key="right-key") as client:
            session = client.sessions.create()
            assert [answer.position for answer in session.stream(["abc"])] == [3]
        with opened(server, session.id, protocols=("rlstm.v1", "bearer.right-key")) as socket:
            assert socket.subprotocol == "rlstm.v1"
            assert told(socket)["position"] == 3
        for protocols in (("rlstm.v1",), ("rlstm.v1", "bearer.wrong"), ("rlstm.v1", "bearer.")):
            with pytest.raises(InvalidStatus) as refused, opened(server, session.id, protocols=protocols):
                pass
            assert refused.value.response.status_code == 401


def test_a_page_of_another_host_opens_nothing(server, client):
    """A browser lets any page try, and says which one it is."""
    session = client.sessions.create()
    with pytest.raises(InvalidStatus) as refused, opened(server, session.id, Origin="https://evil.example"):
        pass
    assert refused.value.response.status_code == 403
    with opened(server, session.id, Origin=server.url) as socket:
        assert told(socket)["type"] == "ready"


def test_a_stream_can_be_left(client):
    """And the session used by others, while it is open and afterwards."""
    session = client.sessions.create()
    with session.stream(["a"] * 1_000) as stream:
        next(stream)
        session.append("from elsewhere", final=True)
        next(stream)
    position = session.info().position
    session.append("b")
    assert session.info().position > position


@pytest.mark.timeout(180)
def test_a_pipe_outlives_its_server(start, tmp_path, rlstm):
    """Killed with -9 and started again on the same port, after three tries: every line is scored once."""
    with start(data_dir=tmp_path) as server:
        with Client(server.url) as client:
            session = client.sessions.create()
        command = [rlstm.path, "session", "stream", session.id, "--url", server.url, "--json"]
        pipe = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=rlstm.environment
        )
        pipe.stdin.write("before\n")
        pipe.stdin.flush()
        assert json.loads(pipe.stdout.readline())["text"] == "before\n"
        server.end(signal.SIGKILL)
    pipe.stdin.write("meanwhile\n")
    pipe.stdin.flush()
    port = int(server.url.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)) as nobody:
        for _ in range(3):
            nobody.accept()[0].close()
    with start("--port", str(port), data_dir=tmp_path) as again:
        assert again.url == server.url, again.errors()
        said, _ = pipe.communicate("after\n", timeout=120)
        with Client(again.url) as client:
            position = client.sessions.get(session.id).info().position
    assert pipe.returncode == 0
    assert [json.loads(line)["text"] for line in said.splitlines()] == ["meanwhile\n", "after\n"]
    assert position == len("before\nmeanwhile\nafter\n")


def test_a_pipe_without_a_server_says_so_soon(rlstm):
    """Only a server that was there is waited for."""
    command = [rlstm.path, "session", "stream", "0" * 32, "--url", "http://127.0.0.1:9"]
    done = subprocess.run(
        command, input="a\n", capture_output=True, text=True, env=rlstm.environment, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert len(done.stderr.splitlines()) == 1
