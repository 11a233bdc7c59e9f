"""Launches a plan for the minibatches of a window: in the memory of an arena, which programs of one engine share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fredsim.compute.buffers import Buffer
from fredsim.cuda.array import DeviceArray, empty
from fredsim.cuda.kernels import unit_of
from fredsim.cuda.launches import Launches
from fredsim.cuda.machines import machine
from fredsim.cuda.networks.plan import Plan
from fredsim.cuda.networks.steps import Given, Place, Step, Value
from fredsim.errors import DeviceMemoryError

__all__ = ["Arena", "Program"]

#: How many blocks a launch should have at least, some for each of a device's multiprocessors; with fewer, smaller tiles
#: use more of a device.
FEW_BLOCKS = 512


class Arena:
    """Memory for the buffers of one program at a time, which grows."""

    def __init__(self) -> None:
        self._array: DeviceArray | None = None

    @property
    def nbytes(self) -> int:
        """The bytes that it has."""
        return 0 if self._array is None else self._array.nbytes

    def of(self, floats: int) -> DeviceArray:
        """Return memory for at least so many floats. Launches that are queued already keep what they were given.

        Raises MemoryError if the device has too little.
        """
        if self._array is None or self._array.size < floats:
            self._array = None  # freed first
            try:
                self._array = empty(floats)
            except MemoryError:
                needed = f"the values and errors of minibatches take {4 * floats:,} bytes"
                raise DeviceMemoryError(f"{needed}, more than the device has room for") from None
        return self._array

    def shrink(self) -> None:
        """Let go of that memory."""
        self._array = None


class Program:
    """A plan whose buffers have places; room for `capacity` minibatches is taken when launches are added."""

    def __init__(self, plan: Plan, arena: Arena) -> None:
        self.plan, self._arena = plan, arena
        #: The floats that a minibatch takes.
        self.floats = plan.place_buffers()
        for step in plan.steps:
            for choice in step.choices:
                machine().load(unit_of(choice.family))  # compiled now, so that it is not counted in the run's time

    def add(self, launches: Launches, batches: Any, capacity: int, given: Mapping[Given, Any]) -> None:
        """Add the launches of `batches` minibatches, a number for all windows or one for each, `capacity` at most."""
        room = self._arena.of(max(1, self.floats * capacity)).address
        for step in self.plan.steps:
            fields = self._fields(step.fields, room, capacity, given)
            chosen = _chosen(step, batches)
            for number, choice in enumerate(step.choices):
                if np.any(chosen == number):
                    kernel = machine().load(unit_of(choice.family))[choice.name]
                    own = self._fields(choice.fields, room, capacity, given)
                    launches.add(kernel, (*choice.blocks, batches), chosen == number, **fields, **own)

    def output(self, batches: int, capacity: int) -> np.ndarray[Any, Any]:
        """Return a copy of the outputs, (B, µ, …), once the launches are done."""
        value = self.plan.output
        begin = value.buffer.offset * capacity
        flat = self._arena.of(self.floats * capacity)[begin : begin + batches * value.size]
        return np.asarray(flat).reshape(batches, value.samples, *value.shape)

    def _fields(self, fields: dict[str, Any], *where: Any) -> dict[str, Any]:
        return {name: self._found(value, *where) for name, value in fields.items()}

    def _found(self, value: Any, room: int, capacity: int, given: Mapping[Given, Any]) -> Any:
        """Return what a field is: an address, if it was planned as a place."""
        if isinstance(value, dict):
            return self._fields(value, room, capacity, given)
        if isinstance(value, Given):
            return given[value]
        if isinstance(value, DeviceArray):
            return value.address
        if isinstance(value, Value):
            value = value.buffer
        if isinstance(value, Buffer):
            return room + 4 * value.offset * capacity
        if isinstance(value, Place):
            return self._found(value.buffer, room, capacity, given) + 4 * value.floats
        return value


def _chosen(step: Step, batches: Any) -> Any:
    """Return the number of a step's choice for each window."""
    last = len(step.choices) - 1
    chosen = np.full(np.shape(batches), last)
    for number in range(last - 1, -1, -1):
        blocks = step.choices[number].blocks
        chosen = np.where(np.asarray(batches) * blocks[0] * blocks[1] >= FEW_BLOCKS, number, chosen)
    return chosen
