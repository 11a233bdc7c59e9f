"""The arrays of a checkpoint as a safetensors file, which is written without copying them, and read by mapping it.

A run may have more arrays than fit into memory (`memory`). So the file is mapped, privately: what is never changed is
read from it when it is needed, and what is written to an array does not reach the file.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.plugins.state.state_arrays import numeric
from fredsim.system.files import CHUNK_BYTES, open_whole

__all__ = ["map_arrays", "tensor_chunks", "tensor_type"]

#: The safetensors format's names of types. Arrays of any other type are written as bytes.
TYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "float32": "F32", "float64": "F64",
}  # fmt: skip
BY_NAME = {name: np.dtype(kind) for kind, name in TYPES.items()}
MOST_HEADER = 100_000_000  # bytes, as in the package safetensors
#: A private mapping reserves as much memory as it has bytes, unless it is asked not to. Python 3.13 knows the flag.
NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


def tensor_type(array: NDArray[Any]) -> str | None:
    """Return the safetensors name of an array's type, None if the format does not have it."""
    return TYPES.get(array.dtype.name) if array.dtype.isnative else None


def tensor_chunks(arrays: Mapping[str, NDArray[Any]]) -> Iterator[bytes | memoryview]:
    """Yield the chunks of a safetensors file; the package's own writer would first copy every array."""
    header, at = {}, 0
    for name, array in arrays.items():
        kind = tensor_type(array)
        shape = list(array.shape) if kind else [array.nbytes]
        header[name] = {"dtype": kind or "U8", "shape": shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for array in arrays.values():
        view: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        for begin in range(0, len(view), CHUNK_BYTES):
            yield view[begin : begin + CHUNK_BYTES]


def map_arrays(path: Path, digest: str, dtypes: Mapping[str, list[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a safetensors file with this SHA-256, by name and in the order of names.

    Those in `dtypes` get that type and shape. Raises OSError, and ValueError, which says what is wrong with the file.
    """
    with open_whole(path) as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            raise ValueError(f"{path.name} is not as it was written")
        content: Any
        if hasattr(mmap, "MAP_PRIVATE"):
            access = mmap.PROT_READ | mmap.PROT_WRITE
            content = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE | NO_RESERVE, access)
        else:  # Windows, where a file that is mapped cannot be removed
            file.seek(0)
            content = bytearray(file.read())
    try:
        arrays = dict(sorted(_arrays(content).items()))
        for name, (dtype, shape) in dtypes.items():
            arrays[name] = arrays[name].view(numeric(dtype)).reshape(shape)
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"its arrays cannot be read ({error})") from None
    return {name: array if array.flags.aligned else array.copy() for name, array in arrays.items()}


def _arrays(content: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file's content, as views of it. Raises ValueError, KeyError, TypeError, OverflowError.

    They must lie one behind the other, and fill the file.
    """
    first = 8 + int.from_bytes(content[:8], "little")
    if first > min(len(content), MOST_HEADER):
        raise ValueError("its header is longer than the file")
    header = json.loads(content[8:first])
    header.pop("__metadata__", None)
    found, at = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, (begin, end) = BY_NAME[entry["dtype"]], entry["shape"], entry["data_offsets"]
        sizes = [*shape, begin, end]
        if not all(type(size) is int and size >= 0 for size in sizes) or begin != at:
            raise ValueError(f"its array {name!r} has the shape {shape} and the place {begin} to {end}")
        if math.prod(shape) * dtype.itemsize != end - begin:
            raise ValueError(f"its array {name!r} of shape {shape} has {end - begin} bytes")
        found[name] = np.ndarray(tuple(shape), dtype, content, first + begin)
        at = end
    if at != len(content) - first:
        raise ValueError(f"its arrays have {at} bytes, and there are {len(content) - first}")
    return found
