"""Whatever is put in whatever place: a documented refusal that repeats nothing, and a server that goes on."""

import collections
import hashlib
import json
import logging
import random

import pytest
from tests.fuzz.asgi import Request, ask
from tests.fuzz.cases import all_cases, pairs, right
from tests.fuzz.nasties import CANARY
from tests.fuzz.surface import Surface
from tests.fuzz.verdict import faults_of
from tests.memory_store import MemoryStore

from rlstm_server.app import create_app
from rlstm_server.logs import JsonFormatter
from rlstm_server.settings import Settings

QUICK = 300
PAIRS = 6_000
LIMITS = {
    "body_bytes": 2**21,
    "score_tokens": 4_096,
    "append_tokens": 4_096,
    "generate_tokens": 64,
    "failed_logins": 2**20,
}
"""Small, so that what is allowed is also done at once."""

JSON = (b"content-type", b"application/json")


class Ears(logging.Handler):
    """Listens to all logs for what no line may say."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.setFormatter(JsonFormatter())
        self.heard = []

    def emit(self, record):
        """Keep a line that repeats a request, or tells of a fault."""
        line = self.format(record)
        if CANARY in line or record.exc_info:
            self.heard.append(line)


class Bench:
    """A server that cases are put to, and a session for each of them that is as it should be."""

    def __init__(self, app, always):
        self.app, self.always, self.surface = app, always, Surface(app.openapi())
        self.session = None
        self.found = collections.Counter()
        self.examples = {}
        self.statuses = collections.Counter()

    async def send(self, method, target, body=None, headers=()):
        """A request that nothing is wrong with, and its answer as JSON."""
        given = [(name.encode(), value) for name, value in self.always.items()]
        content = b"" if body is None else json.dumps(body).encode()
        request = Request(method=method, target=target, headers=(*given, JSON, *headers), body=content)
        answer = await ask(self.app, request)
        return answer.status, json.loads(answer.body or b"null")

    async def put(self, case):
        """Ask, judge, and put in order again what the case has changed."""
        if self.session is None:
            await self.renew()
        answer = await ask(self.app, case.request(self.session, self.always))
        self.statuses[answer.status] += 1
        for fault in faults_of(self.surface, case, answer):
            self.found[fault] += 1
            operation = f"{case.operation.method} {case.operation.template}"
            shown = f"{operation} {case.name}: {answer.status} {answer.body[:300]!r}"
            self.examples.setdefault(fault, []).append(shown)
        await self._tidy(case, answer)

    async def renew(self):
        """Make a session with a snapshot to name."""
        status, made = await self.send("POST", "/sessions", {"text": "before"})
        assert status == 201, made
        self.session = made["id"]
        status, _ = await self.send("POST", f"/sessions/{self.session}/snapshots", {"name": "one"})
        assert status == 201

    async def score(self):
        """What a text scores: the same for ever."""
        status, answer = await self.send("POST", "/score", {"text": "still here"})
        assert status == 200, answer
        return answer["items"][0]["logprobs"]

    async def series(self):
        """The names and labels of all series."""
        given = tuple((name.encode(), value) for name, value in self.always.items())
        answer = await ask(self.app, Request(method="GET", target="/metrics", headers=given))
        lines = answer.body.decode().splitlines()
        return sorted(line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#"))

    async def _tidy(self, case, answer):
        made = answer.headers.get("location")
        if made is not None:
            await self.send("DELETE", made)
        changed = answer.status in {404, 410, 413} or (answer.status < 300 and case.operation.method != "GET")
        if changed and "{session_id}" in case.operation.template:
            status, there = await self.send("GET", f"/sessions/{self.session}/snapshots")
            names = [] if status != 200 else [snapshot["name"] for snapshot in there["snapshots"]]
            if "one" not in names or len(names) > 3:
                await self.send("DELETE", f"/sessions/{self.session}")
                self.session = None


@pytest.fixture
def keyed(tmp_path):
    """A server's settings with a key, and the header that shows it."""
    record = {
        "sha256": hashlib.sha256(b"the right key").hexdigest(),
        "tenant": "alice",
        "scopes": ["score", "generate", "sessions", "admin"],
    }
    path = tmp_path / "keys.json"
    path.write_text(json.dumps([record]))
    return {"api_keys_file": path}, {"authorization": b"Bearer the right key", "host": b"localhost"}


