"""What no module of ours may do is what the linter finds, and what we ask for has no known faults.

Nothing that pickles, evaluates or unpacks objects reads a file; no shell is started; a server asks no other.
"""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
BANNED = [
    *(
        "import pickle",
        "import numpy, pickle as p",
        "from pickle import loads",
        "import marshal",
        "import shelve",
    ),
    *("import torch; torch.load(a)", "import torch as t; t.load(a)", "import torch; torch.save(a, b)"),
    *("import numpy; numpy.load(a)", "import cloudpickle.cloudpickle", "import yaml; yaml.load(a)"),
    *("eval(a)", "exec(a)", "import subprocess; subprocess.run(a, shell=True)", "import os; os.system(a)"),
    *("import httpx", "from urllib import request", "import http.client", "from requests import get"),
]
ALLOWED = ["import re; re.compile(a)", "a.eval()", "a.load()", "import urllib.parse"]

FLOORS = {
    "h11": ("0.16", "CVE-2025-43859: lenient chunks, by which requests are smuggled"),
    "starlette": ("0.49.1", "CVE-2025-62727: ranges merged in quadratic time"),
    "redis": ("4.5.4", "CVE-2023-28859: the reply to a cancelled command goes to another"),
    "torch": ("2.10", "CVE-2025-32434, CVE-2026-24747: checkpoints that run code"),
}


def test_the_linter_finds_each_banned_thing():
    """In a module of the server, as `make check` would; and lets pass what only looks like one."""
    rules = ["--select", "S", "--select", "TID251", "--output-format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", *rules, "--stdin-filename", "server/rlstm_server/x.py", "-"],
        input="\n".join([*BANNED, *ALLOWED]),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    found = {fault["location"]["row"] for fault in json.loads(done.stdout)}
    assert [line for row, line in enumerate(BANNED, 1) if row not in found] == []
    assert found <= set(range(1, len(BANNED) + 1))


@pytest.mark.parametrize("name", FLOORS)
def test_libraries_are_free_of_known_faults(name):
    """What is asked for excludes them, and what is installed does."""
    floor = Version(FLOORS[name][0])
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (asked,) = {Requirement(line) for lines in extras.values() for line in lines if line.startswith(name)}
    assert max(Version(part.version) for part in asked.specifier if part.operator == ">=") >= floor
    assert Version(version(name)) >= floor
