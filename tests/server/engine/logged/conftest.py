"""Shared by the tests of states that no commit brings along: all of them here, however small they are."""

from contextlib import aclosing
from dataclasses import replace

import pytest

from rlstm_model.vocab import ByteVocab, WordVocab
from rlstm_server.engine import snapshot
from rlstm_server.engine.served import ServedModel
from rlstm_server.metrics import Metrics
from rlstm_server.schemas import GenerationSettings, ResetRequest, SessionGenerate
from rlstm_server.store.base import SessionKey

RULES = {
    "calm": {},
    "projected": {"rate": 10.0, "max_norm_ratio": 0.01},
    "skipped": {"rate": 1e39, "max_norm_ratio": 1e30},
    "broken": {"rate": 1e30, "max_norm_ratio": 1e34},
    "watched": {"rate": 10.0, "max_norm_ratio": 50.0},
}
"""Rules that provoke a guard each, by its name."""


@pytest.fixture(autouse=True)
def log_mode(monkeypatch):
    """No state is small enough for a commit."""
    monkeypatch.setattr(snapshot, "INLINE_BYTES", 0)


@pytest.fixture(scope="session")
def served_by(tools):
    """A model for each kind and rule, made once."""
    made = {}

    def serve(kind="full", rule="calm", vocab=None):
        if (kind, rule, vocab) not in made:
            own = ByteVocab() if vocab is None else WordVocab.build(vocab)
            plain = tools.serve(own, kind=kind)
            given = plain.calibrated
            calibrated = type(given)(
                model=plain.model,
                statistics=given.statistics,
                choices=(replace(given.default, **RULES[rule]),),
                fingerprint=rule,
            )
            made[kind, rule, vocab] = ServedModel(
                name="t", fingerprint="f", model=plain.model, vocab=own, calibrated=calibrated
            )
        return made[kind, rule, vocab]

    return serve


def key_of(talk):
    return SessionKey(talk.caller.tenant, talk.session)


def cached(engine, talk):
    return engine.sessions.cache.get(key_of(talk))


async def keep_text(talk, *, learn, tokens=20, seed=1):
    """Generated text that the session keeps."""
    request = SessionGenerate(
        caller=talk.caller,
        session=talk.session,
        settings=GenerationSettings(max_tokens=tokens, seed=seed),
        commit=True,
        learn_from_output=learn,
    )
    async with aclosing(talk.engine.generate_in_session(request)) as events:
        return [event async for event in events]


async def reset(talk, scope):
    await talk.engine.reset(ResetRequest(caller=talk.caller, session=talk.session, scope=scope))


async def perform(talk, operations):
    """A program; each operation is a word and what it needs."""
    for operation in operations:
        match operation:
            case "append", text, learn, final:
                await talk.append(text, learn=learn, final=final)
            case "generate", tokens, learn:
                await keep_text(talk, learn=learn, tokens=tokens)
            case "reset", scope:
                await reset(talk, scope)


async def records_of(store, talk):
    return [entry.record for entry in await store.read_log(key_of(talk), after=0, limit=10_000)]


@pytest.fixture(scope="session")
def logs(tools):
    """What the tests here share."""

    def digest(state):
        return tools.finish(snapshot.digest(state))

    async def rebuilt(store, served, talk):
        """The session's copy as an engine makes it that never saw it, and the digest of its state."""
        metrics = Metrics()
        async with tools.engine_on(store, served=served, metrics=metrics) as engine:
            copy = await engine.sessions.read(key_of(talk), talk.caller)
        assert tools.value(metrics, "log_replays_total", outcome="differs") == 0
        return copy, digest(copy.state)

    class Logs:
        pass

    logs = Logs()
    logs.rules, logs.digest, logs.rebuilt = RULES, digest, rebuilt
    logs.key_of, logs.cached, logs.records_of = key_of, cached, records_of
    logs.perform, logs.keep_text = perform, keep_text
    return logs