@pytest.fixture
def judged(tiny_checkpoint, capsys):
    """Put cases to a server with these settings, and count what is wrong with its answers."""

    async def judge(choose, *, store, always, **settings):
        app = create_app(
            Settings(model=str(tiny_checkpoint), limits=LIMITS, **settings),
            store=store,
        )
        ears, root = Ears(), logging.getLogger()
        root.addHandler(ears)
        try:
            async with app.router.lifespan_context(app):
                bench = Bench(app, always)
                score, series = await bench.score(), await bench.series()
                count = 0
                for case in choose(bench.surface):
                    await bench.put(case)
                    count += 1
                    if count % 500 == 0:
                        assert await bench.score() == score
                        assert await bench.series() == series
                assert await bench.score() == score
                assert await bench.series() == series
                assert not any(CANARY in line for line in series)
        finally:
            root.removeHandler(ears)
        undocumented, echoed = bench.found["undocumented status"], bench.found["echo"] + len(ears.heard)
        with capsys.disabled():
            print(
                f"\n{count:,} cases: {bench.found['5xx']} responses 5xx, {undocumented} undocumented"
                f" statuses, {echoed} echoes of input"
            )
        assert not bench.found, {fault: shown[:5] for fault, shown in bench.examples.items()}
        assert ears.heard == []
        return count, bench.statuses

    return judge


def sample(count, seed=1):
    """Choose so many cases, of every operation some."""

    def choose(surface):
        draw = random.Random(seed)
        return draw.sample(all_cases(surface), count)

    return choose


async def test_a_right_request_is_answered_by_every_route(tiny_checkpoint):
    """What the table starts from is right: else it would show refusals of something else."""
    app = create_app(Settings(model=str(tiny_checkpoint), limits=LIMITS), store=MemoryStore())
    async with app.router.lifespan_context(app):
        bench = Bench(app, {"host": b"localhost"})
        for operation in bench.surface.operations:
            await bench.renew()
            answer = await ask(app, right(operation).request(bench.session, bench.always))
            expected = 422 if operation.file else min(operation.statuses)
            expected = 426 if expected == 101 else expected  # it is no WebSocket
            assert answer.status == expected, (operation.method, operation.template, answer.body)


async def refusals(bench):
    """What each route that changes anything refuses with, where that is our own doing."""
    found = {}
    for operation in bench.surface.operations:
        if operation.method in {"POST", "PATCH"} and not operation.file:
            answer = await ask(bench.app, right(operation).request(bench.session, bench.always))
            assert answer.status in operation.statuses, (operation.method, operation.template, answer.body)
            if answer.status >= 500:
                told = json.loads(answer.body)
                word = told["error"]["code"] if "error" in told else told["type"].rsplit(":", 1)[1]
                found[operation.template] = word
    return found


async def test_a_full_store_and_a_drain_are_documented(tiny_checkpoint):
    """The 5xx that can be provoked: 503, by name, and on routes that say so."""
    store = MemoryStore(max_bytes=2**19)
    app = create_app(Settings(model=str(tiny_checkpoint), limits=LIMITS), store=store)
    async with app.router.lifespan_context(app):
        bench = Bench(app, {"host": b"localhost"})
        await bench.renew()
        while (await bench.send("POST", "/sessions", {"text": "more"}))[0] == 201:
            continue
        assert "store_full" in (await refusals(bench)).values()
        await app.state.services.drain(0.0)
        assert set((await refusals(bench)).values()) == {"draining"}


async def test_nasties_quick(judged, keyed):
    """A sample of the table, of values in every kind of place."""
    settings, always = keyed
    await judged(sample(QUICK), store=MemoryStore(), always=always, **settings)


@pytest.mark.faults
async def test_nasties(judged, keyed):
    """The whole table, and then two nasties at once."""
    settings, always = keyed

    def choose(surface):
        cases = all_cases(surface)
        yield from cases
        yield from pairs(cases, PAIRS, seed=1)

    count, statuses = await judged(choose, store=MemoryStore(), always=always, **settings)
    assert count >= 20_000
    assert {200, 201, 204, 400, 401, 404, 405, 412, 413, 415, 422} <= set(statuses)
