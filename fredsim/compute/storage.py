"""Storage for what clients hold: in memory up to a limit, beyond it in a file that is mapped into memory.

The operating system writes mapped pages out and reads them back when it chooses. Here, arrays that are not in use are
paged out at once, so that a process takes no more memory than its limit and the arrays that it is using. The file has
no name, and disappears with the process.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fredsim.errors import OutputError
from fredsim.numerics.arrays import Array, aligned

__all__ = ["Limits", "Pool", "array_in", "mapped_file", "page_out"]

GRANULARITY = mmap.ALLOCATIONGRANULARITY  # offsets into a mapped file are multiples of this
FILE_BYTES = 64 * 2**20  # the size of each file


@dataclass(frozen=True)
class Limits:
    """Limits on how much a simulation may hold at once.

    Attributes:
        window: the most events that are computed together; None means as many as are efficient.
        memory: what clients hold beyond this many bytes is kept in a file; None means no limit.
        folder: where the file is.

    """

    window: int | None = None
    memory: int | None = None
    folder: Path | None = None


def mapped_file(folder: Path | None, size: int) -> mmap.mmap:
    """Return a new file without a name, `size` zero bytes, mapped into memory.

    It is in `folder`, or in its nearest existing parent; None means the folder for temporary files. The space is
    allocated now, because writing a page for which there is no space would end the process. Raises OutputError if there
    is not enough.
    """
    if folder is not None:
        folder = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.is_dir())
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        what = f"has no room for {size:,} bytes of what clients hold ({error.strerror or error})"
        raise OutputError(f"{folder or tempfile.gettempdir()}: {what}; make room there, or raise `memory`") from None


def page_out(memory: mmap.mmap, begin: int = 0, size: int | None = None) -> None:
    """Free the memory of `size` bytes (None: all the rest) of a mapped file from `begin` on; the file keeps them."""
    if hasattr(mmap, "MADV_DONTNEED"):
        memory.madvise(mmap.MADV_DONTNEED, begin, len(memory) - begin if size is None else size)


def array_in(memory: mmap.mmap, shape: tuple[int, ...], dtype: DTypeLike, at: int = 0) -> NDArray[Any]:
    """Return an array of a shape and dtype whose memory begins at byte `at` of a mapped file."""
    return np.frombuffer(memory, dtype, math.prod(shape), at).reshape(shape)


class Pool:
    """Places for what clients hold: float32 arrays (size,), each with `margin` spare floats behind it.

    They are where `allocate` puts them, which is the host's memory or a device's, or in a file on the host.
    """

    def __init__(self, size: int, margin: int, limits: Limits, allocate: Callable[[int], Array] = aligned) -> None:
        """Keep as much in memory as the limits allow, all of it by default; only what is on the host has limits."""
        self._size, self._margin, self._folder, self._allocate = size, margin, limits.folder, allocate
        self._each = -(-4 * (size + margin) // GRANULARITY) * GRANULARITY
        self._left = math.inf if limits.memory is None else limits.memory // self._each
        self._free: list[Array] = []
        self._free_in_file: list[Array] = []
        self._in_file: dict[int, tuple[mmap.mmap, int]] = {}  # by an array's address: its file and offset

    def take(self) -> Array:
        """Return an array with arbitrary contents."""
        if self._free:
            return self._free.pop()
        if self._left > 0:
            self._left -= 1
            return self._allocate(self._size + self._margin)[: self._size]
        if not self._free_in_file:
            count = max(1, FILE_BYTES // self._each)
            memory = mapped_file(self._folder, count * self._each)
            for at in range(0, count * self._each, self._each):
                array = array_in(memory, (self._size,), np.float32, at)
                self._in_file[array.ctypes.data] = memory, at
                self._free_in_file.append(array)
        return self._free_in_file.pop()

    def give_back(self, array: Array) -> None:
        """Return an array that is no longer used to the pool."""
        in_file = self._in_file and array.ctypes.data in self._in_file
        (self._free_in_file if in_file else self._free).append(array)

    def page_out(self, array: Array) -> None:
        """Free the memory of an array that will not be used for a while, if it is in a file."""
        if self._in_file and (found := self._in_file.get(array.ctypes.data)):
            page_out(*found, self._each)
