"""The wheel beside other versions of what it stands on (`make versions`): a table, a row an environment.

Each row is a fresh environment, resolved by uv from the package's own bounds and the row's. `pip check` must
be clean, and the tests of the store, the API and the client pass. RLSTM_VERSIONS_TORCH="2.11 2.12" adds rows
of torch, which are gigabytes each.
"""

import os
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SERVED = (
    *("tests/server/store/test_conformance.py", "tests/server/store/test_redis_link.py"),
    *("tests/server/store/test_redis_address.py", "tests/server/api/test_sessions.py"),
    *("tests/server/api/test_bad_input.py", "tests/server/test_app.py", "tests/client/test_client.py"),
    *("tests/client/test_streaming.py", "tests/end_to_end/test_stream.py"),
)
TRAINED = ("tests/training/test_loop.py", "tests/training/test_run.py", "tests/model/network")
TOOLS = ("pytest>=9", "pytest-asyncio>=1.2", "pytest-timeout", "hypothesis>=6.140", "pyyaml", "jsonschema")

SHOWN = (
    "click",
    "fastapi",
    "starlette",
    "uvicorn",
    "pydantic",
    "redis",
    "httpx",
    "websockets",
    "numpy",
    "torch",
)
with (ROOT / "pyproject.toml").open("rb") as file:
    PROJECT = tomllib.load(file)["project"]
BOUNDS = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["server"]]
ROWS = {
    "the lowest of all bounds": ("server", ["--resolution", "lowest-direct", *BOUNDS]),
    "the newest": ("server", []),
    "redis 5": ("server", ["redis<6"]),
    "redis 6": ("server", ["redis<7"]),
    "redis 7": ("server", ["redis<8"]),
    "fastapi's lowest": ("server", ["fastapi==0.145.*"]),
    "starlette before 1": ("server", ["starlette<1"]),
    "httpx 0.27": ("server", ["httpx<0.28"]),
    "openai": ("server", ["openai"]),
    "transformers": ("server", ["transformers", "torch==2.13.*"]),
    "training": ("training,server", ["torch==2.13.*"]),
    **{
        f"torch {version}": ("training,server", [f"torch=={version}.*"])
        for version in os.environ.get("RLSTM_VERSIONS_TORCH", "").split()
    },
}

pytestmark = [
    pytest.mark.versions,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(find_spec("uv") is None, reason="uv, of the extra `versions`, is not here"),
]


def uv(*arguments: object) -> str:
    """Run uv; what it says."""
    command = [sys.executable, "-m", "uv", *map(str, arguments)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution, as it is released."""
    folder = tmp_path_factory.mktemp("wheel")
    uv("build", "--wheel", "--out-dir", folder, ROOT)
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.parametrize("row", ROWS)
def test_beside(row: str, wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is resolved agrees, and works."""
    extras, pins = ROWS[row]
    python = tmp_path / "venv/bin/python"
    uv("venv", "--python", sys.executable, tmp_path / "venv")
    uv("pip", "install", "--python", python, f"mogrifier-rlstm[{extras}] @ {wheel.as_uri()}", *pins)
    uv("pip", "install", "--python", python, *TOOLS)
    assert "compatible" in uv("pip", "check", "--python", python)

    tests = SERVED if "training" not in extras else TRAINED
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", *tests]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    installed = dict(
        line.split("==") for line in uv("pip", "freeze", "--python", python).splitlines() if "==" in line
    )
    with capsys.disabled():
        versions = ", ".join(f"{name} {installed[name]}" for name in SHOWN if name in installed)
        print(f"| {row} | {versions} | {ran.stdout.splitlines()[-1].strip('= ')} |")
    assert ran.returncode == 0, ran.stdout[-3000:]


def test_the_client_needs_little(wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without an extra, what comes beside the wheel has 15 MB at most, compiled as pip does."""
    uv("venv", "--python", sys.executable, tmp_path / "venv")
    uv("pip", "install", "--compile-bytecode", "--python", tmp_path / "venv/bin/python", wheel)
    (site,) = (tmp_path / "venv/lib").glob("*/site-packages")
    beside = [each for each in site.iterdir() if not each.name.startswith(("rlstm_", "mogrifier_rlstm"))]
    files = [file for each in beside for file in (each, *each.rglob("*")) if file.is_file()]
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    with capsys.disabled():
        print(f"the client's dependencies: {megabytes:.1f} MB")
    assert megabytes <= 15
