"""What the native core is held against: the arithmetic of findings, and every part in miniature."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import cases, train
from benchmarks.lone import EXPERTS, Lone
from benchmarks.models import Subject
from benchmarks.native import MANY, MAX, MIN, Finding, Targets, library, native
from benchmarks.start import Followed


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Matrix products of no size."""
    monkeypatch.setattr(cases, "SGEMM_SIZE", 16)
    monkeypatch.setattr(train, "SGEMM_SIZE", 16)


def test_a_finding_is_met_on_its_side_of_the_target():
    """At least, or at most."""
    figures = {"name": "a", "value": 2.0, "absolute": {}}
    met = [Finding(bound=bound, target=t, **figures).met for bound in (MIN, MAX) for t in (1.0, 2.0, 3.0)]
    assert met == [True, True, False, False, True, True]


@pytest.mark.parametrize(
    ("lags", "expected"),
    [
        ([9.0, 9.0, 0.1, 0.2, 0.1, 0.2, 0.1, 0.4], (0.15, 0.4, False)),
        ([0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 3.0, 4.0], (2.0, 4.0, True)),
    ],
)
def test_a_log_is_followed_or_is_not(lags, expected):
    """The start does not count; who is ever later falls behind."""
    assert Followed.of(lags) == pytest.approx(expected)


def test_a_lone_stream_is_a_default_session(checkpoint):
    """It learns, and generating and scoring leave it as it is; a process of its own answers for it."""
    lone = Lone(str(checkpoint))
    stream = lone._stream
    before = stream.state
    assert (before.expert_config.experts, before.expert_config.rows) == (EXPERTS, 2)
    assert before.delta_KP.any()
    lone.generate(3)
    lone.score(9)
    assert stream.state is before
    lone.learn(12)
    assert stream.state.position == before.position + 12
    with library(str(checkpoint), 1) as one:
        assert all(one.rate(task, 5) > 0 for task in ("learn", "score", "generate"))
    with pytest.raises(RuntimeError, match="ended"), library("/no/such/model", 1):
        pass


@pytest.mark.parametrize(
    ("part", "findings"), [("lone", 5), ("many", 7), ("training", 2), ("start", 2), ("follow", 1)]
)
def test_each_part_in_miniature(subject, checkpoint, type_command, monkeypatch, part, findings):
    """All findings, with what each is made of."""
    monkeypatch.setitem(MANY, "n = 192", Targets(learning={1: 0.0}, static=0.0, eager=0.0))
    monkeypatch.setattr(Subject, "untrained", lambda hidden: subject)
    quick = ["--rounds", 1, "--seconds", 0, "--share", 0.01, "--sessions", 2, "--hidden", 8]
    done = type_command(native, checkpoint, *quick, "--part", part, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)["findings"]
    assert len({one["name"] for one in told}) == len(told) == findings
    assert all(one["value"] >= 0 and one["absolute"] for one in told)


def test_wrong_usage_is_named(type_command, tmp_path):
    """A part that there is none of, a base without an environment."""
    assert "--part" in type_command(native, "--part", "all").stderr
    assert "--base" in type_command(native, "--base", tmp_path).stderr
    script = Path(sys.modules["benchmarks.lone"].__file__)
    assert "import benchmarks" not in script.read_text()  # another commit's Python has none of it
    assert subprocess.run([sys.executable, "-P", script, "/none"], capture_output=True).returncode == 1
