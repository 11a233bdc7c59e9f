"""Launches of kernels: a whole stretch of them is one table, which is gone through without Python.

A row of the table is a call of cuLaunchKernel, or of its emulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.cuda.interface import Loaded, Machine
from fredsim.errors import SimulationError
from fredsim.jit.calls import WORDS, call_all

__all__ = ["Launches", "launch"]

#: Where the words of a row are: the function that launches and the kernel; the extents of the grid and of a block; the
#: bytes of shared memory; the address of the kernel's parameters' addresses, which are one, the last word.
LAUNCHER, KERNEL, GRID, BLOCK, SHARED, PARAMETERS, STRUCTURE = 0, 1, 2, 5, 8, 10, 12


class Launches:
    """The launches of a number of windows of events: of each window, those that were added, in this order."""

    def __init__(self, machine: Machine, windows: int = 1) -> None:
        self._machine, self._windows = machine, windows
        self._tables: list[NDArray[np.int64]] = []
        self._structures: list[NDArray[Any]] = []  # kept alive until all is launched
        self._kernels: list[str] = []

    def add(self, kernel: Loaded, grid: Sequence[Any], where: Any = True, /, **fields: Any) -> None:
        """Add a kernel to each window for which `where` holds; the grid and the fields are of all, or of each window.

        A grid of no blocks is no launch. A field that is not given is 0; one that is a structure is given by a dict.
        """
        structures = np.zeros(self._windows, kernel.arguments)
        _set(structures, fields)
        table = np.zeros((self._windows, WORDS), np.int64)
        for axis, extent in enumerate(grid):
            table[:, GRID + axis] = extent
        whole = (table[:, GRID : GRID + 3] > 0).all(axis=1) & np.asarray(where)
        table[:, LAUNCHER] = np.where(whole, kernel.launcher, 0)
        table[:, KERNEL], table[:, SHARED] = kernel.handle, kernel.shared
        table[:, BLOCK : BLOCK + 3] = kernel.threads, 1, 1
        table[:, STRUCTURE] = _address(structures) + structures.itemsize * np.arange(self._windows)
        self._tables.append(table)
        self._structures.append(structures)
        self._kernels.append(kernel.name)

    def run(self) -> None:
        """Queue all launches. Raises SimulationError if the device refuses one."""
        if not self._tables:
            return
        table = np.stack(self._tables, axis=1).reshape(-1, WORDS)
        first = _address(table)
        table[:, PARAMETERS] = first + table.itemsize * (STRUCTURE + WORDS * np.arange(len(table)))
        self._machine.use()
        failed = call_all.call(first, len(table))
        if failed:
            name = self._kernels[(failed - 1) % len(self._kernels)]
            raise SimulationError(f"the device {self._machine.name} refuses to launch the kernel {name}")


def launch(machine: Machine, kernel: Loaded, grid: Sequence[int], **fields: Any) -> None:
    """Queue one launch of a kernel."""
    launches = Launches(machine)
    launches.add(kernel, grid, **fields)
    launches.run()


def _set(structures: NDArray[Any], fields: dict[str, Any]) -> None:
    """Set fields of structures (n,)."""
    for name, value in fields.items():
        if isinstance(value, dict):
            _set(structures[name], value)
        else:
            structures[name] = value


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
