"""Continuous text over WebSockets that break, hang and refuse: what is sent again, and what is known then."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from socket import SHUT_RDWR
from typing import Any

import pytest
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Response
from websockets.sync.server import Server, ServerConnection, serve

from rlstm_client import AsyncClient, Client, Retries, errors

Step = Callable[[ServerConnection], None]
SESSION = "s1"
ANSWER = {
    "version": 1,
    "position": 1,
    "durability": "memory",
    "replayed": False,
    "unit": "nats",
    "learn": True,
    "updates": 0,
    "guards": {},
    "weights": [1.0],
    "norm_ratio": 0.0,
    "pending": 0,
    "expires_at": None,
    "totals": {"logprob": 0.0, "tokens": 0, "bytes": 1},
}


class Peer:
    """A server that does with each connection what the next of its steps says."""

    def __init__(self) -> None:
        self.steps: list[Step | Response] = []
        self.requests: list[Any] = []
        self.frames: list[list[dict[str, Any]]] = []

    def process_request(self, socket: ServerConnection, request: Any) -> Response | None:
        """Refuse the connection where that is the next step."""
        self.requests.append(request)
        return self.steps.pop(0) if isinstance(self.steps[0], Response) else None  # type: ignore[return-value]

    def handle(self, socket: ServerConnection) -> None:
        """Greet, and do the next step."""
        step = self.steps.pop(0)
        self.frames.append([])
        assert not isinstance(step, Response)
        try:
            socket.send(json.dumps({"type": "ready"}))
            step(socket)
        except ConnectionClosed:
            return

    def takes(self, count: int, *, acknowledges: int | None = None) -> Step:
        """Read so many frames, and acknowledge the first of them."""

        def step(socket: ServerConnection) -> None:
            for index in range(count):
                self.frames[-1].append(json.loads(socket.recv()))
                if acknowledges is None or index < acknowledges:
                    socket.send(json.dumps({"type": "scores", "seq": self.frames[-1][-1]["seq"], **ANSWER}))

        return step

    def then(self, first: Step, code: int, reason: str = "") -> Step:
        """Close with a code after a step."""

        def step(socket: ServerConnection) -> None:
            first(socket)
            socket.close(code, reason)

        return step

    def then_hangs(self, first: Step) -> Step:
        """Say no more after a step, until the other side leaves."""

        def step(socket: ServerConnection) -> None:
            first(socket)
            for _ in socket:
                pass

        return step


@pytest.fixture
def peer() -> Peer:
    return Peer()


@contextmanager
def running(peer: Peer) -> Iterator[Server]:
    with serve(peer.handle, "127.0.0.1", 0, process_request=peer.process_request) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
    thread.join()


@pytest.fixture
def url(peer: Peer) -> Iterator[str]:
    with running(peer) as server:
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"


@pytest.fixture(params=["blocking", "asyncio"])
def streamed(request: pytest.FixtureRequest, url: str) -> Callable[..., list[Any]]:
    """Give what streams texts, with pauses between, by each client in turn; it returns the answers."""

    def paused(texts: Iterable[str | float]) -> Iterator[str]:
        for text in texts:
            if isinstance(text, float):
                time.sleep(text)
            else:
                yield text

    async def paused_without_blocking(texts: Iterable[str | float]) -> AsyncIterator[str]:
        for text in texts:
            if isinstance(text, float):
                await asyncio.sleep(text)
            else:
                yield text

    def stream(
        texts: Iterable[str | float], *, below: str = "", final: bool = False, **settings: Any
    ) -> list[Any]:
        given: dict[str, Any] = {"retries": Retries(attempts=3, first_wait_s=0.01), **settings}
        if request.param == "blocking":
            with Client(url + below, **given) as client:
                return list(client.sessions.get(SESSION).stream(paused(texts), final=final))

        async def collect() -> list[Any]:
            async with AsyncClient(url + below, **given) as client:
                stream = client.sessions.get(SESSION).stream(paused_without_blocking(texts), final=final)
                return [answer async for answer in stream]

        return asyncio.run(collect())

    return stream


def refusal(status: int, slug: str) -> Response:
    body = json.dumps({"type": f"urn:rlstm:problem:{slug}", "status": status, "detail": "x", "applied": "no"})
    return Response(status, "", Headers({"content-type": "application/problem+json"}), body.encode())


def test_the_address_may_have_a_path(peer: Peer, streamed: Callable[..., list[Any]]) -> None:
    """A server below a path is spoken to there, by its key, under an id that its log has too."""
    peer.steps = [peer.takes(1)]

    assert len(streamed(["a"], below="/deep/down", api_key="k")) == 1
    assert peer.requests[0].path.startswith(f"/deep/down/sessions/{SESSION}/stream?stream=")
    assert peer.requests[0].headers["authorization"] == "Bearer k"
    assert len(peer.requests[0].headers["x-request-id"]) == 32


def test_what_was_not_acknowledged_is_sent_again(peer: Peer, streamed: Callable[..., list[Any]]) -> None:
    """The same frames under the same name, and none that was acknowledged."""
    peer.steps = [peer.then(peer.takes(3, acknowledges=1), 1012), peer.takes(2)]

    assert len(streamed(["a", "b", "c"])) == 3
    assert peer.frames[1] == peer.frames[0][1:]
    assert len({request.path for request in peer.requests}) == 1


def test_the_last_piece_ends_the_text(peer: Peer, streamed: Callable[..., list[Any]]) -> None:
    """It waits for the next one, and is marked; texts travel as they are, but for empty and long ones."""
    peer.steps = [peer.takes(4), peer.takes(0)]

    assert len(streamed(["ab", "", "c" * 1_030, "d", ""], final=True)) == 4
    assert [(len(frame["text"]), frame.get("final")) for frame in peer.frames[0]] == [
        (2, None),
        (1024, None),
        (6, None),
        (1, True),
    ]
    assert streamed([], final=True) == []


def test_an_error_says_what_is_known(peer: Peer, streamed: Callable[..., list[Any]]) -> None:
    """What is in the session, and the keys under which the rest may be appended."""
    peer.steps = [peer.then(peer.takes(3, acknowledges=1), 1012)]
    with pytest.raises(errors.ConnectionLostError) as caught:
        streamed(["aé", "b", "c"], retries=Retries(attempts=1))
    progress = caught.value.progress
    name = peer.requests[0].path.split("stream?stream=")[1]

    assert caught.value.applied == "unknown"
    assert progress == errors.AppendProgress(
        answer=None, characters=2, piece="b", key=f"stream:{name}:2", following=[("c", f"stream:{name}:3")]
    )


@pytest.mark.parametrize(("slug", "status"), [("session_deleted", 410), ("rate_limited", 429)])
def test_a_refusal_after_a_cut_tells_nothing_of_what_was_under_way(
    peer: Peer, streamed: Callable[..., list[Any]], slug: str, status: int
) -> None:
    """Who refuses a connection has not looked at the frames that went over the one before."""
    peer.steps = [peer.then(peer.takes(1, acknowledges=0), 1012), refusal(status, slug)]
    with pytest.raises(errors.APIError) as caught:
        streamed(["a"])

    assert (caught.value.status, caught.value.applied) == (status, "unknown")


def test_no_server_after_a_cut_tells_nothing_either(peer: Peer) -> None:
    """What was under way may have taken effect, although the last attempts reached no server."""
    with (
        running(peer) as server,
        Client(
            f"http://127.0.0.1:{server.socket.getsockname()[1]}",
            retries=Retries(attempts=3, first_wait_s=0.01),
        ) as client,
    ):

        def step(socket: ServerConnection) -> None:
            socket.recv()
            server.socket.shutdown(SHUT_RDWR)  # no server listens from here on
            socket.close(1012)

        peer.steps = [step]
        with pytest.raises(errors.CannotConnectError) as caught:
            list(client.sessions.get(SESSION).stream(["a"]))

    assert caught.value.applied == "unknown"


@pytest.mark.parametrize(
    ("code", "error"),
    [(1009, errors.TooLargeError), (4410, errors.GoneError), (4503, errors.UnavailableError)],
)
def test_a_closing_code_is_an_error_of_the_tree(
    peer: Peer, streamed: Callable[..., list[Any]], code: int, error: type[errors.APIError]
) -> None:
    """Also where no frame said why; what can only fail again is not tried again."""
    peer.steps = [peer.then(peer.takes(1, acknowledges=0), code)]
    with pytest.raises(error) as caught:
        streamed(["a"])

    assert (type(caught.value), caught.value.applied) == (error, "unknown")
    assert len(peer.requests) == 1


def test_a_proxy_that_passes_no_websocket_on(peer: Peer, streamed: Callable[..., list[Any]]) -> None:
    """The server then sees a plain request, and says so."""
    peer.steps = [refusal(426, "upgrade_required")]
    with pytest.raises(errors.UpgradeRequiredError):
        streamed(["a"])


def test_a_page_is_no_stream(peer: Peer, streamed: Callable[..., list[Any]]) -> None:
    """Something else answers at this address."""
    peer.steps = [refusal(200, "")]
    with pytest.raises(errors.UnreadableAnswerError):
        streamed(["a"])


def test_text_follows_no_redirect(peer: Peer, streamed: Callable[..., list[Any]], url: str) -> None:
    """It goes to the server that was named, or nowhere."""
    peer.steps = [Response(307, "", Headers({"location": f"{url}/elsewhere"})), peer.takes(1)]
    with pytest.raises(errors.UnreadableAnswerError) as caught:
        streamed(["a"])

    assert (caught.value.status, caught.value.applied) == (307, "no")
    assert len(peer.requests) == 1


def test_a_silence_is_not_waited_out_for_ever(peer: Peer, streamed: Callable[..., list[Any]]) -> None:
    """The client's timeout holds for frames too; what hung is tried on another connection."""
    peer.steps = [peer.then_hangs(peer.takes(1, acknowledges=0)), peer.takes(1)]
    assert len(streamed(["a"], timeout=0.2)) == 1

    peer.steps = [peer.then_hangs(peer.takes(1, acknowledges=0))]
    with pytest.raises(errors.TimedOutError) as caught:
        streamed(["a"], timeout=0.2, retries=Retries(attempts=1))
    assert caught.value.applied == "unknown"


