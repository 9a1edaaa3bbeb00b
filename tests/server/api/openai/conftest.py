"""A client of the OpenAI-compatible face, and the model behind it for brute force."""

import json

import pytest
import pytest_asyncio

from rlstm_model.adaptation.evaluator import frozen_reader
from rlstm_model.checkpoint import load

BOS = 10


class Face:
    """Completions of the tiny model."""

    def __init__(self, client):
        self.client = client

    async def ask(self, **body):
        """Post a body, with a model where it names none; gives the answer as it is."""
        return await self.client.post("/v1/completions", json={"model": "tiny", **body})

    async def complete(self, **body):
        """Give the whole answer, which fits its schema."""
        answer = await self.ask(**body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def one(self, **body):
        """Give the only choice."""
        (choice,) = (await self.complete(**body))["choices"]
        return choice

    async def chunks(self, **body):
        """Give the data of a stream's events, without `[DONE]`, which ends it."""
        answer = await self.ask(stream=True, **body)
        assert answer.headers["content-type"].startswith("text/event-stream")
        frames = [frame for frame in answer.text.split("\n\n") if frame and not frame.startswith(":")]
        assert frames.pop() == "data: [DONE]"
        assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
        return [json.loads(frame.removeprefix("data: ")) for frame in frames]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(serve):
    """A client of a server with default settings: one for a module, since no completion leaves a trace."""
    async with serve() as client:
        yield client


@pytest.fixture(scope="module")
def face(client):
    """Completions of that server."""
    return Face(client)


@pytest.fixture
def key_records(key_file):
    """A file of keys, each with one scope, and one whose quota is soon used up."""
    scopes = {"scorer": "score", "writer": "generate", "keeper": "sessions"}
    slow = {"scopes": ["score"], "quotas": {"requests_per_second": 0.01}}
    return key_file({**{key: {"scopes": [scope]} for key, scope in scopes.items()}, "slow": slow})


@pytest.fixture(scope="session")
def brute_force(tiny_checkpoint):
    """Give log-probabilities of ids by the model alone: all but the first, or all after `bos`."""
    checkpoint = load(tiny_checkpoint)

    def scores(ids, *, bos=False):
        rest, last = ([*ids], BOS) if bos else ([*ids[1:]], ids[0])
        reader = frozen_reader(checkpoint.parameters, BOS)
        found, _ = reader.score(reader.cursor._replace(last=last), rest)
        return found.logprobs.tolist()

    return scores
