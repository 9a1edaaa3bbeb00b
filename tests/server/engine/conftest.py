"""Shared by the tests of the engine: tiny random models, engines on a store, and short requests."""

import random
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rlstm_model import checkpoint as checkpoints
from rlstm_model.adaptation.batch import run_batch
from rlstm_model.adaptation.calibration import CalibrationSet, GradientStatistics
from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.config import ModelConfig
from rlstm_model.native.packed import Axes
from rlstm_model.parameters import Parameters, shapes
from rlstm_model.vocab import ByteVocab, WordVocab
from rlstm_server.caller import Call
from rlstm_server.engine.engine import Engine
from rlstm_server.engine.models import Models, ServedModel
from rlstm_server.engine.state import SessionState
from rlstm_server.metrics import Metrics
from rlstm_server.schemas.generation import EndEvent, GenerateRequest
from rlstm_server.schemas.sessions import AppendRequest, Candidate, CandidatesRequest, CreateSession
from rlstm_server.schemas.text import AdaptationRequest, ScoreItem
from rlstm_server.store.memory_store import MemoryStore

SEGMENT = 5


def caller(tenant="acme"):
    return Call(tenant=tenant, request_id="r1", endpoint="test")


def call(by=None, **fields):
    """Who asks, for what."""
    return replace(by or caller(), **fields)


def tiny_parameters(vocab, *, seed=0, hidden=6):
    """Two layers of random weights, large enough that scores differ from token to token."""
    config = ModelConfig(vocab_size=vocab.size, hidden_size=hidden, num_layers=2)
    generator = np.random.default_rng(seed)
    arrays = {
        name: generator.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes(config).items()
    }
    return Parameters(config, arrays)


def random_axes(arrays, rank=3):
    """As many axes of every matrix, at right angles."""
    generator, axes = np.random.default_rng(5), {}
    for name, weight in arrays.items():
        if weight.size and not name.endswith("bias"):
            *rounds, rows, columns = weight.shape
            left, right = (
                np.linalg.qr(generator.normal(size=(*rounds, size, rank)))[0].astype(np.float32)
                for size in (rows, columns)
            )
            axes[name] = Axes(left, np.ascontiguousarray(right.swapaxes(-1, -2)))
    return axes


def calibrate(parameters, *, kind, rate, segment):
    """One rule, with statistics of ones."""
    arrays = parameters.arrays
    axes = {} if kind == "full" else random_axes(arrays)
    statistics = GradientStatistics(
        rms={name: np.ones(array.shape, np.float32) for name, array in arrays.items()},
        axes=axes,
        cores={
            name: np.ones((*left.shape[:-2], left.shape[-1], right.shape[-2]), np.float32)
            for name, (left, right) in axes.items()
        },
    )
    biases = sum(array.size for name, array in arrays.items() if name.endswith("bias"))
    cores = biases + sum(core.size for core in statistics.cores.values())
    config = AdaptationConfig(
        kind=kind,
        num_fast_weights=parameters.config.num_parameters if kind == "full" else cores,
        rule="sgd",
        rate=rate,
        segment=segment,
        reduction="mean",
        statistics_batch=1,
        statistics_segments=1,
    )
    return CalibrationSet(statistics=statistics, choices=(config,), fingerprint="c")


def serve(vocab, *, seed=0, hidden=6, kind="full", calibrated=True, rate=0.05):
    parameters = tiny_parameters(vocab, seed=seed, hidden=hidden)
    return ServedModel(
        name="tiny",
        fingerprint=f"f{seed}",
        parameters=parameters,
        vocab=vocab,
        calibrated=calibrate(parameters, kind=kind, rate=rate, segment=SEGMENT) if calibrated else None,
    )


def before_text(served, **asked):
    """The state of a new session that asks for this."""
    choice = served.choose(AdaptationRequest(**asked))
    return SessionState.before_text(served, choice)


def serve_shipped():
    """The shipped model, with fast weights in random axes of it."""
    shipped = checkpoints.load("bytes-small")
    return ServedModel(
        name="shipped",
        fingerprint="f",
        parameters=shipped.parameters,
        vocab=shipped.vocab,
        calibrated=calibrate(shipped.parameters, kind="subspace", rate=0.01, segment=60),
    )