def test_waiting_for_text_is_no_silence(peer: Peer, streamed: Callable[..., list[Any]]) -> None:
    """The server owes nothing meanwhile."""
    peer.steps = [peer.takes(2)]

    assert len(streamed(["a", 0.5, "b"], timeout=0.2)) == 2
    assert len(peer.requests) == 1


@pytest.mark.parametrize("end", [KeyError("the texts' own"), KeyboardInterrupt(), "\ud800"])
def test_whatever_ends_a_stream_tells_how_far_it_came(
    peer: Peer, streamed: Callable[..., list[Any]], end: BaseException | str
) -> None:
    """As for appends: an error of the texts, an interruption, or what is no text."""

    def texts() -> Iterator[str]:
        yield "some"
        if isinstance(end, str):
            yield end
        else:
            raise end

    peer.steps = [peer.takes(1)]
    with pytest.raises(errors.RequestError if isinstance(end, str) else type(end)) as caught:
        streamed(texts())

    assert vars(caught.value)["progress"] == errors.AppendProgress(answer=None, characters=4, following=[])


def test_scores_that_are_no_longer_stored_are_an_error(
    peer: Peer, streamed: Callable[..., list[Any]]
) -> None:
    """Of a frame that is sent again: it is in the session, and no number is made up."""

    def forgetful(socket: ServerConnection) -> None:
        for _ in range(2):
            seq = json.loads(socket.recv())["seq"]
            socket.send(
                json.dumps({"type": "scores", "seq": seq, **ANSWER, "replayed": True, "totals": None})
            )

    peer.steps = [forgetful]
    with pytest.raises(errors.ScoresNotStoredError) as caught:
        streamed(["aé", "b"])
    progress = caught.value.progress

    assert (caught.value.applied, caught.value.facts) == ("yes", {"version": 1, "position": 1})
    assert progress is not None
    assert (progress.answer, progress.characters) == (None, 2)


