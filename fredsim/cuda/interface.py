"""What runs kernels: the interface that a CUDA device and its emulation share.

Addresses are of memory that kernels read and write. Work is queued in order; `download` waits until all that was queued
before it is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fredsim.cuda.kernels import Unit

__all__ = ["Loaded", "Machine", "Memory"]


@dataclass(frozen=True)
class Loaded:
    """A kernel that can be launched: `launcher` is the address of a function with cuLaunchKernel's arguments."""

    name: str
    arguments: np.dtype[Any]
    threads: int
    shared: int
    launcher: int
    handle: int


class Memory(Protocol):
    """Memory that kernels can use; it is freed with this object.

    `shadow` are as many bytes of the host's, of which the emulation uses the memory and a device only the addresses: as
    `shadow` is to a view of it, so is the memory to the part that the view stands for.
    """

    address: int
    shadow: NDArray[np.uint8]


class Machine(Protocol):
    """A device, or its emulation."""

    name: str

    def use(self) -> None:
        """Make this thread's launches go to this machine."""

    def load(self, unit: Unit) -> dict[str, Loaded]:
        """Return a unit's kernels, compiled now if they are not in the cache."""

    def streams(self, count: int) -> list[int]:
        """Return so many streams: launches on one may run at the same time as launches on another.

        All else is in order with them: what was queued before is done first, and what is queued behind them waits.
        """

    def allocate(self, size: int) -> Memory:
        """Return `size` bytes with arbitrary contents. Raises MemoryError if there is no room."""

    def room(self) -> int:
        """Return how many bytes can be allocated now, about."""

    def taken(self) -> float:
        """Return which share of all memory is allocated now, by this process."""

    def allocate_on_host(self, size: int) -> Memory:
        """Return `size` bytes of the host's memory that kernels use as the device's, but more slowly.

        Raises MemoryError if there is no room.
        """

    def copy(self, source: int, target: int, size: int) -> None:
        """Copy `size` bytes from one address to another, in order with what is queued."""

    def upload(self, values: NDArray[Any], address: int) -> None:
        """Copy a contiguous array of the host to an address of the device's memory, in order with what is queued."""

    def download(self, address: int, values: NDArray[Any]) -> None:
        """Copy from an address to a contiguous array of the host, once all that was queued is done."""
