"""A published number is the served number: `rlstm evaluate --dynamic` against a session over HTTP."""

import json
import random
import subprocess

import pytest

from rlstm_client import Client


def evaluated(rlstm, model, path, environment):
    """The answer of `rlstm evaluate --dynamic --json` for one file."""
    command = [str(rlstm), "evaluate", str(model), str(path), "--dynamic", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
    return json.loads(done.stdout)["texts"][0]


@pytest.mark.parametrize("cut", ["whole", "ragged"])
def test_a_session_scores_what_evaluation_publishes(cut, server, tiny_checkpoint, rlstm, tmp_path):
    """A text, whole or in pieces, costs a session what dynamic evaluation says, adapted and static."""
    dice = random.Random(3)
    text = "".join(dice.choices("the quick brown fox jumps\n", k=700))
    (tmp_path / "text").write_text(text)
    published = evaluated(rlstm.path, tiny_checkpoint, tmp_path / "text", rlstm.environment)
    pieces, rest = [], text
    while rest:
        length = len(rest) if cut == "whole" else dice.randint(1, 60)
        pieces.append(rest[:length])
        rest = rest[length:]

    with Client(server.url) as client:
        session = client.sessions.create(adaptation={"experts": 1})  # as evaluation has
        totals = [session.append(piece).totals for piece in pieces]
        updates = session.info().totals.updates

    assert -sum(part.logprob for part in totals) == pytest.approx(
        published["adapted"]["nats"], abs=1e-5 * 700
    )
    assert -sum(part.static_logprob for part in totals) == pytest.approx(
        published["static"]["nats"], abs=1e-5 * 700
    )
    assert updates == published["updates"] > 0
    assert published["adapted"]["nats"] != pytest.approx(published["static"]["nats"], abs=1.0)
