"""No checkpoint, record or message of ours can run code: nothing anywhere reads or writes pickles."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = [
    "model/rlstm_model",
    "training/rlstm_training",
    "server/rlstm_server",
    "clients/python/rlstm_client",
]
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]

MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
TORCH_CALLS = {("torch", "load"), ("torch", "save")}
PICKLING_OPTIONS = {"allow_pickle"}


def _faults(tree):
    """Line and name of every import, call or option in ``tree`` that pickles."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = [f"{node.value.id}.{node.attr}"]
        elif isinstance(node, ast.keyword) and node.arg in PICKLING_OPTIONS:
            names = [node.arg]
        else:
            continue
        for name in names:
            if (
                name.split(".")[0] in MODULES
                or tuple(name.split(".")) in TORCH_CALLS
                or name in PICKLING_OPTIONS
            ):
                yield getattr(node, "lineno", node), name


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_of_ours_pickles(path):
    """Neither the standard library's pickle and its kin, nor torch's, nor NumPy's option."""
    assert not list(_faults(ast.parse(path.read_text("utf-8"))))


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import numpy, pickle as p",
        "from pickle import loads",
        "from torch import load",
        "torch.load(path)",
        "torch.save(model, path)",
        "numpy.load(path, allow_pickle=True)",
        "import cloudpickle.cloudpickle",
    ],
)
def test_the_walk_finds_each_way_to_pickle(source):
    """A test that cannot fail would show nothing."""
    assert list(_faults(ast.parse(source)))


def test_the_walk_covers_all_four_packages():
    """A package that moved would otherwise pass unseen."""
    for package in PACKAGES:
        assert (ROOT / package).is_dir(), package
    assert ROOT / "model/rlstm_model/checkpoint.py" in FILES
