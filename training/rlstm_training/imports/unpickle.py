"""Turn a whole pickled module into a state dict.

    python -m rlstm_training.imports.unpickle model.pt model.safetensors

A pickle names functions to be called. Here only those that make tensors are; every class that it names is an
empty one of ours, whose attributes are kept and whose code is not run. It is read in a process of its own
that can open no file and no connection, and write nothing but its answer.
"""

import io
import os
import pickle  # noqa: TID251 -- see above
import shutil
import subprocess
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch

from rlstm_model import stored

_MAKES_TENSORS: Final = {
    *(("torch._utils", name) for name in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter")),
    *(("collections", "OrderedDict"), ("torch.nn.parameter", "Parameter"), ("torch", "Size")),
}


class _Empty:
    """Stands for any class: it keeps what is set, and does nothing."""

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {})

    def append(self, _: Any) -> None: ...

    def __setitem__(self, *_: Any) -> None: ...


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _MAKES_TENSORS:
            return super().find_class(module, name)
        return type(name, (_Empty,), {})


def main() -> int:
    """Read the first file in a confined process, and write the second."""
    if len(sys.argv) != 3:
        sys.stderr.write("usage: python -m rlstm_training.imports.unpickle PICKLE OUT.safetensors\n")
        return 2
    source, out = map(Path, sys.argv[1:])
    command = [*_without_network(), sys.executable, "-c", f"from {__spec__.name} import confined; confined()"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    try:
        with source.open("rb") as file:
            done = subprocess.run(command, stdin=file, capture_output=True, env=environment)  # noqa: S603
        if done.returncode == 0:
            out.write_bytes(done.stdout)
            return 0
        message = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    except OSError as error:
        message = str(error)
    sys.stderr.write(f"{source}: {message}\n")
    return 2


def _without_network() -> list[str]:
    """What puts a command in a network of its own, where the system can."""
    unshare = shutil.which("unshare")
    apart = [unshare, "--net", "--map-root-user"] if unshare else []
    works = apart and subprocess.run([*apart, "true"], capture_output=True).returncode == 0  # noqa: S603
    return apart if works else []


def confined() -> None:
    """Read a pickle from standard input, give the arrays of the first module in it as safetensors."""
    import resource  # POSIX alone

    data = io.BytesIO(sys.stdin.buffer.read())
    warnings.simplefilter("ignore")
    _read(io.BytesIO(_saved()))  # so that all that torch imports for it is there
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC):
        resource.setrlimit(limit, (0, 0))
    module = next(_modules(_read(data)), None)
    if module is None:
        sys.exit("holds no module")
    arrays = {name: tensor.detach().float().numpy() for name, tensor in _tensors(module)}
    sys.stdout.buffer.write(stored.write(arrays))


def _saved() -> bytes:
    saved = io.BytesIO()
    torch.save(torch.nn.Linear(1, 1), saved)  # noqa: TID251 -- nothing of anybody's
    return saved.getvalue()


def _read(data: io.BytesIO) -> Any:
    reader = types.SimpleNamespace(__name__="pickle", Unpickler=_Unpickler)
    reader.load = lambda file, **_: _Unpickler(file).load()
    return torch.load(data, map_location="cpu", weights_only=False, pickle_module=reader)  # noqa: TID251


def _modules(data: Any) -> Iterator[Any]:
    if hasattr(data, "_parameters") and hasattr(data, "_modules"):
        yield data
    elif isinstance(data, dict | list | tuple):
        for part in data.values() if isinstance(data, dict) else data:
            yield from _modules(part)


def _tensors(module: Any, before: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in module._parameters.items():
        if isinstance(tensor, torch.Tensor):
            yield before + name, tensor
    for name, inner in module._modules.items():
        if hasattr(inner, "_parameters"):
            yield from _tensors(inner, f"{before}{name}.")


if __name__ == "__main__":
    sys.exit(main())
