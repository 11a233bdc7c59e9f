"""The named tensors that one flat float32 vector of parameters is made of, and the digest of their bytes."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import ClassVar

import numpy as np

from fredsim.numerics.arrays import Array

__all__ = ["Layout"]


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the tensors, in order; each is stored in C order, directly after the one before."""

    UNCHANGING: ClassVar = True  # it is not saved as part of the state of an object that has it

    tensors: tuple[tuple[str, tuple[int, ...]], ...]

    @cached_property
    def slices(self) -> dict[str, slice]:
        """The slice of the flat vector that each tensor occupies, by name."""
        places = pairwise(accumulate(self.sizes, initial=0))
        return {name: slice(*place) for (name, _), place in zip(self.tensors, places, strict=True)}

    @property
    def sizes(self) -> list[int]:
        """The number of parameters in each tensor."""
        return [math.prod(shape) for _, shape in self.tensors]

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum(self.sizes)

    def place(self, name: str) -> tuple[int, tuple[int, ...]]:
        """Return where a tensor begins in the flat vector, and its shape. Raises KeyError for an unknown name."""
        if name not in self.slices:
            raise KeyError(f"no tensor {name!r} (tensors: {', '.join(self.slices)})")
        return self.slices[name].start, dict(self.tensors)[name]

    def split(self, params: Array) -> dict[str, Array]:
        """Return views of the flat vector (P,) in the tensors' shapes, by name."""
        return {name: params[self.slices[name]].reshape(shape) for name, shape in self.tensors}

    def digest(self, params: Array) -> str:
        """Return the SHA-256 of the parameters, as 64 hexadecimal digits.

        For each tensor in order it covers the line "name float32 dimensions", then the little-endian bytes in C order.
        """
        digest = hashlib.sha256()
        for name, view in self.split(params).items():
            digest.update(f"{name} float32 {','.join(map(str, view.shape))}\n".encode("ascii"))
            digest.update(np.ascontiguousarray(view, "<f4").data)
        return digest.hexdigest()
