"""Samples and targets on the device: once for all engines of this process that compute with the same ones."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from fredsim.cuda.array import upload
from fredsim.data.datasets import Split

__all__ = ["Uploads"]


class Uploaded:
    """A split's samples and targets on the device, as numbers of these types."""

    def __init__(self, split: Split, *types: Any) -> None:
        self.split = split  # kept, so that no other split gets its id
        self.arrays = tuple(upload(one, np.dtype(kind)) for one, kind in zip((split.x, split.y), types, strict=True))


_SHARED: WeakValueDictionary[tuple[Any, ...], Uploaded] = WeakValueDictionary()


class Uploads:
    """The splits of one engine; what several have is on the device once, for as long as one of them has it."""

    def __init__(self) -> None:
        self._own: dict[tuple[Any, ...], Uploaded] = {}

    def of(self, split: Split, *types: Any) -> tuple[Any, ...]:
        """Return a split's samples and targets on the device, as numbers of these two types."""
        key = (id(split), *types)
        if key not in self._own:
            found = _SHARED.get(key)
            if found is None:
                found = _SHARED[key] = Uploaded(split, *types)
            self._own[key] = found
        return self._own[key].arrays

    def forget(self) -> None:
        """Upload again what is asked for from now on: samples were written anew."""
        for key in self._own:
            _SHARED.pop(key, None)
        self._own.clear()
