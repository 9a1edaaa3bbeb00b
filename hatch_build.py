"""Builds the native core with the machine's C compiler, or with that of the `ziglang` wheel.

RLSTM_TARGET names another machine to build for, as Zig writes it: aarch64-linux-gnu.2.17, x86_64-macos,
x86_64-windows-gnu. Where nothing can compile, the distribution is built without the core: its client works,
and what needs the core says what to do.
"""

import os
import platform
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("model/rlstm_model/native")
FLAGS = [
    "-std=c11",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-Wall",
    "-Wextra",
]
SETS = {
    "avx512": ["-mavx512f", "-mfma", "-mf16c"],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "portable": [],
}
NAMES = {"linux": "librlstm.so", "macos": "librlstm.dylib", "windows": "rlstm.dll"}
WHEELS = {"linux": "manylinux_2_17_{}.manylinux2014_{}", "macos": "macosx_11_0_{}", "windows": "win_amd64"}
ZIG = "ziglang>=0.13,<1"
ZIG_MACHINES = ("x86_64", "amd64", "aarch64", "arm64")
SMALLEST = "#include <pthread.h>\n#include <stdlib.h>\nint main(void) { return abs(0); }\n"


class NativeCore(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling's hook; `pip install` and `pip install --editable` both call it."""

    def dependencies(self) -> list[str]:
        """Zig, where there is no compiler or it is to build for another machine."""
        wanted = os.environ.get("RLSTM_TARGET") or machine_compiler() is None
        return [ZIG] if wanted and platform.machine().lower() in ZIG_MACHINES else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the core, into the checkout for an editable installation, and mark the wheel as a platform's.

        A core for another machine that cannot be built is an error; one for this machine is left out.
        """
        self.scratch = tempfile.TemporaryDirectory(prefix="rlstm-core-")
        target = os.environ.get("RLSTM_TARGET", "")
        compiler = None if target else machine_compiler()
        zig = [sys.executable, "-m", "ziglang", "cc", *(["-target", target] if target else [])]
        try:
            built = build(
                Path(self.root) / NATIVE, compiler or zig, target or _here(), Path(self.scratch.name)
            )
        except (OSError, subprocess.CalledProcessError) as error:
            if target:
                raise
            self.app.display_warning(f"the native core was not built, so nothing can be served here: {error}")
            return
        if version == "editable":
            _replace(Path(self.root) / NATIVE / built.name, built)
        else:
            build_data["force_include"][str(built)] = f"rlstm_model/native/{built.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_wheel(target)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Forget what was compiled: it is in the wheel."""
        del version, build_data, artifact_path
        self.scratch.cleanup()


def machine_compiler() -> list[str] | None:
    """The command of the machine's C compiler: `CC`, else what is usual; None where none makes a program."""
    named = os.environ.get("CC")
    for command in [named.split()] if named else [["cc"], ["gcc"], ["clang"]]:
        with tempfile.TemporaryDirectory() as folder:
            arguments = [*command, "-x", "c", "-", "-o", f"{folder}/smallest"]
            try:
                subprocess.run(  # noqa: S603 - the compiler that was named
                    arguments, input=SMALLEST.encode(), check=True, capture_output=True
                )
            except (OSError, subprocess.CalledProcessError):
                continue
        return command
    return None


def build(folder: Path, compiler: list[str], target: str, into: Path) -> Path:
    """Compile and link the core whose sources are `folder`/src; the library's path."""
    machine, system = target.split("-")[:2]
    digest = runpy.run_path(str(folder / "library.py"))["digest"](folder / "src")
    flags = [*FLAGS, f'-DRL_SOURCES="{digest}"', *([] if system == "windows" else ["-pthread"])]
    sets = SETS if machine == "x86_64" else {"portable": []}
    units = [
        ("core.c", []),
        ("memory.c", []),
        ("tree.c", []),
        *(("kernels.c", [f"-DRL_SET={s}", *f]) for s, f in sets.items()),
    ]
    jobs, objects = [], [str(into / f"{number}.o") for number in range(len(units))]
    for (source, own), made in zip(units, objects, strict=True):
        command = [*compiler, *flags, *own, "-c", str(folder / "src" / source), "-o", made]
        jobs.append((command, subprocess.Popen(command)))  # noqa: S603 - the compiler that was found
    for command, job in jobs:
        if job.wait() != 0:
            raise subprocess.CalledProcessError(job.returncode, command)
    library = into / NAMES[system]
    threads = [] if system == "windows" else ["-pthread"]
    link = [*compiler, "-shared", "-s", *threads, *objects, "-o", str(library)]
    subprocess.run(link, check=True)  # noqa: S603 - the same
    return library


def _replace(path: Path, built: Path) -> None:
    """Put a new library in an old one's place at once: processes may have the old one loaded."""
    fresh = path.with_name(f".{path.name}")
    shutil.copyfile(built, fresh)
    fresh.replace(path)


def _here() -> str:
    system = {"darwin": "macos", "win32": "windows"}.get(sys.platform, "linux")
    return f"{platform.machine().lower().replace('amd64', 'x86_64').replace('arm64', 'aarch64')}-{system}"


def _wheel(target: str) -> str:
    if not target:
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")
    machine, system = target.split("-")[:2]
    machine = "arm64" if system == "macos" and machine == "aarch64" else machine
    return WHEELS[system].format(machine, machine)
