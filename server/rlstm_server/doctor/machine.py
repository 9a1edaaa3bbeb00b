"""What the machine offers: Python and packages, the device, the port, the data folder, the clock."""

import os
import platform
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Final

import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rlstm_server.doctor.finding import Finding
from rlstm_server.settings import Device

DISTRIBUTION: Final = "mogrifier-rlstm"
LITTLE_ROOM: Final = 2**30
NO_ROOM: Final = 2**26
FULL: Final = 0.95
"""A disk of which so much is taken fills up before somebody looks again."""


def check_python() -> Finding:
    """Whether this Python is one that the package asks for."""
    wanted = distribution(DISTRIBUTION).metadata["Requires-Python"]
    here = platform.python_version()
    if SpecifierSet(wanted).contains(here, prereleases=True):
        return Finding("python", "ok", here)
    return Finding("python", "fail", f"{here}, but {wanted} is needed", "make another environment")


def check_packages() -> Iterable[Finding]:
    """Whether what a server needs is installed in the versions that the package asks for, and what trains."""
    yield _packages(_requirements("server"), missing="fail", extra="server")
    training = _requirements("training")
    if any(_installed(name) is None for name in training):
        advice = f"to train, pip install '{DISTRIBUTION}[training]'"
        yield Finding("training", "warn", "what trains models is not installed", advice)
    else:
        yield _packages(training, missing="warn", extra="training")


def _requirements(extra: str) -> Mapping[str, SpecifierSet]:
    """What the package itself and one of its extras ask for, on this platform."""
    asked = (Requirement(line) for line in distribution(DISTRIBUTION).requires or ())
    return {
        each.name: each.specifier
        for each in asked
        if each.marker is None or each.marker.evaluate({"extra": extra})
    }


def _packages(asked: Mapping[str, SpecifierSet], *, missing: str, extra: str) -> Finding:
    faults = []
    for name, wanted in sorted(asked.items()):
        here = _installed(name)
        if here is None:
            faults.append(f"{name} is missing ({wanted})")
        elif not wanted.contains(here, prereleases=True):
            faults.append(f"{name} is {here}, not {wanted}")
    name = "packages" if extra == "server" else extra
    if faults:
        advice = f"pip install --upgrade '{DISTRIBUTION}[{extra}]'"
        return Finding(name, "fail" if missing == "fail" else "warn", "; ".join(faults), advice)
    return Finding(name, "ok", f"{DISTRIBUTION} {version(DISTRIBUTION)} and the {len(asked)} that it needs")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_device(wanted: Device, threads: int | None) -> Finding:
    """Whether the model can compute where it should, by a product made there."""
    present = torch.cuda.is_available()
    if wanted == "cuda" and not present:
        said = f"RLSTM_DEVICE is cuda, but torch {torch.__version__} finds no CUDA device"
        return Finding(
            "device", "fail", said, "look at nvidia-smi, install torch for CUDA, or use --device cpu"
        )
    device = torch.device("cuda" if present and wanted != "cpu" else "cpu")
    try:
        torch.ones(8, 8, device=device).mm(torch.ones(8, 8, device=device)).sum().item()
    except RuntimeError as error:
        said = f"torch {torch.__version__} cannot compute on {device} ({str(error).splitlines()[0]})"
        return Finding("device", "fail", said, "install a torch that fits this machine, or use --device cpu")
    if device.type == "cuda":
        return Finding("device", "ok", f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}")
    return _cpu(threads or torch.get_num_threads())


def _cpu(threads: int) -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    said = f"cpu, {threads} threads of {cores} cores, torch {torch.__version__}"
    if threads > cores:
        return Finding("device", "warn", said, f"threads wait for each other: use --threads {cores}")
    return Finding("device", "ok", said)


def check_port(host: str, port: int, holder: str | None) -> Finding:
    """Whether the port can be bound. `holder` is the process of a server that has the data folder already."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
    except OSError as error:
        said = f"{host}:{port} cannot be bound ({error.strerror})"
        if holder is not None:
            return Finding("port", "warn", said, f"process {holder} serves already; if there, all is well")
        return Finding("port", "fail", said, "choose another with --port, or --port 0 for a free one")
    return Finding("port", "ok", f"{host}:{port} is free")


def check_folder(folder: Path) -> Finding:
    """Whether the data folder, or the nearest above it that is there, can be written and has room."""
    place = nearest(folder)
    try:
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(b"rlstm")
        room = shutil.disk_usage(place)
    except OSError as error:
        advice = "give it to this user, or choose another with --data-dir"
        return Finding("data folder", "fail", f"{folder} cannot be written ({error.strerror})", advice)
    taken = 1 - room.free / room.total
    said = f"{folder}, {room.free / 2**30:,.1f} GiB free, {taken:.0%} of the disk taken"
    if room.free < NO_ROOM:
        return Finding("data folder", "fail", said, "make room: no change could be kept")
    if room.free < LITTLE_ROOM or taken > FULL:
        return Finding("data folder", "warn", said, "make room before it is full")
    return Finding("data folder", "ok", said)


def nearest(folder: Path) -> Path:
    """Give the folder, or the nearest above it that is there."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def check_clock() -> Finding:
    """Whether the clock is not before what is installed: sessions expire by it."""
    installed = Path(str(distribution(DISTRIBUTION).locate_file(""))).stat().st_mtime
    now = time.time()
    said = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < installed - 60:
        return Finding("clock", "warn", f"{said} is before the installation", "set it: sessions expire by it")
    return Finding("clock", "ok", said)
