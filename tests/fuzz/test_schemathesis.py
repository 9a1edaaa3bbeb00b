"""Requests that schemathesis makes of the server's own OpenAPI document, and every check that it knows."""

import collections
import hashlib
import json

import pytest

from rlstm_server.app import create_app
from rlstm_server.settings import Settings
from rlstm_server.store.memory_store import MemoryStore

schemathesis = pytest.importorskip("schemathesis", reason="the extra `fuzz` is not installed")

from schemathesis.config import SchemathesisConfig  # noqa: E402
from schemathesis.engine import events, from_schema  # noqa: E402
from schemathesis.python.asgi import shutdown_lifespans  # noqa: E402

pytestmark = pytest.mark.fuzz

KEY = "a key that is right"
LIMITS = {"failed_logins": 2**20, "generate_tokens": 64}

REFUSALS = ["400", "404", "409", "410", "412", "413", "422", "426"]
"""How a request may be refused that fits the schema: no schema can tell which session there is, which of
two fields stands beside the other, which ids the vocabulary has, or that a WebSocket is wanted."""


def run(app, **options):
    """Run all phases against an application; gives the count of requests, statuses, and what was found."""
    config = SchemathesisConfig.from_dict(
        {
            "base-url": "http://localhost",
            "seed": 1,
            "checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", *REFUSALS]}},
            **options,
        }
    )
    schema = schemathesis.openapi.from_dict(app.openapi(), config=config)
    schema.app = app
    statuses, checks, found = collections.Counter(), collections.Counter(), []
    for event in from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            answers = [one.response for one in event.recorder.interactions.values()]
            statuses.update(answer.status_code for answer in answers if answer is not None)
            for check in (check for listed in event.recorder.checks.values() for check in listed):
                checks[check.name] += 1
                if check.failure_info is not None:
                    failure = check.failure_info
                    found.append(f"{check.name}: {failure.failure}\n{failure.code_sample}")
        elif isinstance(event, events.NonFatalError):
            found.append(f"{event.label}: {event.value}")
        elif isinstance(event, events.FatalError):
            raise event.exception
    return statuses, checks, found


@pytest.fixture
def application(tiny_checkpoint, tmp_path):
    """Give what makes an application, with keys or without, and the options that schemathesis needs."""

    def make(keyed):
        given, options = {}, {}
        if keyed:
            digest = hashlib.sha256(KEY.encode()).hexdigest()
            scopes = ["score", "generate", "sessions", "admin"]
            path = tmp_path / "keys.json"
            path.write_text(json.dumps([{"sha256": digest, "tenant": "alice", "scopes": scopes}]))
            given = {"api_keys_file": path}
            options = {"auth": {"openapi": {"key": {"bearer": KEY}}}}
        settings = Settings(model=str(tiny_checkpoint), limits=LIMITS, **given)
        return create_app(settings, store=MemoryStore()), options

    yield make
    shutdown_lifespans()


def test_a_short_run_finds_nothing(application):
    """Some requests to each route, right and wrong ones."""
    app, _ = application(keyed=False)
    phases = {name: {"enabled": False} for name in ("examples", "coverage", "stateful")}
    statuses, checks, found = run(app, phases=phases, generation={"max-examples": 1, "database": "none"})
    assert not found, found[:5]
    assert {200, 201, 422} <= set(statuses)
    assert {"negative_data_rejection", "response_schema_conformance"} <= set(checks)


@pytest.mark.faults
@pytest.mark.parametrize("keyed", [False, True])
def test_a_long_run_finds_nothing(application, capsys, keyed):
    """All phases, positive and negative, all checks; with keys also whether any route does without one."""
    app, options = application(keyed)
    statuses, checks, found = run(app, generation={"max-examples": 300, "database": "none"}, **options)
    count, broken = sum(statuses.values()), sum(number for one, number in statuses.items() if one >= 500)
    with capsys.disabled():
        with_keys = "with keys" if keyed else "without keys"
        print(
            f"\nschemathesis {with_keys}: {count:,} requests, {len(checks)} kinds of checks:"
            f" {broken} responses 5xx, {len(found)} faults"
        )
    assert not found, found[:5]
    assert {200, 201, 204, 404, 405, 422} <= set(statuses)
    assert not keyed or {401} <= set(statuses)
    assert not keyed or checks["ignored_auth"]
