"""Arrays on a device with NumPy's interface, so that servers written for NumPy work on them unchanged.

+ − × ÷ √ |x|, comparisons and `where` on float32 run on the device, each rounded as NumPy rounds it. Any other NumPy
function runs on the host, on copies; this is slow, but gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike, NDArray

from fredsim.cuda.interface import Memory
from fredsim.cuda.kernels import unit_of
from fredsim.cuda.launches import launch
from fredsim.cuda.machines import machine

__all__ = ["DeviceArray", "empty", "strides_of", "upload"]

#: NumPy's functions in the order of the kernel's operations (sources/arrays.cu), whose first is COPY and last WHERE.
OPERATIONS: list[Any] = [
    np.negative, np.absolute, np.sqrt, np.add, np.subtract, np.multiply, np.divide, np.less, np.less_equal, np.greater,
    np.greater_equal, np.equal, np.not_equal,
]  # fmt: skip
COMPARISONS = OPERATIONS[7:]
COPY, WHERE = 0, 1 + len(OPERATIONS)
#: The most dimensions that the kernel takes; arrays of more are computed on the host.
DIMENSIONS, OPERANDS = 4, 3


class DeviceArray(NDArrayOperatorsMixin):
    """An array on a device, or a view of its part: `view` is the same part of the memory's shadow."""

    __slots__ = ("_memory", "_view")

    def __init__(self, memory: Memory, view: NDArray[Any]) -> None:
        self._memory, self._view = memory, view

    @property
    def address(self) -> int:
        """The address of the first element on the device."""
        first, start = (one.__array_interface__["data"][0] for one in (self._view, self._memory.shadow))
        return int(self._memory.address + first - start)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self._view.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides, in elements."""
        return tuple(stride // self._view.itemsize for stride in self._view.strides)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._view.size

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self._view.nbytes

    @property
    def dtype(self) -> np.dtype[Any]:
        """The elements' type."""
        return self._view.dtype

    @property
    def contiguous(self) -> DeviceArray:
        """The array itself if its elements lie one behind the other, else a copy."""
        return self if self._view.flags.c_contiguous else self.copy()

    def __len__(self) -> int:
        return len(self._view)

    def __getitem__(self, key: Any) -> DeviceArray:
        if _basic(key):
            return DeviceArray(self._memory, self._view[_with_ellipsis(key)])
        return upload(np.asarray(self)[_hosts(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        if _basic(key):
            _fill(self[key], value)
            return
        changed = np.asarray(self)
        changed[_hosts(key)] = _hosts(value)
        _fill(self, changed)

    def shares_memory(self, other: DeviceArray) -> bool:
        """Return whether both are, or are parts of, what was allocated at once."""
        return self._memory is other._memory

    def reshape(self, *shape: Any) -> DeviceArray:
        """Return a view of another shape, or a copy if there is no such view."""
        whole = self.contiguous
        return DeviceArray(whole._memory, whole._view.reshape(*shape))

    def copy(self) -> DeviceArray:
        """Return a copy on the device."""
        copied = empty(self.shape, self.dtype)
        _compute(COPY, [self], copied)
        return copied

    def astype(self, dtype: DTypeLike) -> NDArray[Any]:
        """Return a copy of another type, on the host."""
        return np.asarray(self).astype(dtype)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Return a copy on the host."""
        if copy is False:
            raise ValueError("an array on a device cannot be read without a copy")
        whole, values = self.contiguous, np.empty(self.shape, self.dtype)
        machine().download(whole.address, values)
        return np.asarray(values, dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        """Apply an elementwise NumPy function, on the device if it is one of OPERATIONS."""
        if method == "at" and isinstance(inputs[0], DeviceArray):  # NumPy does so even to an array that is read-only
            raise ValueError(
                f"{ufunc.__name__}.at would change a copy on the host, which is read-only; index the array"
            )
        options = {key: _hosts(value) for key, value in options.items()}
        known = method == "__call__" and ufunc in OPERATIONS and not options
        if known and (out is None or isinstance(out[0], DeviceArray)) and _all_fit(inputs):
            dtype = np.bool_ if ufunc in COMPARISONS else np.float32
            result = _apply(1 + OPERATIONS.index(ufunc), inputs, dtype)
            if out is None:
                return result
            _fill(out[0], result)
            return out[0]
        if out is None:
            return getattr(ufunc, method)(*_hosts(inputs), **options)
        # With `where`, some of what is there stays; of an array on a device that is what the copy has.
        copies = tuple(np.asarray(one) if isinstance(one, DeviceArray) else one for one in out)
        results = getattr(ufunc, method)(*_hosts(inputs), out=copies, **options)
        found = list(results if len(out) > 1 else (results,))
        for number, one in enumerate(out):
            if isinstance(one, DeviceArray):
                _fill(one, copies[number])
                found[number] = one
        return tuple(found) if len(out) > 1 else found[0]

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        """Apply any other NumPy function: `where` on the device, the others on the host."""
        where = function is np.where and len(arguments) == 3 and not options
        if where and getattr(arguments[0], "dtype", None) == np.bool_ and _all_fit(arguments[1:], arguments[:1]):
            return _apply(WHERE, arguments, np.float32)
        return function(*_hosts(arguments), **{key: _hosts(value) for key, value in options.items()})


def empty(shape: int | Sequence[int], dtype: DTypeLike = np.float32, *, on_host: bool = False) -> DeviceArray:
    """Return an array with arbitrary contents; it begins at a multiple of 128 bytes.

    It is on the device, or `on_host`: in memory of the host that kernels use as the device's, but more slowly. Raises
    MemoryError if there is no room.
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    size, here = math.prod(shape), machine()
    memory = (here.allocate_on_host if on_host else here.allocate)(size * np.dtype(dtype).itemsize)
    return DeviceArray(memory, memory.shadow[: size * np.dtype(dtype).itemsize].view(dtype).reshape(shape))


def upload(values: Any, dtype: DTypeLike | None = None) -> DeviceArray:
    """Return a copy of an array of the host on the device."""
    values = np.ascontiguousarray(values, dtype).reshape(np.shape(values))
    array = empty(values.shape, values.dtype)
    machine().upload(values, array.address)
    return array


def _all_fit(operands: Sequence[Any], others: Sequence[Any] = ()) -> bool:
    """Return whether operands are float32 or bool, or Python numbers, and at least one is float32.

    NumPy would convert the others to float32 then. No array has more dimensions than the kernel takes, nor have
    `others`, which may all be bool.
    """
    kinds = [getattr(x, "dtype", None) for x in operands]
    fit = all(
        type(x) in (int, float) or kind in (np.float32, np.bool_) for x, kind in zip(operands, kinds, strict=True)
    )
    return fit and np.float32 in kinds and all(len(getattr(x, "shape", ())) <= DIMENSIONS for x in (*operands, *others))


def _apply(operation: int, operands: Sequence[Any], dtype: DTypeLike) -> DeviceArray:
    """Return the result of an operation, a new array."""
    shape = np.broadcast_shapes(*(getattr(x, "shape", ()) for x in operands))
    result = empty(shape, dtype)
    _compute(operation, operands, result)
    return result


def _fill(out: DeviceArray, value: Any) -> None:
    """Copy a value to an array, or to a part of one; it may be a part of the same array."""
    if isinstance(value, DeviceArray) and value.shares_memory(out) and value.size > 1:
        value = value.copy()  # a thread might write what another has yet to read
    if type(value) not in (int, float, bool) and getattr(value, "dtype", None) not in (np.float32, np.bool_):
        value = np.asarray(value).astype(out.dtype)
    if len(out.shape) > DIMENSIONS:
        changed = np.asarray(out)
        changed[...] = _host(value)
        flat, value = out.reshape(-1), changed.reshape(-1)
        assert flat._memory is out._memory
        out = flat
    _compute(COPY, [value], out)


class Operand(NamedTuple):
    """An operand of the kernel, broadcast to the result's shape."""

    address: int  # 0: a number
    strides: tuple[int, ...]  # in elements
    number: float
    is_bool: bool
    array: DeviceArray | None  # keeps the memory alive


def _compute(operation: int, given: Sequence[Any], out: DeviceArray) -> None:
    """Queue the computation of an operation into an array."""
    if not out.size:
        return
    shape, strides = out.shape, out.strides
    nothing, one_by_one = (0,) * len(shape), strides_of(shape)
    operands = [_operand(x, shape) for x in given]
    operands += [Operand(0, nothing, 0.0, False, None)] * (OPERANDS - len(operands))
    if strides == one_by_one and all(x.strides in (one_by_one, nothing) for x in operands):
        # All elements lie one behind the other, so one dimension is enough.
        operands = [x._replace(strides=(0,) if x.strides == nothing else (1,)) for x in operands]
        shape, strides = (out.size,), (1,)
    padding = DIMENSIONS - len(shape)
    fields = {
        "operand": [x.address for x in operands],
        "stride": [stride for x in operands for stride in (*(0,) * padding, *x.strides)],
        "number": [x.number for x in operands],
        "is_bool": [x.is_bool for x in operands],
        "out_stride": (*(0,) * padding, *strides),
        "shape": (*(1,) * padding, *shape),
        "out": out.address,
        "size": out.size,
        "out_is_bool": out.dtype == np.bool_,
        "operation": operation,
    }
    kernel = machine().load(unit_of("arrays"))["elementwise"]
    launch(machine(), kernel, (-(-out.size // kernel.threads), 1, 1), **fields)


def _operand(x: Any, shape: tuple[int, ...]) -> Operand:
    """Return an operand as the kernel takes it; an array of the host is copied to the device."""
    if not isinstance(x, DeviceArray):
        if np.ndim(x) == 0:
            return Operand(0, (0,) * len(shape), float(np.float32(x)), False, None)
        x = upload(x)
    view = np.broadcast_to(x._view, shape)
    return Operand(x.address, tuple(stride // view.itemsize for stride in view.strides), 0.0, x.dtype == np.bool_, x)


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of an array of this shape whose elements lie one behind the other."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _basic(key: Any) -> bool:
    """Return whether an index gives a view: it is made of whole numbers, slices, `...` and None."""
    parts = key if isinstance(key, tuple) else (key,)
    kinds = slice | int | np.integer
    return all(part is None or part is ... or (isinstance(part, kinds) and type(part) is not bool) for part in parts)


def _with_ellipsis(key: Any) -> Any:
    """Return an index that gives an array also where one element is left."""
    parts = key if isinstance(key, tuple) else (key,)
    return parts if any(part is ... for part in parts) else (*parts, ...)


def _host(x: Any) -> Any:
    """Return an argument, copied to the host if it is a DeviceArray: read-only, as what is written there is lost."""
    if not isinstance(x, DeviceArray):
        return x
    values = np.asarray(x)
    values.flags.writeable = False
    return values


def _hosts(x: Any) -> Any:
    """Return an argument with all DeviceArrays in it, also those in tuples and lists, copied to the host."""
    if isinstance(x, tuple | list):
        return type(x)(map(_hosts, x))
    return _host(x)
