"""Sparse gradients, which have only some rows of a tensor such as an embedding: only these rows are updated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fredsim.errors import ConfigError
from fredsim.numerics.oracle import tree_sum
from fredsim.servers.elementwise import ElementwiseServer

__all__ = ["SparseRows"]

Array = NDArray[np.float32]


@dataclass(frozen=True)
class SparseRows:
    """A gradient that has only some rows of a tensor.

    Attributes:
        rows: the rows' numbers, (k,); the values of a row that occurs several times are first summed, by a balanced
            tree.
        values: float32 (k, width), or (k,) for elements of a vector.
        tensor: the tensor's name in the server's layout; None: the flat vector, whose rows are its elements.

    """

    rows: NDArray[np.integer]
    values: Array
    tensor: str | None = None

    def summed(self) -> tuple[NDArray[np.int64], Array]:
        """Return the k′ different row numbers, ascending, and the sum of each row's values (k′, width)."""
        rows, places = np.unique(np.asarray(self.rows, np.int64), return_inverse=True)
        values = np.asarray(self.values, np.float32)
        values = values.reshape(len(self.rows), -1 if values.size else 0)
        sums = [tree_sum(values[places == place]).astype(np.float32) for place in range(len(rows))]
        return rows, np.stack(sums) if sums else values

    def elements(self, server: ElementwiseServer) -> tuple[NDArray[np.int64], Array]:
        """Return the rows' elements: flat indices, and gradient. Raises ConfigError if they do not fit the tensor."""
        rows, sums = self.summed()
        begin = 0
        shape: tuple[int, ...] = (server.params.size, 1)
        if self.tensor is not None:
            if server.layout is None:
                raise ConfigError(f"tensor is {self.tensor!r}; the server was started without a layout")
            begin, shape = server.layout.place(self.tensor)
        width = int(np.prod(shape[1:]))
        if len(rows) and not (rows[0] >= 0 and rows[-1] < shape[0] and sums.shape[1] == width):
            raise ConfigError(
                f"rows {rows[0]} … {rows[-1]} of width {sums.shape[1]} do not fit the tensor "
                f"{self.tensor or 'of all parameters'}, {shape}"
            )
        return (begin + rows[:, None] * width + np.arange(width)).reshape(-1), sums.reshape(-1)

    def apply(self, server: ElementwiseServer, client_id: int, coefficients: tuple[np.float32, ...]) -> None:
        """Apply the server's rule to these elements and advance its timestamp."""
        at, grad = self.elements(server)
        arrays = [server.params, *server.state_of(client_id)]
        parts = [array[at] for array in arrays]
        server.decay(parts[0])
        server.finite = bool(server.update(*parts, grad, 0, len(at), *coefficients))
        for array, part in zip(arrays, parts, strict=True):
            array[at] = part
        server.timestamp += 1
