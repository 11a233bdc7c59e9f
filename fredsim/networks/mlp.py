"""The interface of a model, and the multilayer perceptron with its initial parameters."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fredsim.networks.graph import Graph, Node
from fredsim.networks.initial import initial_parameters
from fredsim.networks.layout import Layout
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.pointwise import Relu
from fredsim.numerics.streams import Streams

__all__ = ["Mlp", "Model"]

Array = NDArray[np.float32]


class Model(Protocol):
    """The interface of a model. Its gradients are computed by an engine (fredsim.compute.engines)."""

    @property
    def layout(self) -> Layout:
        """The names and shapes of its parameters, in the order of the flat vector."""
        ...

    def initial(self, streams: Streams) -> Array:
        """Return the initial parameters, float32 (P,)."""
        ...


@dataclass(frozen=True)
class Mlp:
    """A multilayer perceptron with ReLU and softmax cross-entropy; without hidden layers it is softmax regression.

    `sizes` are the widths: inputs, hidden …, classes. `init` is he, glorot, torch, zeros or normal, with standard
    deviation `std`.
    """

    sizes: tuple[int, ...]
    init: str = "he"
    std: float = 1.0

    @property
    def layout(self) -> Layout:
        """W1 (inputs, hidden), b1 (hidden,), W2, b2, …."""
        tensors: list[tuple[str, tuple[int, ...]]] = []
        for layer, (inputs, outputs) in enumerate(pairwise(self.sizes), start=1):
            tensors += [(f"W{layer}", (inputs, outputs)), (f"b{layer}", (outputs,))]
        return Layout(tuple(tensors))

    @property
    def graph(self) -> Graph:
        """Dense layers with ReLU between them."""
        nodes: list[Node] = []
        for layer, outputs in enumerate(self.sizes[1:], start=1):
            if nodes:
                nodes.append(Node(Relu(), (len(nodes),)))
            nodes.append(Node(Linear(outputs), (len(nodes),), (("weight", f"W{layer}"), ("bias", f"b{layer}"))))
        return Graph(self.sizes[:1], (), tuple(nodes), CrossEntropy(), self.layout)

    def initial(self, streams: Streams) -> Array:
        """Return the initial parameters, float32 (P,): weights drawn by `init` on every layer (initial_parameters)."""
        return initial_parameters(self.graph, streams, self.init, self.std)
