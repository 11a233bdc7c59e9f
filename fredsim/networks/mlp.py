"""The multilayer perceptron and its initial parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from fredsim.networks.graph import Graph, Node
from fredsim.networks.initial import initial_parameters
from fredsim.networks.layout import Layout
from fredsim.networks.network import Network
from fredsim.numerics.arrays import Array
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.pointwise import Relu
from fredsim.numerics.ops.views import Reshape
from fredsim.numerics.streams import Streams

__all__ = ["DenseLayer", "DenseLayers", "Mlp", "as_mlp", "dense_layers"]


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


class DenseLayer(NamedTuple):
    """A layer's tensors by their names, and whether its weight is (inputs, outputs); if not, it is PyTorch's."""

    weight: str
    bias: str
    by_inputs: bool


class DenseLayers(NamedTuple):
    """A network that computes what an Mlp of these `sizes` does; its tensors may have any names and order."""

    sizes: tuple[int, ...]
    layers: tuple[DenseLayer, ...]
    layout: Layout

    def split(self, params: Array) -> Iterator[tuple[Array, Array]]:
        """Yield each layer's weight (inputs, outputs) and bias (outputs,), views of the flat vector (P,)."""
        views = self.layout.split(params)
        for layer in self.layers:
            weight = views[layer.weight]
            yield weight if layer.by_inputs else weight.T, views[layer.bias]


def dense_layers(graph: Graph) -> DenseLayers | None:
    """Return the layers of a graph that computes what an Mlp does, None if it is another network."""
    in_a_row = all(node.inputs == (number,) for number, node in enumerate(graph.nodes))
    if not in_a_row or any(len(shape) != 1 for shape in graph.shapes[1:]) or graph.frozen:
        return None
    nodes = [node for node in graph.nodes if not isinstance(node.operator, Reshape)]  # which moves no number
    dense = [(node.operator, dict(node.tensors)) for node in nodes if isinstance(node.operator, Linear)]
    sizes = math.prod(graph.sample), *(operator.outputs for operator, _ in dense)
    found = [replace(each, layout="in_out") if isinstance(each := node.operator, Linear) else each for node in nodes]
    if not dense or found != [node.operator for node in Mlp(sizes).graph.nodes] or graph.loss != CrossEntropy():
        return None
    layers = [DenseLayer(named["weight"], named["bias"], each.layout == "in_out") for each, named in dense]
    names = [name for layer in layers for name in (layer.weight, layer.bias)]
    if sorted(names) != sorted(graph.layout.slices):  # one is used twice, or not at all
        return None
    return DenseLayers(sizes, tuple(layers), graph.layout)


def as_mlp(graph: Graph) -> Mlp | None:
    """Return the multilayer perceptron that a graph is, None if it is another network; its initial weights differ."""
    layers = dense_layers(graph)
    found = Mlp(layers.sizes) if layers else None
    return found if found and found.graph == graph else None
