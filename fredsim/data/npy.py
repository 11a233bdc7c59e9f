"""A folder of NPY files: x_train.npy and y_train.npy, and x_test.npy and y_test.npy if there are rows to test on.

Unless they are small, samples stay in the files, and take no memory: those of a minibatch are read when they are
needed. They are read, not mapped into memory, so that a file that becomes shorter is an error, and not a crash.
"""

from __future__ import annotations

import math
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fredsim.data.npz import old_headers
from fredsim.data.on_demand import MOST_IN_MEMORY, Reader, why_beyond, why_rounded
from fredsim.errors import DataError, one_line
from fredsim.numerics.arrays import Integers
from fredsim.system.files import content_digest, digest_of_digests, open_whole
from fredsim.system.given import why_unread
from fredsim.system.memory import format_bytes

__all__ = ["NpyReader", "digest_of_folder", "is_small", "open_arrays", "read_arrays_of"]

NAMES = ("x_train", "y_train", "x_test", "y_test")
REMEDY = (
    "it must be a folder of NPY files (numpy.save): x_train.npy, y_train.npy and, for tests, x_test.npy, y_test.npy"
)


def digest_of_folder(folder: str) -> str | None:
    """Return the SHA-256 of the lines that `sha256sum` prints of the four files, by name; None without any."""
    digests = {f"{name}.npy": content_digest(os.path.join(folder, f"{name}.npy")) for name in sorted(NAMES)}
    found = {name: digest for name, digest in digests.items() if digest}
    return digest_of_digests(found) if found else None


