"""A linear model: the parameters of least squares, of a quadratic, or of any loss, and their initial values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fredsim.networks.graph import Graph, Node
from fredsim.networks.layout import Layout
from fredsim.networks.network import MeasuredBy, Network
from fredsim.numerics.arrays import Array
from fredsim.numerics.ops import linear as operators
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.numerics.ops.operator import Shape
from fredsim.numerics.ops.views import Reshape
from fredsim.numerics.streams import Stream, Streams, normal_quantile

__all__ = ["Linear", "is_linear"]


@dataclass(frozen=True)
class Linear(Network):
    """One weight for each of `size` inputs and each output, without a bias.

    The loss is half the squared error of one output; or `loss`, of outputs of the shape `outputs` for targets of the
    shape `target`. `init` is zeros; normal, with standard deviation `std`; or first: the first weight is `value`, or √P
    of P weights if `value` is None, and all others are 0.
    """

    size: int
    init: str = "zeros"
    std: float = 1.0
    value: float | None = None
    loss: Loss = MeanSquaredError(half=True)  # noqa: RUF009  it never changes
    outputs: Shape = (1,)
    target: Shape = ()

    @property
    def layout(self) -> Layout:
        """W1 (inputs, outputs)."""
        return Layout((("W1", (self.size, math.prod(self.outputs))),))

    @cached_property
    def graph(self) -> Graph:
        """One dense layer."""
        nodes = [Node(operators.Linear(math.prod(self.outputs), bias=False), (0,), (("weight", "W1"),))]
        if len(self.outputs) > 1:
            nodes.append(Node(Reshape(self.outputs), (1,)))
        return Graph((self.size,), self.target, tuple(nodes), self.loss, self.layout)

    @property
    def measured_by(self) -> MeasuredBy:
        """The gap to the minimum, which is known for least squares and quadratics; else what the loss says."""
        return "gap" if getattr(self.loss, "half", False) else self.loss.measured_by

    def initial(self, streams: Streams) -> Array:
        """Return the initial parameters, float32 (P,)."""
        params = np.zeros(self.layout.size, np.float32)
        with np.errstate(over="ignore"):  # a run refuses initial parameters that are not finite, and names the key
            if self.init == "normal":
                for part, words in streams.parts_of_words(Stream.PARAMETERS, len(params)):
                    params[part] = normal_quantile(words) * self.std
            elif self.init == "first":
                params[0] = math.sqrt(len(params)) if self.value is None else self.value
        return params


def is_linear(graph: Graph) -> bool:
    """Return whether a graph is that of a linear model."""
    return graph == Linear(graph.layout.size).graph
