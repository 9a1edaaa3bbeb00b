"""The probe against a server of this test that sends a text in the way it is told."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from rlstm_client.cli.commands import build
from rlstm_server.probe import TOKENS, Probe

GAP_SECONDS = 0.003


class Answers(BaseHTTPRequestHandler):
    """Sends a stream of events: as they are made, collected, broken off, or not at all."""

    manner = "at once"

    def do_POST(self):
        """Answer a request."""
        self.server.asked.append((self.path, self.headers["authorization"]))
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.manner.isdigit():
            self.send_response(int(self.manner))
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        frames = [b'event: token\ndata: {"step": 0}\n\n'] * body["max_tokens"]
        if self.manner == "broken":
            self.wfile.write(frames[0] + b'event: error\ndata: {"status": 503}\n\n')
            return
        for frame in frames:
            time.sleep(GAP_SECONDS)
            if self.manner == "at once":
                self.wfile.write(frame)
        if self.manner == "collected":
            self.wfile.write(b"".join(frames))
        self.wfile.write(b'event: end\ndata: {"finish_reason": "length"}\n\n')

    def log_message(self, *_):
        """Say nothing."""


@contextmanager
def serving(manner):
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Manner", (Answers,), {"manner": manner}))
    server.asked = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def asked(manner):
    """Ask once; the outcome, and the figures by name."""
    registry = CollectorRegistry()
    with serving(manner) as (_, url):
        probe = Probe(url, "some-key", registry)
        outcome = probe.ask()
        probe.close()
    return outcome, lambda name, **labels: registry.get_sample_value(f"rlstm_probe_{name}", labels)


def test_a_text_that_comes_as_it_is_made():
    """The first token early, and a gap before each other one."""
    outcome, value = asked("at once")
    assert outcome == "ok"
    assert value("requests_total", outcome="ok") == 1
    assert value("inter_token_seconds_count") == TOKENS - 1
    assert value("inter_token_seconds_sum") > 0.5 * (TOKENS - 1) * GAP_SECONDS
    assert value("time_to_first_token_seconds_sum") < 0.5 * TOKENS * GAP_SECONDS


def test_a_text_that_was_collected_on_the_way():
    """The first token as late as the last, and no gaps: the pair that the alert looks for."""
    outcome, value = asked("collected")
    assert outcome == "ok"
    assert value("time_to_first_token_seconds_sum") > TOKENS * GAP_SECONDS
    assert value("inter_token_seconds_sum") < 0.5 * (TOKENS - 1) * GAP_SECONDS


@pytest.mark.parametrize(
    ("manner", "outcome"), [("broken", "error"), ("503", "refused"), ("429", "refused"), ("401", "error")]
)
def test_a_text_that_does_not_come(manner, outcome):
    """It is counted, and not measured."""
    found, value = asked(manner)
    assert found == outcome
    assert value("requests_total", outcome=outcome) == 1
    assert value("time_to_first_token_seconds_count") == 0


def test_nobody_there_is_an_error():
    """And no exception: it is asked again."""
    registry = CollectorRegistry()
    with serving("at once") as (_, url):
        pass
    probe = Probe(url, None, registry)
    assert probe.ask() == "error"
    probe.close()


def test_a_proxy_that_cannot_be_used_is_said():
    """As wrong usage, in one line."""
    done = CliRunner().invoke(build(), ["probe", "http://x", "--once"], env={"HTTP_PROXY": "gopher://x"})
    assert (done.exit_code, done.stderr.count("gopher://x")) == (2, 1)


def test_the_command_asks_once_by_hand(tmp_path):
    """With the key of a file; the exit code says what came of it, and no key is said."""
    (tmp_path / "key").write_text("canary-key\n")
    with serving("at once") as (server, url):
        done = CliRunner().invoke(build(), ["probe", url, "--once", "--key-file", str(tmp_path / "key")])
    with serving("401") as (_, url):
        refused = CliRunner().invoke(build(), ["probe", url, "--once"])
    lost = CliRunner().invoke(build(), ["probe", url, "--once", "--key-file", str(tmp_path / "nowhere")])
    assert (done.exit_code, done.stdout) == (0, "ok\n")
    assert server.asked == [("/generate", "Bearer canary-key")]
    assert (refused.exit_code, refused.stdout) == (1, "error\n")
    assert lost.exit_code == 2
