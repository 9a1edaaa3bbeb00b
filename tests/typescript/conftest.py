"""The TypeScript client, compiled once, and Node to run it. Both need npm's registry at the first time."""

import importlib.util
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.end_to_end.conftest import start  # noqa: F401  (a fixture)

from rlstm_server.app import create_app
from rlstm_server.settings import Settings

HERE = Path(__file__).parent
CLIENT = HERE.parents[1] / "clients/typescript"
NODE = ("node", "--experimental-websocket")
"""Node 20 has WebSockets behind this word; from 22 on it changes nothing."""

MEGABYTES = 128
"""More than the client needs to hold anything that the tests send."""


@dataclass(frozen=True)
class Compiler:
    """TypeScript's compiler."""

    program: Path

    def __call__(self, *arguments, within=CLIENT):
        """Run it; gives its exit status and what it says."""
        command = ["node", str(self.program), *arguments]
        done = subprocess.run(command, cwd=within, capture_output=True, text=True, timeout=250, check=False)
        return done.returncode, done.stdout + done.stderr


@dataclass(frozen=True)
class Node:
    """Node, with the compiled client."""

    client: Path

    def test(self, name, **variables):
        """Run a file of Node's own tests; gives how many passed. One that fails or is skipped fails here."""
        environment = {**os.environ, "CLIENT": self.client.as_uri(), **variables}
        command = [*NODE, f"--max-old-space-size={MEGABYTES}", "--test", "--test-reporter=tap"]
        done = subprocess.run(
            [*command, str(HERE / name)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        counts = dict(line.split()[1:3] for line in done.stdout.splitlines() if line.startswith("# "))
        assert done.returncode == 0, done.stdout + done.stderr
        assert counts["tests"] == counts["pass"], done.stdout
        return int(counts["pass"])


@pytest.fixture(scope="session")
def programs(request):
    """Give where the programs are that package.json asks for; npm fetches them once, into a cache."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: Node 20 or newer, with npm")
    versions = json.loads((CLIENT / "package.json").read_text())["devDependencies"]
    packages = [f"{name}@{version}" for name, version in versions.items()]
    folder = Path(request.config.cache.mkdir("typescript")) / "-".join(packages).replace("~", "")
    if not folder.exists():
        _fetch(packages, folder)
    return folder / "node_modules"


@pytest.fixture(scope="session")
def compiler(programs):
    """Give TypeScript's compiler."""
    return Compiler(programs / "typescript/bin/tsc")


@pytest.fixture(scope="session")
def schema():
    """Give the program that writes `schema.ts`, as a module."""
    spec = importlib.util.spec_from_file_location("schema", CLIENT / "schema.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def document():
    """Give the server's OpenAPI document."""
    return create_app(Settings(durability="memory")).openapi()


def _fetch(packages, folder):
    """Have npm install packages into a folder, whole or not at all: several workers may want them at once."""
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    command = ["npm", "install", "--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--prefix"]
    done = subprocess.run(
        [*command, str(partial), *packages], capture_output=True, text=True, timeout=250, check=False
    )
    if done.returncode:
        shutil.rmtree(partial, ignore_errors=True)
        pytest.skip(f"npm cannot fetch {packages}: {done.stderr.strip().splitlines()[-1]}")
    try:
        partial.replace(folder)
    except OSError:
        shutil.rmtree(partial)  # another worker was faster


@pytest.fixture(scope="session")
def node(compiler, tmp_path_factory):
    """Give Node with the client as the compiler makes it, without a word against it."""
    folder = tmp_path_factory.mktemp("typescript") / "dist"
    status, said = compiler("--outDir", str(folder))
    assert status == 0, said
    return Node(folder)
