"""Shared by the tests of the engine: tiny random models, engines on a store, and short requests."""

from contextlib import asynccontextmanager

import pytest
import torch

from rlstm_model.adaptation.calibration import Calibrated, GradientStatistics
from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.config import ModelConfig
from rlstm_model.language_model import LanguageModel
from rlstm_model.vocab import ByteVocab, WordVocab
from rlstm_server.engine.engine import Engine
from rlstm_server.engine.messages import AppendRequest, Caller, CreateSession, Passage
from rlstm_server.engine.served import ServedModel
from rlstm_server.metrics import Metrics
from rlstm_server.store.in_memory import MemoryStore

SEGMENT = 5


def caller(tenant="acme"):
    return Caller(tenant=tenant, request_id="r1", endpoint="test")


def tiny_model(vocab, *, seed=0, hidden=6):
    """Two layers of random weights, large enough that scores differ from token to token."""
    model = LanguageModel(ModelConfig(vocab_size=vocab.size, hidden_size=hidden, num_layers=2))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.0, 0.5, generator=generator)
    return model.eval().requires_grad_(False)


def serve(vocab, *, seed=0, calibrated=True):
    model = tiny_model(vocab, seed=seed)
    config = AdaptationConfig(
        kind="full",
        coordinates=model.config.num_parameters,
        rule="sgd",
        rate=0.05,
        segment=SEGMENT,
        reduction="mean",
        statistics_batch=1,
        statistics_segments=1,
    )
    rms = torch.ones(model.config.num_parameters)
    return ServedModel(
        name="tiny",
        fingerprint=f"f{seed}",
        model=model,
        vocab=vocab,
        calibrated=Calibrated(
            model=model, statistics=GradientStatistics(full_P=rms), choices=(config,), fingerprint="c"
        )
        if calibrated
        else None,
    )


@asynccontextmanager
async def engine_on(store, *, served=None, metrics=None, **options):
    """A running engine, closed (and its books and weights checked) at the end."""
    engine = Engine(served or serve(ByteVocab()), store, metrics or Metrics(), **options)
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
        made = await engine.create_session(CreateSession(caller=caller(tenant), **fields))
        return cls(engine, made.info.id, tenant)

    async def append(self, text=None, *, tokens=None, **fields):
        """One append."""
        passage = Passage(text=text) if tokens is None else Passage(tokens=tuple(tokens))
        return await self.engine.append(
            AppendRequest(caller=self.caller, session=self.session, passage=passage, **fields)
        )

    async def info(self):
        """Where it stands."""
        return await self.engine.session_info(self.caller.tenant, self.session)

    def at(self, engine):
        """The same session on another engine."""
        return Talk(engine, self.session, self.caller.tenant)


@pytest.fixture(scope="session")
def tools():
    """What tests of this folder share: `import-mode=importlib` lets them import nothing from here."""

    class Tools:
        pass

    tools = Tools()
    tools.caller, tools.serve, tools.engine_on, tools.Talk = caller, serve, engine_on, Talk
    tools.tiny_model, tools.SEGMENT = tiny_model, SEGMENT
    return tools


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
