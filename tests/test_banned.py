"""What no module of ours may do: run what it reads, start a shell; what no server may; and no old libraries.

The first is a matter of every file that comes from elsewhere: nothing that pickles, evaluates or unpacks
objects reads it. The second list names advisories that the versions we ask for are free of.
"""

import ast
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PACKAGES = [
    "model/rlstm_model",
    "training/rlstm_training",
    "server/rlstm_server",
    "clients/python/rlstm_client",
]
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]

MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
BUILTINS = {"eval", "exec", "compile", "__import__", "breakpoint"}
CALLS = {
    "torch.load",
    "torch.save",
    "torch.jit.load",
    "torch.hub.load",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "logging.config.listen",
    "pandas.read_pickle",
}
OPTIONS = {"allow_pickle": False, "trust_remote_code": False, "shell": False}
"""Options of any call, and the only value that may be given."""

HTTP_CLIENTS = {"httpx", "requests", "urllib3", "aiohttp", "http.client", "urllib.request", "ftplib"}
NO_SERVER = {"bench", "local.py"}
"""What stands in the server's package and is not part of a server: it asks one."""

FLOORS = {
    "h11": ("0.16", "CVE-2025-43859: lenient chunks, by which requests are smuggled"),
    "starlette": ("0.49.1", "CVE-2025-62727: ranges merged in quadratic time"),
    "redis": ("4.5.4", "CVE-2023-28859: the reply to a cancelled command goes to another"),
    "torch": ("2.10", "CVE-2025-32434, CVE-2026-24747: checkpoints that run code"),
}


def faults(tree):
    """Line and name of everything banned in ``tree``."""
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname: alias.name for alias in node.names if alias.asname}
    for node in ast.walk(tree):
        for name in _names(node, aliases):
            if name.split(".")[0] in MODULES or name in CALLS or name in BUILTINS:
                yield node.lineno, name
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg in OPTIONS and not _is(keyword.value, OPTIONS[keyword.arg]):
                    yield node.lineno, keyword.arg


def _names(node, aliases):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    if isinstance(node, ast.Attribute):
        first, *rest = ast.unparse(node).split(".")
        return [".".join([aliases.get(first, first), *rest])]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BUILTINS:
        return [node.func.id]
    return []


def _is(node, value):
    return isinstance(node, ast.Constant) and node.value is value


def imports(tree):
    """Every module that ``tree`` imports, wherever it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _names(node, {})


def test_no_module_of_ours_does_what_is_banned():
    """Neither pickles, nor evaluates, nor starts a shell."""
    found = {path.relative_to(ROOT): list(faults(ast.parse(path.read_text("utf-8")))) for path in FILES}
    assert {path: hits for path, hits in found.items() if hits} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import numpy, pickle as p",
        "from pickle import loads",
        "from torch import load",
        "torch.load(path)",
        "import torch as t\nt.load(path)",
        "torch.save(model, path)",
        "numpy.load(path, allow_pickle=True)",
        "numpy.load(path, allow_pickle=flag)",
        "import cloudpickle.cloudpickle",
        "import marshal, shelve",
        "yaml.load(text)",
        "from yaml import load",
        "eval(text)",
        "exec(text)",
        "__import__(name)",
        "subprocess.run(line, shell=True)",
        "os.system(line)",
        "from os import popen",
        "load_model(name, trust_remote_code=True)",
    ],
)
def test_the_walk_finds_each_banned_thing(source):
    """A test that cannot fail would show nothing."""
    assert list(faults(ast.parse(source)))


@pytest.mark.parametrize("source", ["re.compile(text)", "model.eval()", "run(line, shell=False)", "x.load()"])
def test_the_walk_lets_others_pass(source):
    """Methods that share a name are no evaluation."""
    assert not list(faults(ast.parse(source)))


def test_a_server_fetches_no_address():
    """No module that a server runs can ask another one over HTTP, whatever it is told to."""
    server = ROOT / "server/rlstm_server"
    inside = [path for path in FILES if path.is_relative_to(server)]
    inside = [path for path in inside if path.relative_to(server).parts[0] not in NO_SERVER]
    found = {
        path.relative_to(server): name
        for path in inside
        for name in imports(ast.parse(path.read_text("utf-8")))
        if any(name == client or name.startswith(f"{client}.") for client in HTTP_CLIENTS)
    }
    assert found == {}
    assert len(inside) > 60
    assert "urllib.request" in set(imports(ast.parse("from urllib import request")))


@pytest.mark.parametrize("name", FLOORS)
def test_libraries_are_free_of_known_faults(name):
    """What is asked for excludes them, and what is installed does."""
    floor = Version(FLOORS[name][0])
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = [Requirement(line) for line in extras["server"] if Requirement(line).name == name]
    assert len(asked) == 1
    lowest = [Version(part.version) for part in asked[0].specifier if part.operator == ">="]
    assert lowest
    assert max(lowest) >= floor
    assert Version(version(name)) >= floor


def test_the_walk_covers_all_four_packages():
    """A package that moved would otherwise pass unseen."""
    for package in PACKAGES:
        assert (ROOT / package).is_dir(), package
    assert ROOT / "model/rlstm_model/checkpoint.py" in FILES
