"""Places for what clients hold: on the device, and in the host's memory where the device has no more room.

Kernels read and write both; through the bus to the host's memory this is many times slower.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np

from fredsim.cuda.array import DeviceArray, empty
from fredsim.cuda.machines import machine
from fredsim.errors import ConfigError
from fredsim.numerics.arrays import Array, Integers
from fredsim.system import notices
from fredsim.system.memory import format_bytes, refuse_beyond_memory

__all__ = ["NoRoomError", "Places", "place"]

#: The bytes that are left on a device for gradients and evaluations, or a quarter of its room if that is less.
LEFT = 4 * 2**30
#: The bytes of places that are copied at once.
PIECE = 64 * 2**20


class NoRoomError(ConfigError):
    """The device has no room for what clients hold."""


class Places:
    """Numbered places, float32 (size,) each, `stride` elements apart: first those on the device, then the others."""

    def __init__(self, count: int, size: int, stride: int, *, spill: bool = True) -> None:
        """Allocate them, all on the device unless `spill`.

        Raises NoRoomError if the device has not enough room then, ConfigError if the host has not, either.
        """
        what = f"backend is cuda; {count:,} versions of {format_bytes(4 * size)} are live at once, more than the device"
        self._size = size
        self._parts = [_on_device(count, stride)]
        if left := count - len(self._parts[0]):
            if not spill:
                raise NoRoomError(f"{what} has room for: choose fewer clients, or backend numba")
            remedy = "choose fewer clients, or backend numba, which takes `memory`"
            refuse_beyond_memory(4 * stride * left, f"{what} has room for; those that are left take", remedy)
            try:
                self._parts.append(empty((left, stride), on_host=True))
            except MemoryError:
                raise ConfigError(f"{what} and the host have room for: {remedy}") from None
            notices.note(
                f"of {count:,} versions of the parameters that clients hold, {left:,} are in the host's memory, since "
                "the device has no room for them; this is slower"
            )
        starts = [part.address + 4 * stride * np.arange(len(part), dtype=np.int64) for part in self._parts]
        self._addresses = np.concatenate(starts)

    def addresses(self, places: Integers) -> Integers:
        """Return the addresses of places; 0 for a negative one."""
        return np.where(places >= 0, self._addresses[places], 0)

    def begin(self, params: DeviceArray) -> None:
        """Copy parameters (size,) to the first place; the others are NaN: they are state from the first on."""
        for part in filter(len, self._parts):
            part[...] = np.nan
        next(part for part in self._parts if len(part))[0, : self._size] = params

    def take(self) -> Array:
        """Return what is in all places, a copy (count, size) on the host."""
        values = np.empty((len(self._addresses), self._size), np.float32)
        for some, part in self._pieces():
            values[some] = np.asarray(part)[:, : self._size]
        return values

    def put(self, values: Array) -> None:
        """Overwrite what is in all places, (count, size)."""
        for some, part in self._pieces():
            part[:, : self._size] = values[some]

    def _pieces(self) -> Iterator[tuple[slice, DeviceArray]]:
        """Yield all places in pieces of which the device has room for a copy."""
        begin = 0
        for part in self._parts:
            rows = max(1, PIECE // (4 * part.shape[1]))
            for first in range(0, len(part), rows):
                piece = part[first : first + rows]
                yield slice(begin, begin + len(piece)), piece
                begin += len(piece)


def place(size: int) -> DeviceArray:
    """Return zeros, float32 (size,), for what a client holds: on the device if there is room, else on the host."""
    try:
        array = empty(size, on_host=_room() < 4 * size)
    except MemoryError:  # the device's room is in pieces
        array = empty(size, on_host=True)
    array[...] = 0.0
    return array


def _on_device(count: int, stride: int) -> DeviceArray:
    """Return as many of `count` places as the device has room for."""
    if (here := _room() // (4 * stride)) < count:
        gc.collect()  # what earlier runs have left may be less than free_garbage asks for
        here = _room() // (4 * stride)
    here = min(count, here)
    while True:
        try:
            return empty((here, stride))
        except MemoryError:  # the room is in pieces
            if not here:
                raise
            here //= 2


def _room() -> int:
    """Return how many bytes of the device places may take."""
    room = machine().room()
    return room - min(room // 4, LEFT)