LEFT = """
import sys, time
from rlstm_client import Client

session = Client(sys.argv[1]).sessions.get("s1")
def texts():
    yield from ["a\\n", "b\\n"]
    time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("left", "code"),
    [
        ("next(session.stream(['a', 'b']))", 0),
        ("answers = session.stream(iter(['a', 'b'])); next(answers)", 0),
        ("answers = session.stream(texts()); next(answers)", 0),
        ("answers = [session.stream(texts())]; answers.append(answers); next(answers[0])", 0),
        ("for answer in session.stream(['a'] * 100): break", 0),
        ("for answer in session.stream(sys.stdin): break", 0),
        ("for answer in session.stream(texts()): sys.exit(3)", 3),
        ("for answer in session.stream(texts()): raise OSError", 1),
    ],
)
def test_a_stream_that_is_left_does_not_hold_the_process(peer: Peer, url: str, left: str, code: int) -> None:
    """However it is left, and whatever its texts wait for: nothing waits for a thread at the end."""
    peer.steps = [peer.then_hangs(peer.takes(1))]
    pipes: Any = dict.fromkeys(("stdin", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", LEFT + left, url], **pipes) as process:
        process.stdin.write(b"a\n")  # and no more: nothing is to wait for it
        process.stdin.flush()
        assert process.wait(60) == code
        assert b"Fatal" not in process.stderr.read()


@pytest.mark.parametrize("ends", ["close", "let go"])
def test_a_stream_that_is_left_leaves_no_thread(peer: Peer, url: str, ends: str) -> None:
    """However much of one text was still to be sent."""
    peer.steps = [peer.then_hangs(peer.takes(8))]
    with Client(url) as client:
        stream = client.sessions.get(SESSION).stream(["x" * 100_000])
        next(stream)
        if ends == "close":
            stream.close()
        del stream
        deadline = time.monotonic() + 20
        while (
            left := [t for t in threading.enumerate() if t.name == "rlstm-stream"]
        ) and time.monotonic() < deadline:
            time.sleep(0.01)

    assert left == []
