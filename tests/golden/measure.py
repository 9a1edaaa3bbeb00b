"""`python -m tests.golden.measure`: the size of this commit's code, and what one append passes through.

Sizes are of the files that git knows in the folder it is run in, `--tree` names another. The append is one
request of 200 bytes to a real `rlstm serve` with the shipped model: functions and modules called on any
thread, each once; kinds of record made (dataclasses, named tuples, pydantic models); and JSON serialisations.
What the same server calls while nobody asks anything is observed before, told beside it, and not counted.
"""

import argparse
import ast
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from tests.golden.numbers import ENGLISH
from tests.servers import ADDRESS, clean_environment

DEPTH = {"server/rlstm_server": 3, "clients": 3, "tests": 3, "model": 3, "training": 3, "benchmarks": 2}
WHEEL = ("model/rlstm_model", "training/rlstm_training", "server/rlstm_server", "clients/python/rlstm_client")
LONG_FILE, LONG_FUNCTION = 500, 60


def sizes(tree: Path) -> str:
    """A table of lines, files and classes a folder, sums, and what is too long."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=tree, capture_output=True, text=True, check=True
    ).stdout.split()
    lines, files, classes = Counter[str](), Counter[str](), Counter[str]()
    long = list[str]()
    for name in listed:
        if not (tree / name).exists():
            continue
        source = (tree / name).read_text()
        count = source.count("\n")
        nodes = [*ast.walk(ast.parse(source))]
        made = sum(isinstance(node, ast.ClassDef) for node in nodes)
        for place in {_folder(name), *_sums(name)}:
            lines[place] += count
            files[place] += 1
            classes[place] += made
        if count > LONG_FILE:
            long.append(f"{name}: {count} lines")
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > LONG_FUNCTION:
                    long.append(f"{name}: {node.name} has {length} lines")
    core = _lines_of_c(tree)
    rows = [f"{'folder':<44}{'lines':>8}{'files':>7}{'classes':>9}"]
    rows += [f"{place:<44}{lines[place]:>8,}{files[place]:>7}{classes[place]:>9}" for place in sorted(lines)]
    return "\n".join(
        [
            *rows,
            f"{'(C, counted apart)':<44}{core:>8,}",
            "",
            *(long or ["no file and no function is too long"]),
        ]
    )


def _lines_of_c(tree: Path) -> int:
    listed = subprocess.run(
        ["git", "ls-files", "*.c", "*.h"], cwd=tree, capture_output=True, text=True, check=True
    ).stdout.split()
    return sum((tree / name).read_text().count("\n") for name in listed if (tree / name).exists())


def _folder(name: str) -> str:
    parts = name.split("/")
    depth = next((depth for start, depth in DEPTH.items() if name.startswith(start)), 1)
    return "/".join(parts[: min(depth, len(parts) - 1)]) or "."


def _sums(name: str) -> list[str]:
    found = ["all", "all tests" if name.startswith("tests/") else "all but tests"]
    found += ["all of the wheel"] if name.startswith(WHEEL) else []
    return [f"({place})" for place in (*found, f"all of {name.split('/')[0]}")]


def append(model: str, size: int, more: list[str]) -> dict[str, Any]:
    """What one append passed through."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "profile.json"
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.golden.profiled", str(out), "serve", model, "--port", "0", *more],
            env=clean_environment(
                RLSTM_DATA_DIR=f"{scratch}/data", RLSTM_LOG_LEVEL="info", RLSTM_THREADS="1"
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            found = ADDRESS.search(process.stdout.readline())
            assert found, "the server did not start"
            with httpx.Client(base_url=found[0], timeout=120) as client:
                path = f"/sessions/{client.post('/sessions', json={}).json()['id']}/append"
                for _ in range(3):
                    client.post(path, json={"text": ENGLISH[:160]}).raise_for_status()
                time.sleep(1)
                idle = _observed(process, out, lambda: time.sleep(2))
                body = {"text": (ENGLISH * 2)[:size]}
                asked = _observed(process, out, lambda: client.post(path, json=body).raise_for_status())
            return _without(idle, asked)
        finally:
            process.terminate()
            process.wait(30)
            process.stdout.close()


def _observed(process: "subprocess.Popen[str]", out: Path, work: Callable[[], object]) -> dict[str, Any]:
    """What the server passes through meanwhile."""
    _signalled(process, out.with_suffix(".on"))
    work()
    time.sleep(0.3)
    _signalled(process, out)
    found: dict[str, Any] = json.loads(out.read_text())
    out.unlink()
    out.with_suffix(".on").unlink()
    return found


def _without(idle: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """What was found beside what an idle server does; that is named as `idle`."""
    own = {module: names for called in idle["functions"].values() for module, names in called.items()}
    functions: dict[str, dict[str, list[str]]] = {}
    for package, called in asked["functions"].items():
        rest = {m: [name for name in names if name not in own.get(m, ())] for m, names in called.items()}
        functions[package] = {module: names for module, names in rest.items() if names}
    return {**asked, "functions": functions, "idle": own}


def _signalled(process: "subprocess.Popen[str]", file: Path) -> None:
    os.kill(process.pid, signal.SIGUSR1)
    for _ in range(600):
        if file.exists():
            return
        time.sleep(0.05)
    raise RuntimeError("the server does not answer its signal")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, default=Path())
    parser.add_argument("--model", default="bytes-small")
    parser.add_argument("--bytes", type=int, default=200, help="of the text that is appended")
    parser.add_argument("--option", action="append", default=[], help="of `rlstm serve`, as --option=--x=1")
    parser.add_argument("--only", choices=["sizes", "append"])
    parser.add_argument("--names", action="store_true", help="also name what an append passed through")
    chosen = parser.parse_args()
    if chosen.only != "append":
        print(sizes(chosen.tree), end="\n\n")
    if chosen.only == "sizes":
        return
    found = append(chosen.model, chosen.bytes, chosen.option)
    print(f"one append of {chosen.bytes} bytes:")
    functions = modules = 0
    for package in ("rlstm_server", "rlstm_model"):
        called = found["functions"].get(package, {})
        count = sum(map(len, called.values()))
        functions, modules = functions + count, modules + len(called)
        print(f"  {package:<14}{count:>4} functions in {len(called)} modules")
    print(f"  {'in all':<14}{functions:>4} functions in {modules} modules")
    for what in ("records", "serialisations"):
        kinds = found[what]
        print(f"  {len(kinds)} kinds, {sum(kinds.values())} in all: {what}")
    idle = [f"{module}.{name}" for module, names in found["idle"].items() for name in names]
    print(f"  {len(idle)} functions of an idle server are not counted: {', '.join(idle)}")
    if chosen.names:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
