"""The distribution as it is built where there is a C compiler, where Zig has to do, and where neither is."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = "rlstm_model/native"
NOTHING = "/no/compiler"
IDENTITY = "from rlstm_model import native; print(native.identity())"
COMMAND = "from rlstm_client.cli import main; main()"
NO_ZIG = pytest.mark.skipif(importlib.util.find_spec("ziglang") is not None, reason="Zig is here")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the names are those of Unix")


def built(folder: Path, *options: str, **variables: str) -> tuple[str, Path]:
    """Build a wheel and unpack it; its name and the folder."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *options, "--wheel-dir", folder]
    subprocess.run([*command, ROOT], env=os.environ | variables, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return wheel.name, folder / "unpacked"


def run(unpacked: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with what was unpacked in place of the checkout."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": str(unpacked)},
        cwd=unpacked,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        pytest.param(["--no-build-isolation"], {}, id="the machine's compiler"),
        pytest.param([], {"CC": NOTHING}, id="Zig", marks=pytest.mark.slow),
    ],
)
def test_a_wheel_has_a_core_of_its_platform(tmp_path, options, variables):
    """Its bits are those of the checkout's, which stays as it is; it is refused once a source differs."""
    here = list((ROOT / "model" / CORE).glob("librlstm.*"))
    before = [path.stat().st_mtime_ns for path in here]
    name, unpacked = built(tmp_path, *options, **variables)
    assert "none-any" not in name
    (core,) = (unpacked / CORE).glob("librlstm.*")
    assert [path.stat().st_mtime_ns for path in here] == before
    said = run(unpacked, IDENTITY)
    assert (
        said.stdout == subprocess.run([sys.executable, "-c", IDENTITY], capture_output=True, text=True).stdout
    ), said.stderr
    with (unpacked / CORE / "src" / "core.c").open("a") as source:
        source.write("/* changed */\n")
    refused = run(unpacked, IDENTITY)
    assert "was built of other sources than those here: run `pip install" in refused.stderr
    core.write_bytes(b"no library")
    assert "cannot be loaded" in run(unpacked, IDENTITY).stderr


@NO_ZIG
def test_without_a_compiler_the_client_is_installed(tmp_path):
    """It works; whatever needs the core says in one line what to do."""
    name, unpacked = built(tmp_path, "--no-build-isolation", CC=NOTHING)
    assert name.endswith("py3-none-any.whl")
    assert not list((unpacked / CORE).glob("librlstm.*"))
    assert run(unpacked, COMMAND, "--help").returncode == 0
    for arguments in (
        ["serve", "--port", "0", "--durability", "memory"],
        ["score", "--local", "a text"],
        ["evaluate", "bytes-small", __file__, "--dynamic"],
    ):
        said = run(unpacked, COMMAND, *arguments)
        assert said.returncode > 0
        (line,) = said.stderr.splitlines()
        assert "install a C compiler, then run `pip install" in line


def test_zig_is_asked_for_where_there_is_no_compiler(monkeypatch):
    """Or where another machine is built for; a compiler that makes no program is none."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    core = object.__new__(hook.NativeCore)
    monkeypatch.setattr(hook.platform, "machine", lambda: "x86_64")
    monkeypatch.delenv("RLSTM_TARGET", raising=False)
    for compiler in (NOTHING, "false"):
        monkeypatch.setenv("CC", compiler)
        assert core.dependencies() == [hook.ZIG]
    monkeypatch.setattr(hook.platform, "machine", lambda: "s390x")  # where Zig has no wheel
    assert core.dependencies() == []
    monkeypatch.setattr(hook.platform, "machine", lambda: "aarch64")
    monkeypatch.delenv("CC")
    monkeypatch.setenv("RLSTM_TARGET", "x86_64-macos")
    assert core.dependencies() == [hook.ZIG]
