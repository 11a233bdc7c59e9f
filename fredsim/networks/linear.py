"""A linear model: the parameters of least squares or of a quadratic, and their initial values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fredsim.networks.graph import Graph, Node
from fredsim.networks.layout import Layout
from fredsim.networks.network import MeasuredBy, Network
from fredsim.numerics.ops import linear as operators
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.numerics.streams import Stream, Streams, normal_quantile

__all__ = ["Linear", "is_linear"]

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Linear(Network):
    """One weight for each of `size` inputs, without a bias; the loss is half the squared error.

    `init` is zeros; normal, with standard deviation `std`; or first: the first weight is `value`, or √size if `value`
    is None, and all others are 0.
    """

    size: int
    init: str = "zeros"
    std: float = 1.0
    value: float | None = None

    @property
    def layout(self) -> Layout:
        """W1 (inputs, 1)."""
        return Layout((("W1", (self.size, 1)),))

    @cached_property
    def graph(self) -> Graph:
        """One dense layer with one output."""
        node = Node(operators.Linear(1, bias=False), (0,), (("weight", "W1"),))
        return Graph((self.size,), (), (node,), MeanSquaredError(half=True), self.layout)

    @property
    def measured_by(self) -> MeasuredBy:
        """The gap to the minimum, which is known for least squares and quadratics."""
        return "gap"

    def initial(self, streams: Streams) -> Array:
        """Return the initial parameters, float32 (P,)."""
        params = np.zeros(self.size, np.float32)
        with np.errstate(over="ignore"):  # a run refuses initial parameters that are not finite, and names the key
            if self.init == "normal":
                for part, words in streams.parts_of_words(Stream.PARAMETERS, self.size):
                    params[part] = normal_quantile(words) * self.std
            elif self.init == "first":
                params[0] = math.sqrt(self.size) if self.value is None else self.value
        return params


def is_linear(graph: Graph) -> bool:
    """Return whether a graph is that of a linear model."""
    return graph == Linear(graph.layout.size).graph
