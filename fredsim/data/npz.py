"""Reads users' NPZ files; the headers of all arrays are checked before any array is read."""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fredsim.errors import DataError, one_line
from fredsim.system.files import irregular_kind
from fredsim.system.given import why_unread
from fredsim.system.memory import format_bytes, machine_memory

__all__ = ["old_headers", "read_arrays", "read_npz"]

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
REMEDY = f"it must be an NPZ file (numpy.savez) of the arrays {', '.join(ARRAYS)}"
BYTES_PER_VALUE = 12  # the memory that a value takes in addition to itself: as float32, and as kernels read it


def read_npz(path: str) -> dict[str, NDArray[Any]]:
    """Return the arrays x_train, y_train, x_test, y_test. Raises DataError as `read_arrays` does."""
    return read_arrays(path, ARRAYS, REMEDY)


@contextmanager
def old_headers() -> Iterator[None]:
    """Read headers that Python 2 has written as others in a `with` block: NumPy warns that they take longer."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Reading `\.npy`", UserWarning)
        yield


def read_arrays(path: str, wanted: Sequence[str] | None, remedy: str) -> dict[str, NDArray[Any]]:
    """Return the `wanted` arrays, or all, by name.

    Raises DataError if the file is damaged, lacks an array, or has more in it than fits into memory.
    """
    try:
        if found := irregular_kind(path):
            raise DataError(f"{path}: cannot be read (it is {found}); {remedy}")
        with open(path, "rb"):
            pass  # if it cannot be opened, this raises an OSError that says why
        if not zipfile.is_zipfile(path):
            raise DataError(f"{path}: is no NPZ file, or a truncated one; {remedy}")
        with zipfile.ZipFile(path) as file, old_headers():
            wanted = [name.removesuffix(".npy") for name in file.namelist()] if wanted is None else wanted
            _check(path, file, wanted, remedy)
        with np.load(path, allow_pickle=False) as arrays, old_headers():
            return {key: arrays[key] for key in wanted}
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({why_unread(path, error)}); {remedy}") from None
    except (DataError, MemoryError):
        raise
    except Exception as error:  # zipfile, decompressors, and NumPy's reader of headers raise exceptions of their own
        raise DataError(f"{path}: cannot be read ({one_line(error)}); {remedy}") from None


def _check(path: str, file: zipfile.ZipFile, wanted: Sequence[str], remedy: str) -> None:
    """Raise DataError if an array is missing, is not as long as its header says, or does not fit into memory."""
    names = [name.removesuffix(".npy") for name in file.namelist()]
    needed = 0
    for key in wanted:
        if key not in names:
            raise DataError(f"{path}: has no array '{key}' (arrays: {', '.join(names) or 'none'}); {remedy}")
        shape, dtype, rest = _header(file, f"{key}.npy" if f"{key}.npy" in file.namelist() else key)
        size = math.prod(shape) * dtype.itemsize
        if size != rest and not dtype.hasobject:
            claims = f"its header says {dtype} {shape}, {format_bytes(size)}, and {format_bytes(rest)} follow"
            raise DataError(f"{path}: {key} is damaged ({claims}); {remedy}")
        needed += size + BYTES_PER_VALUE * math.prod(shape)
    if needed > (most := machine_memory()):
        takes = f"its arrays take {format_bytes(needed)}, and this machine has {format_bytes(most)} of memory"
        raise DataError(f"{path}: {takes}; save fewer rows, or bytes (uint8) instead of numbers")


def _header(file: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return the shape and type that an array's header claims, and how many bytes follow it. Raises ValueError."""
    with file.open(name) as stream:
        read = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(stream)
        return shape, dtype, file.getinfo(name).file_size - stream.tell()
