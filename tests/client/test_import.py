"""What importing the client costs and gives."""

import json
import re
import subprocess
import sys
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


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_only_httpx_and_the_standard_library() -> None:
    """With both clients imported, the only third-party modules are httpx, what it loads, and httpx-sse."""
    packages = {module.partition(".")[0] for module in json.loads(run(MODULES))}

    assert packages - set(sys.stdlib_module_names) == {"rlstm_client", "httpx_sse"}


def test_the_exported_names() -> None:
    """What type checkers are told of is there, with every class of an answer among it."""
    text = Path(rlstm_client.__file__).read_text(encoding="utf-8")
    named = {*re.findall(r" as (\w+)\n", text), *dir(rlstm_client.models)}

    assert [name for name in named if name[0] != "_" and getattr(rlstm_client, name, None) is None] == []
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = rlstm_client.nothing_of_the_kind  # type: ignore[attr-defined]
