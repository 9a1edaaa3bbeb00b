"""The built library, found beside this file, and whether it is that of the sources beside it.

RLSTM_NATIVE names another one, such as one with sanitizers; RLSTM_INSTRUCTIONS asks for one of its sets of
instructions. The build backend (`hatch_build.py`) runs this file alone, so it imports nothing of the package.
"""

import ctypes
import hashlib
import os
from ctypes import c_char_p, c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Final

NAMES: Final = ("librlstm.so", "librlstm.dylib", "rlstm.dll")
_INSTALL: Final = "pip install --force-reinstall --no-deps --no-cache-dir mogrifier-rlstm"
AGAIN: Final = f"run `{_INSTALL}`, or in a checkout `make install`"


class NativeUnavailable(ImportError):
    """The native core was not built when the distribution was installed, or not as it is asked for."""


def digest(sources: Path) -> str:
    """What tells builds of other sources apart: SHA-256 of a folder's C files, names and contents."""
    files = sorted(path for path in sources.iterdir() if path.suffix in (".c", ".h"))
    parts = (part for path in files for part in (path.name.encode(), path.read_bytes()))
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


@cache
def library() -> ctypes.CDLL:
    """The built library. Raises NativeUnavailable."""
    folder = Path(__file__).parent
    asked = os.environ.get("RLSTM_NATIVE")
    paths = [Path(asked)] if asked else [folder / name for name in NAMES if (folder / name).exists()]
    if not paths:
        raise NativeUnavailable(f"the native core was not built: install a C compiler, then {AGAIN}")
    loaded = _loaded(paths[0])
    if _sources_of(loaded) != digest(folder / "src"):
        raise NativeUnavailable(f"the native core was built of other sources than those here: {AGAIN}")
    loaded.rl_pool_new.restype, loaded.rl_pool_new.argtypes = c_void_p, [c_int32]
    loaded.rl_pool_free.restype, loaded.rl_pool_free.argtypes = None, [c_void_p]
    loaded.rl_window.restype = c_int32
    loaded.rl_window.argtypes = [c_void_p, c_void_p, c_int32, c_void_p, c_float]
    loaded.rl_pack.restype, loaded.rl_pack.argtypes = None, [*2 * [c_void_p], *3 * [c_int32], *2 * [c_void_p]]
    loaded.rl_mix.restype = c_int32
    loaded.rl_mix.argtypes = [c_int32, c_int32, c_int64, c_void_p, c_int32, *8 * [c_void_p]]
    loaded.rl_memory_new.restype = c_void_p
    loaded.rl_memory_new.argtypes = [*3 * [c_int32], *2 * [c_void_p]]
    loaded.rl_memory_free.restype, loaded.rl_memory_free.argtypes = None, [c_void_p]
    loaded.rl_memory_add.restype = c_int32
    loaded.rl_memory_add.argtypes = [c_void_p, c_void_p, c_int32, c_int64, c_void_p]
    loaded.rl_memory_learned.restype, loaded.rl_memory_learned.argtypes = c_int64, 3 * [c_int32]
    loaded.rl_memory_begin.restype, loaded.rl_memory_begin.argtypes = None, [*3 * [c_int32], c_void_p]
    loaded.rl_memory_check.restype = c_int32
    loaded.rl_memory_check.argtypes = [*3 * [c_int32], c_void_p]
    loaded.rl_recall_all.restype, loaded.rl_recall_all.argtypes = None, [c_void_p, c_int32, c_void_p]
    loaded.rl_identity.restype = loaded.rl_instructions.restype = c_char_p
    wanted = os.environ.get("RLSTM_INSTRUCTIONS")
    if wanted is not None and wanted != bytes(loaded.rl_instructions()).decode():
        sets = "avx512, avx2, neon or portable"
        raise NativeUnavailable(f"RLSTM_INSTRUCTIONS: {sets}, of what this processor has, not {wanted!r}")
    return loaded


def _loaded(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailable(f"the native core cannot be loaded ({error}): {AGAIN}") from error


def _sources_of(loaded: ctypes.CDLL) -> str:
    """The digest of the sources that a library was built of; none for what does not say."""
    try:
        of = loaded.rl_sources
    except AttributeError:
        return ""
    of.restype = c_char_p
    return bytes(of()).decode()
