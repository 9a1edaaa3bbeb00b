"""Each fault turns its own test red, or that test proves nothing."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import pytest
from mutants.table import MUTANTS

ROOT = Path(__file__).parents[2]
SHORT = ("no_chain_check", "no_operation_ids", "acknowledged_before_commit", "anothers_state_committed")
AT_ONCE = 2
ASSERTED = ("AssertionError", "assert ", "Failed: DID NOT RAISE")


def run(report, *arguments):
    """Run tests in a process of their own: its end, the cases it wrote down, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert report.exists(), done.stdout + done.stderr
    cases = [case for case in ElementTree.parse(report).iter("testcase") if case.find("skipped") is None]
    return done.returncode, cases, done.stdout


def says(case, path):
    """What an assertion that failed in the test's own file said; None for anything else that went wrong."""
    failure = case.find("failure")
    if failure is None or not failure.get("message").startswith(ASSERTED):
        return None
    if not re.search(rf"^{path}:\d+: (AssertionError|Failed)$", failure.text, re.MULTILINE):
        return None
    return failure.get("message").splitlines()[0]


@pytest.fixture
def mutants():
    """The faults to put in: four of them where `RLSTM_FAULTS=short` asks for little, else all."""
    short = os.environ.get("RLSTM_FAULTS") == "short"
    return {name: MUTANTS[name] for name in (SHORT if short else MUTANTS)}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_every_mutant_fits_the_server_and_names_a_test(mutant):
    """What it replaces is there, and so is the test."""
    path, name = mutant.test.split("::")
    with mutant.patch():
        assert f"def {name.split('[')[0]}(" in (ROOT / path).read_text()


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_every_mutant_is_caught(mutants, tmp_path):
    """The test named for it fails by an assertion of its own, in every case; without the fault it passes."""
    ended, _, printed = run(tmp_path / "whole.xml", *(mutant.test for mutant in mutants.values()))
    assert ended == 0, printed

    def put_in(name):
        test = mutants[name].test
        ended, cases, printed = run(tmp_path / f"{name}.xml", "-p", "mutants.plugin", "--mutant", name, test)
        said = [says(case, re.escape(test.split("::")[0])) for case in cases]
        return name, said[0] if ended == 1 and said and all(said) else None, printed

    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(put_in, mutants))
    told = {name: said for name, said, _ in outcomes if said is not None}
    missed = {name: printed for name, said, printed in outcomes if said is None}
    print(f"\n{len(told)}/{len(mutants)} mutants caught")
    for name, words in told.items():
        print(f"  {name:28} {mutants[name].test}\n{'':31}{words[:110]}")
    assert missed == {}
