"""The multilayer perceptron and its initial parameters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from fredsim.networks.graph import Graph, Node
from fredsim.networks.initial import initial_parameters
from fredsim.networks.layout import Layout
from fredsim.networks.network import Network
from fredsim.numerics.arrays import Array
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.pointwise import Relu
from fredsim.numerics.streams import Streams

__all__ = ["Mlp", "as_mlp"]


@dataclass(frozen=True)
class Mlp(Network):
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

    @cached_property
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


def as_mlp(graph: Graph) -> Mlp | None:
    """Return the multilayer perceptron that a graph is, None if it is another network; its initial weights differ."""
    widths = [node.operator.outputs for node in graph.nodes if isinstance(node.operator, Linear)]
    if not widths or len(graph.sample) != 1:
        return None
    found = Mlp((*graph.sample, *widths))
    return found if found.graph == graph else None
