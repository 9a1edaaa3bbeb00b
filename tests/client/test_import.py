"""What importing the client costs."""

import json
import subprocess
import sys

MODULES = """
import json, sys
import httpx
before = set(sys.modules)
from rlstm_client import *
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
    """With every public name imported, the only third-party modules are httpx and what httpx itself loads."""
    packages = {module.partition(".")[0] for module in json.loads(run(MODULES))}

    assert packages - set(sys.stdlib_module_names) == {"rlstm_client"}


def test_importing_is_quick() -> None:
    """The package takes less than 0.2 s of a processor, and with both clients 0.4 s; best of several."""
    package, clients = zip(*(map(float, run(SECONDS).split()) for _ in range(5)), strict=True)

    assert min(package) < 0.2
    assert min(clients) < 0.4
