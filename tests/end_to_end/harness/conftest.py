"""The real clients of others, in processes of their own, against a real server; no network."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rlstm_model.checkpoint import load
from rlstm_server.engine.models import ServedModel
from rlstm_server.schemas.text import AdaptationRequest

BOS = 10
DRIVER = Path(__file__).with_name("driver.py")
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "openai.md"


@pytest.fixture(scope="session")
def page():
    """What the page says of other clients, for a server at another address with the small test model."""
    text = PAGE.read_text()

    def at(url):
        return text.replace("http://127.0.0.1:8000", url).replace("bytes-small", "tiny")

    return at


@pytest.fixture(scope="session")
def offline(tmp_path_factory):
    """An environment in which nothing asks a hub for anything."""
    home = tmp_path_factory.mktemp("hub")
    return {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(home), "OPENAI_API_KEY": ""}


@pytest.fixture(scope="module")
def drive(rlstm, server, offline):
    """Give what has the harness's client do a list of calls; gives the results of each."""

    def run(*calls):
        for call in calls:
            call["model"] = {"base_url": f"{server.url}/v1/completions", "max_length": 1_000_000} | call[
                "model"
            ]
        done = subprocess.run(
            [sys.executable, str(DRIVER)],
            input=json.dumps(calls),
            capture_output=True,
            text=True,
            env=rlstm.environment | offline,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="session")
def brute_force(tiny_checkpoint):
    """Give log-probabilities of all ids but the first, by the model alone, static or learning on the way."""
    served = ServedModel.of(load(tiny_checkpoint))

    def static(ids):
        reader = served.reader
        found, _ = reader.score(reader.cursor._replace(last=ids[0]), ids[1:])
        return found.logprobs.tolist()

    def adapted(ids):
        evaluator, expert_config = served.evaluator(), AdaptationRequest().expert_config
        state = evaluator.start(
            experts=expert_config.experts, static=expert_config.static, adapt=expert_config.adapt
        )
        begin = state.now._replace(last=ids[0])
        state, found = replace(state, now=begin, start=begin.of(state.expert_config.learning)), []
        for part in evaluator.observe(state, ids[1:]):
            found += part.scores.logprobs.tolist()
        return found

    return {"tiny": static, "tiny:adapt": adapted}
