"""Arrays in safetensors files, in every number format that we store, as NumPy has them.

NumPy knows no bfloat16 and no eight-bit floats: they are read as float32, which holds the same values, and
written rounded to the nearest, ties to even.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import deserialize

_KNOWN: Final = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I32": np.int32, "I64": np.int64}
_BITS: Final = {"BF16": np.uint16, "F8_E5M2": np.uint8}


@dataclass(frozen=True, eq=False)
class Stored:
    """The arrays of a file by name, their number formats as the file names them, and its metadata."""

    arrays: Mapping[str, NDArray[Any]]
    dtypes: Mapping[str, str]
    metadata: Mapping[str, str]


def read(data: bytes) -> Stored:
    """What a file's bytes hold. Raises ValueError, SafetensorError for a damaged file or another format."""
    tensors: list[tuple[str, Any]] = deserialize(data)  # type: ignore[no-untyped-call]  # checks all places
    size = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + size]).get("__metadata__", {})
    arrays, dtypes = {}, {}
    for name, tensor in tensors:
        dtype, shape = tensor["dtype"], tensor["shape"]
        if dtype not in _KNOWN and dtype not in _BITS:
            raise ValueError(f"tensor {name} has dtype {dtype}, which is not stored here")
        flat = np.frombuffer(tensor["data"], np.dtype(_KNOWN.get(dtype) or _BITS[dtype]).newbyteorder("<"))
        arrays[name], dtypes[name] = _widened(flat, dtype).reshape(shape), dtype
    return Stored(arrays, dtypes, metadata)


def write(
    arrays: Mapping[str, NDArray[Any]],
    dtypes: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """A file's bytes. ``dtypes`` names the number format of arrays that are not stored in their own."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    data, end = [], 0
    for name, array in sorted(arrays.items()):
        dtype = (dtypes or {}).get(name) or next(n for n, kind in _KNOWN.items() if array.dtype == kind)
        data.append(_narrowed(array, dtype).tobytes())
        begin, end = end, end + len(data[-1])
        header[name] = {"dtype": dtype, "shape": [*array.shape], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that arrays are aligned in a file that is mapped
    return b"".join((len(text).to_bytes(8, "little"), text, *data))


def rounded(array: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """The values that are read after these were stored in a number format."""
    return np.asarray(_widened(_narrowed(array, dtype).ravel(), dtype).reshape(array.shape), np.float32)


def read_file(path: Path) -> Stored:
    """The same for a file. Raises OSError too."""
    return read(path.read_bytes())


def _widened(flat: NDArray[Any], dtype: str) -> NDArray[Any]:
    if dtype == "BF16":
        return (flat.astype(np.uint32) << 16).view(np.float32)
    if dtype == "F8_E5M2":
        return (flat.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
    return flat


def _narrowed(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    if dtype == "BF16":
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    if dtype == "F8_E5M2":
        # Rounded once: what half precision would cut off still decides which way a tie goes.
        wide = np.ascontiguousarray(array, np.float32)
        with np.errstate(over="ignore"):
            bits = wide.astype(np.float16).view(np.uint16)
        exact = bits.view(np.float16).astype(np.float32)
        bits = bits.astype(np.int32)
        tie = bits & 0xFF == 0x80
        odd = bits >> 8 & 1
        up = np.where(tie, np.where(exact == wide, odd, np.abs(wide) > np.abs(exact)), bits & 0xFF > 0x80)
        return ((bits >> 8) + up).astype(np.uint8)
    with np.errstate(over="ignore"):  # what is too great becomes infinity, which no caller lets pass
        return np.ascontiguousarray(array, _KNOWN[dtype])
