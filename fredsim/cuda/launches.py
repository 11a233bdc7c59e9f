"""Launches of kernels: a whole stretch of them is one table, which is gone through without Python.

A row of the table is a call of cuLaunchKernel, or of its emulation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.cuda.interface import Loaded, Machine
from fredsim.errors import SimulationError
from fredsim.jit.calls import WORDS, call_all

__all__ = ["Launches", "launch", "run_all"]

#: Where the words of a row are: the function that launches and the kernel; the extents of the grid and of a block; the
#: bytes of shared memory; the stream; the address of the kernel's parameters' addresses, which are one, the last word.
LAUNCHER, KERNEL, GRID, BLOCK, SHARED, STREAM, PARAMETERS, STRUCTURE = 0, 1, 2, 5, 8, 9, 10, 12


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
        run_all(self._machine, [self])

    def by_window(self) -> Callable[[int], None]:
        """Return what queues the launches of one window, by its number, for one who queues other work in between."""
        table, each = self.table(), len(self._kernels)
        first = _ready(table)

        def run(window: int) -> None:
            failed = call_all.call(first + WORDS * table.itemsize * each * window, each)
            if failed:
                raise _refused(self._machine, self.name(failed - 1))

        self._machine.use()
        return run

    def table(self) -> NDArray[np.int64]:
        """Return the rows of all launches, a new array; where there is no launch, their function is 0."""
        return np.stack(self._tables, axis=1).reshape(-1, WORDS) if self._tables else np.zeros((0, WORDS), np.int64)

    def name(self, row: int) -> str:
        """Return the name of a row's kernel."""
        return self._kernels[row % len(self._kernels)]


def run_all(machine: Machine, several: Sequence[Launches], streams: Sequence[int] = (0,)) -> None:
    """Queue all launches of several, each on a stream of its own: those of one in turn, of others at the same time.

    They are queued by turns, each by as much of it at a time as of the others, so that none waits for another to be
    queued. Raises SimulationError if the device refuses one.
    """
    tables = [launches.table() for launches in several]
    for table, stream in zip(tables, streams, strict=True):
        table[:, STREAM] = stream
    table = np.concatenate(tables)
    if not len(table):
        return
    of = np.repeat(np.arange(len(tables)), [len(one) for one in tables])
    rows = np.concatenate([np.arange(len(one)) for one in tables])
    if len(tables) > 1:
        order = np.argsort(np.concatenate([(np.arange(len(one)) + 0.5) / len(one) for one in tables]), kind="stable")
        table, of, rows = table[order], of[order], rows[order]
    first = _ready(table)
    machine.use()
    failed = call_all.call(first, len(table))
    if failed:
        raise _refused(machine, several[of[failed - 1]].name(rows[failed - 1]))


def _ready(table: NDArray[np.int64]) -> int:
    """Let each row of a table say where its kernel's parameters are; return the table's address."""
    first = _address(table)
    table[:, PARAMETERS] = first + table.itemsize * (STRUCTURE + WORDS * np.arange(len(table)))
    return first


def _refused(machine: Machine, name: str) -> SimulationError:
    return SimulationError(f"the device {machine.name} refuses to launch the kernel {name}")


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
    return int(array.ctypes.data)  # of a structured array, its interface would describe all fields
