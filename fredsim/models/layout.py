"""The named tensors that one flat float32 vector of parameters is made of, and the digest of their bytes."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Layout"]

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Layout:
    """Names and shapes in order, each tensor in C order after the one before."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum(math.prod(shape) for _, shape in self.tensors)

    def place(self, name: str) -> tuple[int, tuple[int, ...]]:
        """Return where a tensor begins in the flat vector, and its shape. Raises KeyError for an unknown name."""
        at = 0
        for tensor, shape in self.tensors:
            if tensor == name:
                return at, shape
            at += math.prod(shape)
        raise KeyError(f"no tensor {name!r} (tensors: {', '.join(tensor for tensor, _ in self.tensors)})")

    def split(self, params: Array) -> dict[str, Array]:
        """Return views of the flat vector, by name."""
        views, at = {}, 0
        for name, shape in self.tensors:
            size = math.prod(shape)
            views[name] = params[at : at + size].reshape(shape)
            at += size
        return views

    def digest(self, params: Array) -> str:
        """Return the SHA-256 of the parameters, 64 hex digits.

        Of each tensor in order: the line "name float32 dimensions", then its little-endian bytes in C order.
        """
        digest = hashlib.sha256()
        for name, view in self.split(params).items():
            digest.update(f"{name} float32 {','.join(map(str, view.shape))}\n".encode("ascii"))
            digest.update(np.ascontiguousarray(view, "<f4").data)
        return digest.hexdigest()
