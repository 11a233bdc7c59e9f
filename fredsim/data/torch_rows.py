"""PyTorch's data sets, `torch:package.module:Dataset`, as data sets that fredsim reads."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.errors import ConfigError, DataError
from fredsim.numerics.arrays import Integers
from fredsim.plugins.failures import described, failing, message_of
from fredsim.plugins.guarded import array_of
from fredsim.plugins.modules import parameters_of

__all__ = ["TorchRows"]


class TorchRows:
    """A class, or a function that makes data sets, of pairs (sample, target) by index: `len(set)` and `set[i]`.

    One that takes `train`, `split` or `part` is made for each part, by the first of these; any other is the training
    part.
    """

    def __init__(self, name: str, make: Any, arguments: Mapping[str, Any]) -> None:
        """Make the data sets. Raises ConfigError if they have no length."""
        self._name = name
        names = parameters_of(make) or {}
        given: dict[str, dict[str, Any]] = {"train": {}}
        key = next((key for key in ("train", "split", "part") if key in names and key not in arguments), None)
        if key == "train":  # `data.train` is a number of rows, and no argument
            given = {"train": {"train": True}, "test": {"train": False}}
        elif key is not None:
            given = {"train": {key: "train"}, "test": {key: "test"}}
        self._sets = {part: make(**arguments, **more) for part, more in given.items()}
        for found in self._sets.values():
            if not (hasattr(found, "__len__") and hasattr(found, "__getitem__")):
                raise ConfigError(f"data.name: {name} makes a {type(found).__name__}; it must have a length and items")
        x, _ = self._item("train", 0) if len(self._sets["train"]) else (np.zeros(1, np.float32), None)
        self.shape, self.dtype = x.shape, x.dtype.newbyteorder("=")  # as arrays of several items have it
        self.classes: int | None = None
        self.files: list[str] = []

    def len(self, part: str) -> int:
        """Return the number of rows of a part; 0 for one that there is not."""
        return len(self._sets[part]) if part in self._sets else 0

    def rows(self, part: str, numbers: Integers) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return samples and targets, item by item. Raises DataError for items of several shapes."""
        items = [self._item(part, int(number)) for number in numbers]
        for letter, values in zip("xy", zip(*items, strict=True), strict=True):
            kinds = {(value.shape, value.dtype) for value in values}
            if len(kinds) > 1:
                one, other = (f"{dtype} {shape}" for shape, dtype in sorted(kinds, key=str)[:2])
                what = f"{part} rows have {letter} {one} and {other}"
                raise DataError(f"{self._name}: {what}; they must have one shape and type")
        return np.stack([x for x, _ in items]), np.stack([y for _, y in items])

    def _no_item(self, part: str, number: int, error: BaseException) -> DataError:
        count = len(self._sets[part])
        what = f"item {number} of {part} cannot be had, of {count} by its length ({described(error)})"
        remedy = "; len() must be the number of its items" if isinstance(error, IndexError) else ""
        return DataError(f"{self._name}: {what}{remedy}")

    def _item(self, part: str, number: int) -> tuple[NDArray[Any], NDArray[Any]]:
        with failing(partial(self._no_item, part, number), MemoryError):
            item = self._sets[part][number]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"{self._name}: item {number} of {part} is a {type(item).__name__}; it must be a pair")
        if any(isinstance(one, np.ma.MaskedArray) for one in item):
            what = f"item {number} of {part} has a masked array"
            raise DataError(f"{self._name}: {what}; give .filled(0), or another value for what is masked")
        try:
            x, y = (array_of(one).copy() for one in item)  # the next item may be in the same memory
        except (TypeError, ValueError) as error:
            what = f"item {number} of {part} is no pair of arrays"
            raise DataError(f"{self._name}: {what} ({message_of(error)})") from None
        if x.dtype == object:
            what = f"item {number} of {part} is no array, but a {type(item[0]).__name__}"
            raise DataError(f"{self._name}: {what}; give an array or a tensor of numbers, as by a transform of it")
        if x.ndim == 3 and hasattr(item[0], "getbands"):  # an image of PIL has its channels last
            x = np.ascontiguousarray(x.transpose(2, 0, 1))
        return x, y
