"""Builds the native core with the machine's C compiler, or with that of the `ziglang` wheel.

RLSTM_TARGET names another machine to build for, as Zig writes it: aarch64-linux-gnu.2.17, x86_64-macos,
x86_64-windows-gnu. Without any compiler the distribution is built without the core.
"""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("model/rlstm_model/native")
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
WHEELS = {"linux": "manylinux_2_17_{}.manylinux2014_{}", "macos": "macosx_11_0_{}", "windows": "win_amd64"}


class NativeCore(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling's hook; `pip install` and `pip install --editable` both call it."""

    def dependencies(self) -> list[str]:
        """Zig, where there is no compiler or it is to build for another machine."""
        return ["ziglang>=0.13"] if os.environ.get("RLSTM_TARGET") or _machine_compiler() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the core into the package, and mark the wheel as one of this platform."""
        del version
        if self.target_name != "wheel":
            return
        target = os.environ.get("RLSTM_TARGET", "")
        compiler = _machine_compiler() if not target else None
        command = compiler or [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            *(["-target", target] if target else []),
        ]
        try:
            name = _build(Path(self.root) / SOURCE, command, target or _here())
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"the native core was not built, so nothing can be served here: {error}")
            return
        build_data["artifacts"].append(str(SOURCE / name))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_wheel(target)}"


def _machine_compiler() -> list[str] | None:
    name = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    return name.split() if name else None


def _here() -> str:
    system = {"darwin": "macos", "win32": "windows"}.get(sys.platform, "linux")
    return f"{platform.machine().lower().replace('amd64', 'x86_64').replace('arm64', 'aarch64')}-{system}"


def _wheel(target: str) -> str:
    if not target:
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")
    machine, system = target.split("-")[:2]
    machine = "arm64" if system == "macos" and machine == "aarch64" else machine
    return WHEELS[system].format(machine, machine)


def _build(folder: Path, compiler: list[str], target: str) -> str:
    """Compile and link; the library's name."""
    machine, system = target.split("-")[:2]
    sets = SETS if machine == "x86_64" else {"portable": []}
    threads = [] if system == "windows" else ["-pthread"]
    name = {"macos": "librlstm.dylib", "windows": "rlstm.dll"}.get(system, "librlstm.so")
    with tempfile.TemporaryDirectory() as scratch:
        jobs, objects = [], []
        for source, flags in [
            ("core.c", []),
            ("memory.c", []),
            *(("kernels.c", [f"-DRL_SET={s}", *f]) for s, f in sets.items()),
        ]:
            objects.append(f"{scratch}/{len(objects)}.o")
            command = [
                *compiler,
                *FLAGS,
                *threads,
                *flags,
                "-c",
                str(folder / "src" / source),
                "-o",
                objects[-1],
            ]
            jobs.append((command, subprocess.Popen(command)))  # noqa: S603 - the compiler that was found
        for command, job in jobs:
            if job.wait() != 0:
                raise subprocess.CalledProcessError(job.returncode, command)
        link = [*compiler, "-shared", "-s", *threads, *objects, "-o", f"{scratch}/{name}"]
        subprocess.run(link, check=True)  # noqa: S603 - the same
        shutil.copyfile(f"{scratch}/{name}", folder / f".{name}")
    (folder / f".{name}").replace(folder / name)
    return name