@asynccontextmanager
async def engine_on(store, *, served=None, metrics=None, **options):
    """A running engine, closed (and its books checked) at the end."""
    others = options.pop("others", ())
    engine = Engine(Models(served or serve(ByteVocab()), *others), store, metrics or Metrics(), **options)
    engine.start()
    try:
        yield engine
    finally:
        await engine.close()
        engine.check()


class Talk:
    """A session spoken to in one line a call."""

    def __init__(self, engine, session, tenant="acme"):
        self.engine, self.session, self.caller = engine, session, caller(tenant)

    @classmethod
    async def begin(cls, engine, tenant="acme", **fields):
        """A new session."""
        call = replace(caller(tenant), key=fields.pop("key", None))
        made = await engine.create_session(CreateSession(**fields).by(call))
        return cls(engine, made.info.id, tenant)

    async def append(self, text=None, *, tokens=None, **fields):
        """One append."""
        call = self.call(key=fields.pop("key", None), if_match=fields.pop("if_match", None))
        tokens = None if tokens is None else list(tokens)
        return await self.engine.append(AppendRequest(text=text, tokens=tokens, **fields).by(call))

    async def info(self):
        """Where it stands."""
        return await self.engine.session_info(self.call())

    async def probe(self, text="a probe of the state"):
        """The score of a text after its present state."""
        request = CandidatesRequest(candidates=[Candidate(id="p", text=text)]).by(self.call())
        return (await self.engine.score_candidates(request)).candidates[0].logprob

    def call(self, **fields):
        """Whose request it is, and of this session."""
        return call(self.caller, session=self.session, **fields)

    def at(self, engine):
        """The same session on another engine."""
        return Talk(engine, self.session, self.caller.tenant)


def finish(coroutine):
    """The result of a job that is alone."""
    results = None
    while True:
        try:
            results = run_batch(coroutine.send(results))
        except StopIteration as stop:
            return stop.value


def item(text=None, *, name="i", context=None, tokens=None):
    """One text to score."""
    return ScoreItem(
        id=name, text=text, tokens=None if tokens is None else list(tokens), context=context or ""
    )


def altered(request, **changes):
    """The same request with other fields, or by another call."""
    call = {
        name: changes.pop(name)
        for name in ("caller", "session", "key", "if_match", "after")
        if name in changes
    }
    return request.model_copy(update=changes).by(replace(request.call, **call))


def ask(prompt="the ", **settings):
    """A request to continue a prompt."""
    if "stop" in settings:
        settings["stop"] = list(settings["stop"])
    return GenerateRequest(prompt=prompt, **{"max_tokens": 12, "seed": 1, **settings}).by(caller())


async def collect(events):
    """All events of a stream as (text, ids, end) of each choice."""
    texts, ids, ends = {}, {}, {}
    for event in await all_of(events):
        if isinstance(event, EndEvent):
            ends[event.choice] = event
        else:
            texts[event.choice] = texts.get(event.choice, "") + event.text
            ids.setdefault(event.choice, []).append(event.id)
    return texts, ids, ends


async def all_of(events):
    """All events of a stream, one after the other."""
    async with aclosing(events) as batches:
        return [event async for batch in batches for event in batch]


def pieces_of(text, seed):
    """A text cut at random."""
    draw, pieces = random.Random(seed), []
    while text:
        length = draw.randint(1, 12)
        pieces, text = [*pieces, text[:length]], text[length:]
    return pieces


def value(metrics, name, **labels):
    """One number of the metrics."""
    return metrics.registry.get_sample_value(f"rlstm_{name}", labels)


@pytest.fixture(scope="session")
def tools():
    """What tests of this folder share: `import-mode=importlib` lets them import nothing from here."""
    shared = (
        *(before_text, call, caller, serve, engine_on, Talk, tiny_parameters, calibrate, altered),
        *(pieces_of, serve_shipped, finish, item, ask, collect, all_of, value, replace),
    )
    named = {one.__name__: one for one in shared}
    return SimpleNamespace(asked=AdaptationRequest, SEGMENT=SEGMENT, **named)


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
async def engine(store):
    async with engine_on(store) as running:
        yield running


@pytest.fixture
def words():
    return WordVocab.build("the cat sat on the mat\nthe dog ran\n")
