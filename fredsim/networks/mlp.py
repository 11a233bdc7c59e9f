"""The multilayer perceptron and its initial parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fredsim.networks.graph import Graph, Node
from fredsim.networks.layout import Layout
from fredsim.networks.network import Network
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.pointwise import Relu
from fredsim.numerics.streams import Stream, Streams, Words, normal_quantile, uniform24

__all__ = ["Mlp", "as_mlp"]

Array = NDArray[np.float32]


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
        """Return the initial parameters, float32 (P,): weights drawn by `init` on every layer, biases 0.

        he: N(0, 2/inputs) (He et al. 2015); glorot: U(±√(6/(inputs + outputs))) (Glorot and Bengio 2010);
        normal: N(0, std²); torch: U(±1/√inputs), also for the biases, as in PyTorch's Linear.
        """
        params = np.zeros(self.layout.size, np.float32)
        views, at = self.layout.split(params), 0
        for step, (inputs, outputs) in enumerate(pairwise(self.sizes)):
            if self.init == "zeros":
                continue
            drawn = views[f"W{step + 1}"].reshape(-1)
            if self.init == "torch":
                drawn = params[at : at + (inputs + 1) * outputs]  # W in C order, followed by b
            at += (inputs + 1) * outputs
            for part, words in streams.parts_of_words(Stream.PARAMETERS, len(drawn), step):
                drawn[part] = self._drawn(words, inputs, outputs)
        return params

    def _drawn(self, words: Words, inputs: int, outputs: int) -> Array:
        """Return a layer's weights, float32 (n,), one for each random word (n,)."""
        if self.init in {"glorot", "torch"}:
            limit = np.float32(math.sqrt(6 / (inputs + outputs) if self.init == "glorot" else 1 / inputs))
            uniform = uniform24(words).astype(np.float32)  # exact
            return limit * (np.float32(2) * uniform - np.float32(1))
        std = math.sqrt(2 / inputs) if self.init == "he" else self.std
        with np.errstate(over="ignore"):  # a run refuses initial parameters that are not finite, and names the key
            return (normal_quantile(words) * std).astype(np.float32)


def as_mlp(graph: Graph) -> Mlp | None:
    """Return the multilayer perceptron that a graph is, None if it is another network; its initial weights differ."""
    widths = [node.operator.outputs for node in graph.nodes if isinstance(node.operator, Linear)]
    if not widths or len(graph.sample) != 1:
        return None
    found = Mlp((*graph.sample, *widths))
    return found if found.graph == graph else None
