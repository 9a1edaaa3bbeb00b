"""The watched logs: what is put into them, and that it is found."""

import json

import pytest

from benchmarks.watch import KINDS, USUAL, Found, read_logs, watch, with_strange_lines
from rlstm_training.corpora import corpora_folder

LOGS = corpora_folder() / "logs"


@pytest.mark.skipif(not LOGS.is_dir(), reason="no logs in RLSTM_CORPORA")
def test_what_is_put_in_is_strange():
    """A quarter of it is of each kind; none is a line as the log has it, and the log's own stay in order."""
    logs = read_logs(LOGS)
    for name in ("Apache", "HealthApp"):
        lines = with_strange_lines(name, logs, lines=250, every=5)
        kinds = [kind for _, kind in lines]
        assert [kinds.count(kind) for kind in KINDS] == [10, 10, 10, 10]
        assert [line for line, kind in lines if kind == USUAL] == logs[name][:250]
        assert not {line for line, kind in lines if kind != USUAL} & {*logs[name]}


def test_alarms_are_counted_by_kind_after_the_warm_up():
    """Lines are numbered from 1; those of the warm-up count nowhere."""
    lines = [("a", USUAL)] * 50 + [("b", KINDS[0]), ("a", USUAL), ("c", KINDS[0])]
    found = Found.of(lines, {3, 51, 52})
    both = Found.together([found, found])

    assert (found.lines[USUAL], found.alarms[USUAL]) == (1, 1)
    assert (both.lines[KINDS[0]], both.alarms[KINDS[0]], both.share(KINDS[0])) == (4, 2, 0.5)
    assert found.share(KINDS[1]) == 0


@pytest.mark.jobs
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not LOGS.is_dir(), reason="no logs in RLSTM_CORPORA")
def test_lines_of_other_systems_are_found(type_command):
    """In the first 150 lines of each log: nearly all of them, and hardly a usual line."""
    done = type_command(watch, "--lines", 150, "--every", 5, "--json")
    assert done.exit_code == 0, done.stderr
    logs = [Found(**log) for log in json.loads(done.stdout)["logs"].values()]
    found = Found.together(logs)
    print(found)

    assert found.share("foreign") >= 0.95
    assert found.share(USUAL) <= 0.01