class NpyFile:
    """An array in a file, of which rows are read; the file must stay as it is: in the `state` that it was opened in."""

    def __init__(self, path: Path) -> None:
        """Open the file, and check its header. Raises DataError if it is damaged, or no array of numbers."""
        self.path = path
        try:
            with open_whole(path, follow=True) as file, old_headers():
                reading = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
                self.shape, by_column, self.dtype = reading(file)
                self._begin = file.tell()
                self._descriptor = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._descriptor)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({why_unread(path, error)}); {REMEDY}") from None
        except Exception as error:  # NumPy's reader of headers raises exceptions of various types
            raise DataError(f"{path}: is no NPY file ({one_line(error)}); {REMEDY}") from None
        if self.dtype.kind not in "biuf":
            raise DataError(f"{path}: holds {self.dtype}; it must hold real numbers")
        if by_column and len(self.shape) > 1:
            raise DataError(f"{path}: is in Fortran's order; save numpy.ascontiguousarray of the array")
        if not self.shape:
            raise DataError(f"{path}: holds one number; it must hold one row a sample")
        self.row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        self.state = self._present_state()
        size, rest = len(self) * self.row_bytes, self.state[0] - self._begin
        if size != rest:
            claims = f"its header says {self.dtype} {self.shape}, {format_bytes(size)}, and {format_bytes(rest)} follow"
            raise DataError(f"{path}: is damaged ({claims}); save it again")

    def __len__(self) -> int:
        return int(self.shape[0])

    def _present_state(self) -> tuple[int, int]:
        found = os.fstat(self._descriptor)
        return found.st_size, found.st_mtime_ns

    def check(self) -> None:
        """Raise DataError if the file has changed since it was opened."""
        if self._present_state() != self.state:
            raise DataError(f"{self.path}: has changed since the run began; leave it as it is, and run it again")

    def rows(self, numbers: Integers) -> NDArray[Any]:
        """Return rows (n, …) as they are in the file; neighbours are read together. Raises DataError."""
        self.check()
        out = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        if not out.size:
            return out
        flat = out.reshape(-1).view(np.uint8).data
        ends = [*(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
        begin = 0
        for end in ends:
            part = flat[begin * self.row_bytes : end * self.row_bytes]
            self._read(part, self._begin + int(numbers[begin]) * self.row_bytes)
            begin = end
        return out

    def _read(self, into: memoryview, place: int) -> None:
        done = 0
        while done < len(into):
            try:
                if hasattr(os, "preadv"):  # it moves no position, which forked processes share
                    count = os.preadv(self._descriptor, [into[done:]], place + done)
                else:
                    os.lseek(self._descriptor, place + done, os.SEEK_SET)
                    found = os.read(self._descriptor, len(into) - done)
                    into[done : done + len(found)], count = found, len(found)
            except OSError as error:
                raise DataError(f"{self.path}: cannot be read ({error.strerror or error}); {REMEDY}") from None
            if not count:
                raise DataError(f"{self.path}: has become shorter since the run began; put it back, and run it again")
            done += count


def open_arrays(folder: str) -> dict[str, NpyFile]:
    """Open the arrays of a folder, by name; there may be none to test on. Raises DataError if they do not fit."""
    if not os.path.isdir(folder):
        raise DataError(f"{folder}: is no folder; {REMEDY}")
    test = [name for name in NAMES[2:] if os.path.lexists(os.path.join(folder, f"{name}.npy"))]
    names = NAMES if test else NAMES[:2]
    found = {name: NpyFile(Path(folder, f"{name}.npy")) for name in names}
    if test and found["y_test"].shape == (0,) and not len(found["x_test"]):  # np.array([]) has no type of a row
        test, found = [], {name: found[name] for name in NAMES[:2]}
    for part in ("train", "test") if test else ("train",):
        x, y = found[f"x_{part}"], found[f"y_{part}"]
        if len(x) != len(y) or len(x.shape) < 2 or 0 in (*x.shape[1:], *y.shape[1:]):
            expected = "expected (n, …) and (n, …) of as many rows"
            raise DataError(f"{folder}: x_{part} has shape {x.shape} and y_{part} {y.shape}; {expected}")
    if not len(found["x_train"]):
        raise DataError(f"{folder}: x_train has no rows; training needs one at least")
    for axis in "xy" if test else "":
        one, other = found[f"{axis}_train"], found[f"{axis}_test"]
        if one.shape[1:] != other.shape[1:] or one.dtype != other.dtype:
            what = f"{axis}_train holds {one.dtype} {one.shape} and {axis}_test {other.dtype} {other.shape}"
            raise DataError(f"{folder}: {what}; rows must have one shape and type")
    return found


def is_small(arrays: dict[str, NpyFile]) -> bool:
    """Return whether the samples are kept in memory."""
    return sum(4 * math.prod(file.shape) for name, file in arrays.items() if name[0] == "x") <= MOST_IN_MEMORY


def read_arrays_of(arrays: dict[str, NpyFile]) -> dict[str, NDArray[Any]]:
    """Return all arrays, those to test on without rows if there are none."""
    found = {name: file.rows(np.arange(len(file))) for name, file in arrays.items()}
    return {name: found.get(name, found[f"{name[0]}_train"][:0]) for name in NAMES}


class NpyReader(Reader):
    """Reads samples and targets from two files: numbers as float32, bytes ÷ 255; or tokens as int32."""

    def __init__(self, x: NpyFile, y: NpyFile, *, numbers: bool = False) -> None:
        """Take files of as many rows each; `numbers`: samples are no tokens, and targets no classes."""
        self._x, self._y, self._numbers = x, y, numbers
        integers = x.dtype.kind in "iu" and y.dtype.kind in "iu"
        tokens = not numbers and integers and len(x.shape) == 2 and y.shape == x.shape
        self.name, self.count, self.shape = str(x.path), len(x), tuple(x.shape[1:])
        self.dtype, self.target = np.dtype(np.int32 if tokens else np.float32), tuple(y.shape[1:])
        kinds = {"i": np.int32 if tokens else np.int64, "u": np.int32 if tokens else np.int64, "b": np.int64}
        self.target_dtype = np.dtype(np.float32 if numbers else kinds.get(y.dtype.kind, np.float32))
        self.divisor = 255 if x.dtype == np.uint8 and not tokens else 0

    def rows(self, numbers: Integers) -> tuple[NDArray[Any], NDArray[Any]]:
        """Read rows of both files."""
        raw = self._x.rows(numbers)
        _check_range(self._x, numbers, raw, self.dtype)
        if self.dtype == np.float32 and not self._numbers and (what := why_rounded(numbers, raw)):
            raise DataError(f"{self._x.path}: {what}")
        with np.errstate(over="ignore"):
            x = raw.reshape(len(raw), math.prod(self.shape)).astype(self.dtype)
        if raw.dtype.kind == "f" and not (finite := np.isfinite(x).all(axis=1)).all():
            row = numbers[np.flatnonzero(~finite)[0]]
            what = f"row {row} holds a value that is not finite in float32; remove or replace it"
            raise DataError(f"{self._x.path}: {what}")
        if self.divisor:
            x /= np.float32(self.divisor)
        return x, self.targets(numbers)

    def targets(self, numbers: Integers) -> NDArray[Any]:
        """Read rows of the targets' file."""
        raw = self._y.rows(numbers)
        _check_range(self._y, numbers, raw, self.target_dtype)
        with np.errstate(over="ignore"):
            found: NDArray[Any] = raw.astype(self.target_dtype)
        return found


def _check_range(file: NpyFile, numbers: Integers, values: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Raise DataError if rows of a file have integers that another type of integers cannot hold."""
    if what := why_beyond(numbers, values, dtype):
        raise DataError(f"{file.path}: {what}")
