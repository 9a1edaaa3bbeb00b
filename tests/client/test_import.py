"""What importing the client costs and gives."""

import inspect
import json
import re
import subprocess
import sys
from dataclasses import is_dataclass
from pathlib import Path

import pytest

import rlstm_client

MODULES = """
import json, sys
import httpx
before = set(sys.modules)
import rlstm_client
rlstm_client.Client, rlstm_client.AsyncClient, rlstm_client.models, rlstm_client.errors
print(json.dumps(sorted(set(sys.modules) - before)))
"""
SECONDS = """
import time
start = time.process_time()
import rlstm_client
named = time.process_time()
rlstm_client.Client, rlstm_client.AsyncClient
print(named - start, time.process_time() - start)
"""


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_only_httpx_and_the_standard_library() -> None:
    """With both clients imported, the only third-party modules are httpx and what httpx itself loads."""
    packages = {module.partition(".")[0] for module in json.loads(run(MODULES))}

    assert packages - set(sys.stdlib_module_names) == {"rlstm_client"}


def test_importing_is_quick() -> None:
    """The package takes less than 0.2 s of a processor, and with both clients 0.4 s; best of several."""
    package, clients = zip(*(map(float, run(SECONDS).split()) for _ in range(5)), strict=True)

    assert min(package) < 0.2
    assert min(clients) < 0.4


def test_the_exported_names() -> None:
    """What type checkers are told of is there, with every class of an answer among it."""
    text = Path(rlstm_client.__file__).read_text(encoding="utf-8")
    named = set(re.findall(r" as (\w+)\n", text))
    answers = {
        name for name, one in vars(rlstm_client.models).items() if inspect.isclass(one) and is_dataclass(one)
    }

    assert [name for name in named if getattr(rlstm_client, name, None) is None] == []
    assert answers - named == {"Answer", "Columns", "SnapshotList"}
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = rlstm_client.nothing_of_the_kind  # type: ignore[attr-defined]
