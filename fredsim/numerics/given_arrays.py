"""Arrays that a user's class hands over, made fit for kernels, which read and write memory by address.

A kernel does not look at an array's type, strides, length or flags. So every array from a user's class passes one of
these functions first, on every backend: what is read is converted once, what would be written must be fit as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fredsim.numerics.arrays import Array
from fredsim.numerics.distributions import Draw
from fredsim.numerics.operations import Operations, Update
from fredsim.numerics.rules import Rule
from fredsim.numerics.ternary import Draws, Ternary

__all__ = ["CheckedOperations", "check_written", "copied_targets", "readable"]


def copied_targets(y: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of targets as a user's function takes them: integers as int64, which those of tokens are not.

    It is in C order: sums that a function takes over several axes may have other bits in another order.
    """
    return np.array(y, np.int64 if y.dtype.kind in "iu" else y.dtype, order="C")


def readable(array: Any, size: int | None = None, what: str = "the array") -> Array:
    """Return an array of numbers as float32, in C order and aligned; the array itself if it is that already.

    An array on a device is returned as it is. Raises TypeError for something else than an array of real numbers,
    ValueError if its shape is not (size,), where `size` is given.
    """
    if not _is_plain(array) and not _is_on_device(array):
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(f"{what} is a masked array; give .filled(0), or another value for what is masked")
        array = np.asarray(array)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"{what} is an array of {array.dtype}; it must be one of real numbers")
        with np.errstate(all="ignore"):  # what is too large becomes infinite, and the run diverges
            array = np.require(array, np.float32, ["C_CONTIGUOUS", "ALIGNED"])
    if size is not None and array.shape != (size,):
        raise ValueError(f"{what} has the shape {array.shape}; it must be ({size},)")
    found: Array = array
    return found


def check_written(arrays: Mapping[str, Any], size: int) -> None:
    """Raise TypeError or ValueError unless all arrays, given by name, can be written in place by a kernel.

    Each must be float32 (size,), in C order, aligned and writable, and share no memory with another.
    """
    for name, array in arrays.items():
        if _is_on_device(array):
            continue
        if type(array) is not np.ndarray or array.dtype != np.float32:
            found = f"an array of {array.dtype}" if type(array) is np.ndarray else f"a {type(array).__name__}"
            raise TypeError(f"{name} is {found}; it is updated in place, and must be a NumPy array of float32")
        if array.shape != (size,):
            raise ValueError(f"{name} has the shape {array.shape}; it must be ({size},)")
        flags = array.flags
        if not flags.carray:
            found = "is read-only" if not flags.writeable else "is not contiguous" if flags.aligned else "is unaligned"
            raise ValueError(f"{name} {found}; it is updated in place: give a copy, such as np.array({name})")
    for one, other in combinations(arrays, 2):
        if _overlap(arrays[one], arrays[other]):
            raise ValueError(f"{one} and {other} share memory; each is updated in place: give a copy of one")


def _is_plain(array: Any) -> bool:
    """Return whether a kernel can read an array as it is."""
    return type(array) is np.ndarray and array.dtype == np.float32 and array.flags.c_contiguous and array.flags.aligned


def _is_on_device(array: Any) -> bool:
    """Return whether an array is one of a backend's own, on a device."""
    return type(array).__module__.startswith("fredsim.")


def _overlap(one: Any, other: Any) -> bool:
    if _is_on_device(one) or _is_on_device(other):
        return one is other
    return bool(np.may_share_memory(one, other))


class CheckedOperations:
    """A backend's operations (fredsim.numerics.operations.Operations) for users' classes: any array may be given."""

    UNCHANGING: ClassVar = True  # what it keeps is no part of the state of an object that has it

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self.ternary: Ternary = CheckedTernary(operations.ternary)

    @property
    def draw(self) -> Draw:
        """The function that draws from distributions, on the host."""
        return self._operations.draw

    def zeros(self, size: int) -> Array:
        """Return zeros (size,)."""
        return self._operations.zeros(size)

    def compile_rule(self, rule: Rule) -> Update:
        """Return the rule's update; see Operations. Coefficients are rounded to float32.

        The update raises TypeError or ValueError for arrays that it cannot write, for a gradient or a number of
        coefficients that does not fit them, and for elements that are not there.
        """
        update = self._operations.compile_rule(rule)
        names = ("params", *rule.state)
        count = 1 + len(names)

        def checked(*arguments: Any) -> bool:
            written, gradient = arguments[: count - 1], arguments[count - 1]
            begin, end, *coefficients = arguments[count:]
            if len(coefficients) != len(rule.coefficients):
                what = f"{len(coefficients)} coefficients are given; the rule takes {len(rule.coefficients)}"
                raise TypeError(f"{what} ({', '.join(rule.coefficients) or 'none'})")
            if begin == end:  # as when a rule is compiled: nothing is read or written
                return update(*arguments)
            size = len(written[0])
            check_written(dict(zip(names, written, strict=True)), size)
            if not 0 <= begin <= end <= size:
                raise ValueError(f"elements {begin} to {end} are asked for; there are {size}")
            gradient = readable(gradient, size, "the gradient")
            if any(_overlap(gradient, array) for array in written):
                gradient = gradient.copy()
            return update(*written, gradient, begin, end, *map(np.float32, coefficients))

        return checked

    def finite(self, array: Any) -> bool:
        """Return whether every element is finite."""
        return self._operations.finite(readable(array).reshape(-1))

    def duplicate(self, array: Any, out: Array) -> None:
        """Copy one array (n,) to another."""
        check_written({"out": out}, len(out))
        self._operations.duplicate(self._apart(array, out), out)

    def duplicate_finite(self, array: Any, out: Array) -> bool:
        """Copy one array (n,) to another; return whether every element is finite."""
        check_written({"out": out}, len(out))
        return self._operations.duplicate_finite(self._apart(array, out), out)

    def _apart(self, array: Any, out: Array) -> Array:
        """Return an array of the length of `out`, in other memory."""
        found = readable(array, len(out))
        return found.copy() if _overlap(found, out) else found

    def mean(self, array: Any) -> float:
        """Return the mean of all elements in float64; see Operations."""
        return self._operations.mean(readable(array).reshape(-1))


class CheckedTernary:
    """A backend's ternary gradients (fredsim.numerics.ternary.Ternary), for any array."""

    def __init__(self, ternary: Ternary) -> None:
        self._ternary = ternary

    def scaler(self, g: Any) -> np.float32:
        """Return max|g|; NaN if g contains one."""
        return self._ternary.scaler(readable(g))

    def clip(self, g: Any, sigmas: float) -> Array:
        """Return g clipped to ±sigmas·σ."""
        return self._ternary.clip(readable(g), sigmas)

    def encode(self, g: Any, s: np.float32, draws: Draws) -> NDArray[np.uint8]:
        """Return g quantised with the finite scaler s and packed, uint8 (⌈n/4⌉,)."""
        return self._ternary.encode(readable(g).reshape(-1), np.float32(s), draws)

    def decode(self, packed: NDArray[np.uint8], count: int, s: np.float32) -> Array:
        """Return s times the first `count` packed values."""
        return self._ternary.decode(packed, count, s)
