"""Room for what clients hold: in memory up to a limit, beyond it in a file that is mapped into memory.

The operating system writes a mapped page out and reads it back as it sees fit; what rests there is handed over at once,
so that a process takes no more memory than its limit and what it works on. The file has no name, and is gone with the
process.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fredsim.errors import OutputError
from fredsim.numerics.arrays import aligned

__all__ = ["Limits", "Shelf", "array_on", "mapped", "rest"]

Array = NDArray[np.float32]

GRAIN = mmap.ALLOCATIONGRANULARITY
TOGETHER = 64 * 2**20  # bytes by which the file grows


@dataclass(frozen=True)
class Limits:
    """How much a simulation may hold at once.

    `window` events are taken together, by default as many as do well; what clients hold beyond `memory` bytes lies in a
    file in `folder`.
    """

    window: int | None = None
    memory: int | None = None
    folder: Path | None = None


def mapped(folder: Path | None, size: int) -> mmap.mmap:
    """Return `size` bytes of a new, nameless file, zeros, in a folder or where temporary files are kept.

    Of a folder that is still to be made, the nearest one above it that there is. Raises OutputError where there is no
    room for it: a page that finds none when it is written would end the process.
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


def rest(memory: mmap.mmap, begin: int = 0, size: int | None = None) -> None:
    """Let go of the memory of some pages of a mapped file; their contents stay in it."""
    if hasattr(mmap, "MADV_DONTNEED"):
        memory.madvise(mmap.MADV_DONTNEED, begin, len(memory) - begin if size is None else size)


def array_on(memory: mmap.mmap, shape: tuple[int, ...], dtype: DTypeLike, at: int = 0) -> NDArray[Any]:
    """Return an array in a mapped file."""
    return np.frombuffer(memory, dtype, math.prod(shape), at).reshape(shape)


class Shelf:
    """Gives out arrays float32 (size,) with `margin` floats behind them, and takes them back."""

    def __init__(self, size: int, margin: int, limits: Limits) -> None:
        """Keep as much in memory as the limits allow, all of it by default."""
        self._size, self._margin, self._folder = size, margin, limits.folder
        self._each = -(-4 * (size + margin) // GRAIN) * GRAIN
        self._left = math.inf if limits.memory is None else limits.memory // self._each
        self._free: list[Array] = []
        self._spilled: list[Array] = []
        self._where: dict[int, tuple[mmap.mmap, int]] = {}  # by address, of the arrays in the file

    def take(self) -> Array:
        """Return an array, its contents arbitrary."""
        if self._free:
            return self._free.pop()
        if self._left > 0:
            self._left -= 1
            return aligned(self._size + self._margin)[: self._size]
        if not self._spilled:
            count = max(1, TOGETHER // self._each)
            memory = mapped(self._folder, count * self._each)
            for at in range(0, count * self._each, self._each):
                array = array_on(memory, (self._size,), np.float32, at)
                self._where[array.ctypes.data] = memory, at
                self._spilled.append(array)
        return self._spilled.pop()

    def give_back(self, array: Array) -> None:
        """Take an array that nobody uses any more."""
        (self._spilled if array.ctypes.data in self._where else self._free).append(array)

    def rest(self, array: Array) -> None:
        """Take note that an array will not be used for a while."""
        if self._where:
            found = self._where.get(array.ctypes.data)
            if found is not None:
                rest(*found, self._each)
