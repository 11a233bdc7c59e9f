"""A keyed parameter server: clients push values under a key, and pull a reduction of all values that were pushed.

It has the interface that PaddlePaddle issue 6599 asks for, with one handle per client:

>>> store = ParameterStore()
>>> for number, value in enumerate([0.5, 0.75]):
...     client = store.client(number)
...     client.init_parameter(key="max_abs_grad", shape=[1], dtype="float32")
...     client.push_parameter(key="max_abs_grad", value=value)
>>> store.client(0).pull_parameter(key="max_abs_grad", reduce_method="max")
array([0.75], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fredsim.numerics.oracle import tree_sum
from fredsim.numerics.ternary import unpack

__all__ = ["ClientHandle", "ParameterStore"]

Reduction = Literal["max", "sum", "average", "decode_average"]


@dataclass
class Slot:
    """A key's shape and type, and the last value of each client in the order of their first push."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    values: dict[int, NDArray[Any]] = field(default_factory=dict)


class ParameterStore:
    """Values by key and client. Methods raise KeyError for an unknown key, ValueError for a value that does not fit."""

    def __init__(self) -> None:
        self._slots: dict[str, Slot] = {}

    def client(self, number: int) -> ClientHandle:
        """Return the handle through which a client uses the store."""
        return ClientHandle(self, number)

    def clear(self, key: str) -> None:
        """Forget what was pushed under a key."""
        self._slot(key).values.clear()

    def init(self, key: str, shape: Sequence[int], dtype: DTypeLike) -> None:
        """Declare a key; declaring it again with the same shape and type changes nothing."""
        slot = Slot(tuple(shape), np.dtype(dtype))
        known = self._slots.setdefault(key, slot)
        if (known.shape, known.dtype) != (slot.shape, slot.dtype):
            raise ValueError(f"key '{key}' is {known.dtype} {known.shape} already, not {slot.dtype} {slot.shape}")

    def push(self, number: int, key: str, value: ArrayLike) -> None:
        """Store a client's value for a key; it replaces an earlier one."""
        slot = self._slot(key)
        given = np.asarray(value)
        if given.size != np.prod(slot.shape):
            raise ValueError(f"key '{key}' takes {slot.shape}; the value pushed has shape {given.shape}")
        with np.errstate(all="ignore"):
            array = given.astype(slot.dtype)
        if slot.dtype.kind in "iu" and (array != given).any():
            raise ValueError(f"key '{key}' takes {slot.dtype}; the value pushed holds {given[array != given].flat[0]}")
        slot.values[number] = array.reshape(slot.shape)

    def pull(
        self, key: str, reduce_method: Reduction, *, count: int | None = None, scaler: np.float32 | None = None
    ) -> NDArray[Any]:
        """Return a reduction of what the N clients pushed.

        `max`, `sum` and `average` are elementwise; sums are by a balanced tree in the order of the clients' first
        pushes, and those of integers are exact, or refused, as averages of integers are. `decode_average` unpacks
        two-bit codes, adds them as integers k and computes (scaler·k)/N in float32; `count` is how many values the
        bytes hold, by default four per byte; `scaler` is 1 by default.
        """
        slot = self._slot(key)
        values = list(slot.values.values())
        if not values:
            raise ValueError(f"nothing was pushed under key '{key}'")
        match reduce_method:
            case "max":
                return np.asarray(np.max(np.stack(values), axis=0))
            case "sum":
                if slot.dtype.kind in "iu":
                    return _integer_sum(key, slot, values)
                return np.asarray(tree_sum(np.stack(values)), slot.dtype)
            case "average":
                if slot.dtype.kind in "iu":
                    raise ValueError(f"key '{key}' is {slot.dtype}, which averages may not fit; declare it as float32")
                return np.asarray(tree_sum(np.stack(values)) / slot.dtype.type(len(values)), slot.dtype)
            case "decode_average":
                if slot.dtype != np.uint8:
                    raise ValueError(f"key '{key}' is {slot.dtype}; decode_average takes packed codes, uint8")
                total = np.sum([unpack(value, count).astype(np.int64) for value in values], axis=0)
                scale = np.float32(1) if scaler is None else np.float32(scaler)
                with np.errstate(all="ignore"):
                    return np.asarray((scale * total.astype(np.float32)) / np.float32(len(values)))
        raise ValueError(f"reduce_method is {reduce_method!r}; choose max, sum, average or decode_average")

    def _slot(self, key: str) -> Slot:
        if key not in self._slots:
            raise KeyError(f"no key '{key}'; declare it by init_parameter (keys: {', '.join(self._slots) or 'none'})")
        return self._slots[key]


def _integer_sum(key: str, slot: Slot, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the exact sum of integer arrays. Raises ValueError if it does not fit the slot's type."""
    total, limits = np.asarray(sum(value.astype(object) for value in values)), np.iinfo(slot.dtype)
    for element in total.flat:
        if not limits.min <= element <= limits.max:
            raise ValueError(f"key '{key}' is {slot.dtype}, which the sum {element} does not fit; declare a wider type")
    return total.astype(slot.dtype)


@dataclass(frozen=True)
class ClientHandle:
    """One client's access to a store."""

    store: ParameterStore
    number: int

    def init_parameter(
        self,
        key: str,
        shape: Sequence[int],
        dtype: DTypeLike | None = None,
        *,
        type: DTypeLike | None = None,  # noqa: A002  the issue's word for dtype
    ) -> None:
        """Declare a key. Raises ValueError unless one of dtype and type is given."""
        given = type if dtype is None else dtype
        if given is None or None not in (dtype, type):
            raise ValueError(f"key '{key}': give one of dtype and type")
        self.store.init(key, shape, given)

    def push_parameter(self, key: str, value: ArrayLike) -> None:
        """Push this client's value."""
        self.store.push(self.number, key, value)

    def pull_parameter(self, key: str, reduce_method: Reduction, **how: Any) -> NDArray[Any]:
        """Pull a reduction of all clients' values; see ParameterStore.pull."""
        return self.store.pull(key, reduce_method, **how)
