"""Pages of this folder that name tests, row by row: `| key | what it is about | tests |`."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent


def keys(page):
    """The keys of all rows, in their order."""
    return [key for key, _ in _rows(page)]


def named(page):
    """Key, path and name of every test that is named."""
    return [
        (key, *name.split("::"))
        for key, cell in _rows(page)
        for name in re.findall(r"`([^`]+::[^`]+)`", cell)
    ]


@cache
def functions(path):
    """The functions of a module of tests, by the path below this folder."""
    tree = ast.parse((TESTS / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def _rows(page):
    return re.findall(r"^\| (\w+) \| .+ \| (.+) \|$", (TESTS / page).read_text(), re.MULTILINE)
