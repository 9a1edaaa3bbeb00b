"""The built library, found beside this file."""

import ctypes
from ctypes import c_char_p, c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Final

NAMES: Final = ("librlstm.so", "librlstm.dylib", "rlstm.dll")


class NativeUnavailable(ImportError):
    """The native core was not built when the distribution was installed."""


@cache
def library() -> ctypes.CDLL:
    """The built library. Raises NativeUnavailable."""
    folder = Path(__file__).parent
    paths = [folder / name for name in NAMES if (folder / name).exists()]
    if not paths:
        raise NativeUnavailable(
            "the native core was not built: install a C compiler (or `pip install ziglang`), then "
            "`pip install --force-reinstall --no-deps mogrifier-rlstm`"
        )
    loaded = ctypes.CDLL(str(paths[0]))
    loaded.rl_pool_new.restype, loaded.rl_pool_new.argtypes = c_void_p, [c_int32]
    loaded.rl_pool_free.restype, loaded.rl_pool_free.argtypes = None, [c_void_p]
    loaded.rl_window.restype = c_int32
    loaded.rl_window.argtypes = [c_void_p, c_void_p, c_int32, c_void_p, c_float]
    loaded.rl_pack.restype, loaded.rl_pack.argtypes = None, [*2 * [c_void_p], *4 * [c_int32], *2 * [c_void_p]]
    loaded.rl_mix.restype = c_int32
    loaded.rl_mix.argtypes = [c_int32, c_int32, c_int64, c_void_p, c_int32, *9 * [c_void_p]]
    loaded.rl_memory_new.restype = c_void_p
    loaded.rl_memory_new.argtypes = [c_int32, c_int32, c_int32, c_void_p]
    loaded.rl_memory_free.restype, loaded.rl_memory_free.argtypes = None, [c_void_p]
    loaded.rl_memory_add.restype = c_int32
    loaded.rl_memory_add.argtypes = [c_void_p, c_void_p, c_int32, c_int64, c_void_p]
    loaded.rl_memory_learned.restype, loaded.rl_memory_learned.argtypes = c_int64, 2 * [c_int32]
    loaded.rl_memory_begin.restype, loaded.rl_memory_begin.argtypes = None, [c_int32, c_int32, c_void_p]
    loaded.rl_memory_read.restype = c_int32
    loaded.rl_memory_read.argtypes = [
        c_void_p,
        c_int32,
        c_int64,
        c_void_p,
        c_int32,
        c_void_p,
        c_int32,
        *2 * [c_void_p],
        c_int32,
    ]
    loaded.rl_identity.restype = loaded.rl_instructions.restype = c_char_p
    return loaded
