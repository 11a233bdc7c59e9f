"""The operations of the backend `cuda` that do not depend on the model: fredsim.numerics.operations on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.storage import Limits, Pool
from fredsim.cuda.array import DeviceArray, empty, upload
from fredsim.cuda.interface import Loaded
from fredsim.cuda.kernels import unit_of
from fredsim.cuda.launches import Launches, launch
from fredsim.cuda.machines import EMULATED, machine
from fredsim.cuda.places import place
from fredsim.cuda.rules import unit_of_rule
from fredsim.errors import ConfigError
from fredsim.numerics import distributions, ternary
from fredsim.numerics.distributions import Draw
from fredsim.numerics.rules import Rule
from fredsim.numerics.ternary import Draws, Ternary

__all__ = ["CudaOperations", "add_apply"]

Update = Callable[..., bool]

#: The threads of most blocks, the elements that a block of sums adds, and those to which a block applies a rule.
BLOCK, SUMMED, APPLIED = 128, 1024, 512


class CudaTernary:
    """Ternary gradients on the device: fredsim.numerics.ternary.Ternary."""

    def __init__(self, operations: CudaOperations) -> None:
        self._operations, self._kernels = operations, machine().load(unit_of("ternary"))

    def scaler(self, g: Any) -> np.float32:
        """Return max|g|; NaN if g contains one."""
        return np.uint32(self._operations.look("find_largest", g)).view(np.float32)

    def clip(self, g: Any, sigmas: float) -> Any:
        """Return g clipped to ±sigmas·σ; see fredsim.numerics.ternary.clip."""
        centre = upload(np.array([self._operations.mean(g)]))
        squares = self._operations.sums("sum_squares", self._operations.array_of(g), centre)
        return ternary.clipped(g, sigmas * np.sqrt(self._operations.total(squares) / np.float64(g.size)))

    def encode(self, g: Any, s: np.float32, draws: Draws) -> NDArray[np.uint8]:
        """Return g quantised with the scaler s and packed, uint8 (⌈n/4⌉,), on the host."""
        given, scaler, n = self._operations.array_of(g), upload([s], np.float32), ternary.packed_size(g.size)
        packed = empty(n, np.uint8)
        words = (draws.streams.seed, int(draws.stream), draws.begin, draws.step, draws.client)
        names = ("seed", "stream", "begin", "step", "client")
        launch(
            machine(), self._kernels["encode"], (-(-n // BLOCK), 1, 1), g=given.address, scaler=scaler.address,
            packed=packed.address, n=given.size,
            **{name: np.int64(word).astype(np.int32) for name, word in zip(names, words, strict=True)},
        )  # fmt: skip
        return np.asarray(packed)

    def decode(self, packed: NDArray[np.uint8], count: int, s: np.float32) -> Any:
        """Return s times the first `count` packed values, on the device."""
        scaler, codes, out = upload([s], np.float32), upload(packed, np.uint8), empty(count)
        launch(
            machine(), self._kernels["decode"], (-(-count // BLOCK), 1, 1), packed=codes.address,
            scaler=scaler.address, out=out.address, n=count,
        )  # fmt: skip
        return out


class CudaOperations:
    """Operations on whole arrays and rules, on the device; arrays on the host are copied to it and back."""

    threads = 1
    seconds = float("nan")

    def __init__(self, draw: Draw = distributions.draw) -> None:
        """Set up the device; `draw` draws from distributions, on the host, where the few draws are used."""
        self.draw = draw
        self.device_name: str | None = machine().name
        self._kernels = machine().load(unit_of("sums"))
        self.ternary: Ternary = CudaTernary(self)
        self._flag, self._no_target = upload(np.zeros(1, np.int32)), upload(np.zeros(1, np.int64))

    def compile_rule(self, rule: Rule) -> Update:
        """Return update(theta, *state, g, begin, end, *coefficients) → whether θ stayed finite; see Operations.

        Arrays on the host are copied to the device and back.
        """
        kernel, count = machine().load(unit_of_rule(rule))["apply"], 2 + len(rule.state)

        def update(*arguments: Any) -> bool:
            begin, end, *coefficients = arguments[count:]
            if begin == end:  # a call on no elements, made only to compile
                return True
            arrays = [self.array_of(array)[begin:end] for array in arguments[:count]]
            if any(map(arrays[-1].shares_memory, arrays[:-1])):
                arrays[-1] = arrays[-1].copy()  # the kernel takes a gradient for what no thread writes
            numbers = upload([coefficients or [0.0]], np.float32)
            machine().upload(np.ones(1, np.int32), self._flag.address)
            launches = Launches(machine())
            add_apply(
                launches, kernel, [array.address for array in arrays[:-1]], end - begin, gradients=arrays[-1].address,
                coefficients=numbers.address, targets=self._no_target.address, events=1, diverged_at=self._flag.address,
            )  # fmt: skip
            launches.run()
            for given, array in zip(arguments[: count - 1], arrays, strict=False):
                if not isinstance(given, DeviceArray):
                    given[begin:end] = np.asarray(array)
            return bool(np.asarray(self._flag)[0])

        return update

    def pool(self, size: int, limits: Limits) -> Pool:
        """Return a pool of arrays (size,) for what clients hold. Raises ConfigError if a limit on memory is given."""
        if limits.memory is not None:
            raise ConfigError("memory is a limit of the host's; with backend cuda clients hold arrays on the device")
        return Pool(size, 0, limits, cast(Any, place))

    def close(self) -> None:
        """Let go of what refers back to this, so that the device's memory is freed with it, at once."""
        vars(self).pop("ternary", None)

    @property
    def where(self) -> tuple[str, bool]:
        """The device's name, and whether it is emulated in this process's memory."""
        return machine().name, EMULATED

    def empty(self, size: int) -> DeviceArray:
        """Return an array, float32 (size,), with arbitrary contents."""
        return empty(size)

    def copy(self, source: int, target: int, size: int) -> None:
        """Copy `size` bytes from one address to another, in order with what is queued."""
        machine().copy(source, target, size)

    def zeros(self, size: int) -> Any:
        """Return zeros, float32 (size,), on the device."""
        array = empty(size)
        array[...] = 0.0
        return array

    def array_of(self, array: Any) -> DeviceArray:
        """Return an array on the device whose elements lie one behind the other; one on the host is copied there."""
        return array.contiguous if isinstance(array, DeviceArray) else upload(array, np.float32)

    def look(self, kernel: str, array: Any) -> int:
        """Return what a kernel that looks at each element finds; 0 at first."""
        given = self.array_of(array)
        machine().upload(np.zeros(1, np.int32), self._flag.address)
        blocks = (-(-given.size // BLOCK), 1, 1)
        launch(
            machine(), self._kernels[kernel], blocks, array=given.address, found=self._flag.address, n=given.size
        )  # fmt: skip
        return int(np.asarray(self._flag)[0])

    def finite(self, array: Any) -> bool:
        """Return whether every element is finite."""
        return not self.look("find_infinite", array)

    def duplicate(self, array: Any, out: Any) -> None:
        """Copy an array, on the device or to it."""
        out[...] = array

    def duplicate_finite(self, array: Any, out: Any) -> bool:
        """Copy an array, on the device or to it; return whether every element is finite."""
        out[...] = array
        return self.finite(out)

    def mean(self, array: Any) -> float:
        """Return the mean of all elements in float64, as fredsim.numerics.oracle.mean64."""
        values = self.array_of(array)
        return float(self.total(self.sums("sum_floats", values)) / np.float64(values.size))

    def sums(self, kernel: str, values: DeviceArray, centre: DeviceArray | None = None) -> DeviceArray:
        """Return the sums in float64 of each SUMMED elements, each a whole subtree."""
        out = empty(-(-values.size // SUMMED), np.float64)
        launch(
            machine(), self._kernels[kernel], (out.size, 1, 1), array=values.address, out=out.address, n=values.size,
            centre=0 if centre is None else centre.address,
        )  # fmt: skip
        return out

    def total(self, values: DeviceArray) -> float:
        """Return the sum of float64 (n,) by the binary tree; 0 for an empty array."""
        while values.size > 1:
            values = self.sums("sum_doubles", values)
        return float(np.asarray(values)[0] if values.size else 0.0) + 0.0


def add_apply(
    launches: Launches, kernel: Loaded, arrays: Sequence[int], size: int, where: Any = True, /, **fields: Any
) -> None:
    """Add the kernel of a rule that changes arrays (size,) at these addresses; the fields are those of rule.cu."""
    blocks = (-(-size // APPLIED), 1, 1)
    launches.add(kernel, blocks, where, arrays=arrays, size=size, **fields)
