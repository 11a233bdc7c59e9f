"""Initial parameters of a network, drawn portably: what each tensor starts from follows from the node that takes it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fredsim.networks.graph import Graph, Node
from fredsim.networks.network import Network
from fredsim.numerics.arrays import Array
from fredsim.numerics.ops.arithmetic import Mul
from fredsim.numerics.ops.conv2d import Conv2d
from fredsim.numerics.ops.embedding import Embedding
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.norms import BatchNorm, FrozenBatchNorm, GroupNorm, LayerNorm, RmsNorm
from fredsim.numerics.ops.operator import Operator, Shape
from fredsim.numerics.ops.pointwise import Reciprocal, Sqrt
from fredsim.numerics.ops.products import MatMul
from fredsim.numerics.ops.sources import Constant, Parameter
from fredsim.numerics.ops.views import Cat, Permute, Reshape, Slice
from fredsim.numerics.streams import Stream, Streams, Words, normal_quantile, uniform24

__all__ = ["INITS", "DrawnNetwork", "initial_parameters"]

#: The ways to draw weights.
INITS = ("he", "glorot", "torch", "zeros", "normal")
NORMS = (GroupNorm, LayerNorm, RmsNorm, BatchNorm, FrozenBatchNorm)


class Weight(NamedTuple):
    """A weight that is drawn, its fans (inputs and outputs of a unit; 0 of a table), and the bias beside it, if any."""

    name: str
    inputs: int
    outputs: int
    bias: str | None


class DrawnNetwork(Network):
    """A graph, and how its initial parameters are drawn: `init` and `std` of fredsim.networks.initial."""

    def __init__(self, graph: Graph, init: str = "he", std: float = 1.0) -> None:
        self._graph, self._init, self._std = graph, init, std

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self._graph

    def initial(self, streams: Streams) -> Array:
        """Return the initial parameters, float32 (P,)."""
        return initial_parameters(self._graph, streams, self._init, self._std)


def initial_parameters(graph: Graph, streams: Streams, init: str = "he", std: float = 1.0) -> Array:
    """Return the initial parameters of a graph, float32 (P,), weights drawn by `init`.

    he: N(0, 2/inputs) (He et al. 2015); glorot: U(±√(6/(inputs + outputs))) (Glorot and Bengio 2010); torch:
    U(±1/√inputs), also for the biases, as in PyTorch's Linear and Conv2d; normal: N(0, std²); zeros. A convolution's
    inputs and outputs count once for each place of the kernel, and its inputs are those of one group. The table of an
    embedding is N(0, 1), with normal N(0, std²); one that a dense layer shares is drawn as that layer's weight. Norms
    start from γ = 1 and β = 0, frozen statistics from mean 0 and variance 1; all other tensors from 0.

    Element i of the weight that is number k of the drawn ones, in the layout's order, has the draw (element i, step k)
    of the stream of parameters; with `torch`, a bias has the elements after its weight's. Raises ValueError for another
    `init`.
    """
    if init not in INITS:
        raise ValueError(f"init is {init!r}; it must be {', '.join(INITS[:-1])} or {INITS[-1]}")
    params = np.zeros(graph.layout.size, np.float32)
    views = graph.layout.split(params)
    for node in graph.nodes:
        for role, name in node.tensors:
            if isinstance(node.operator, NORMS) and role in {"weight", "variance"}:
                views[name].fill(1)
    for name in _scales(graph):
        views[name].fill(1)
    for step, weight in enumerate(_weights(graph)) if init != "zeros" else ():
        names = [weight.name, weight.bias] if init == "torch" and weight.bias else [weight.name]
        drawn = np.empty(sum(views[name].size for name in names), np.float32)
        for part, words in streams.parts_of_words(Stream.PARAMETERS, len(drawn), step):
            drawn[part] = _drawn(words, weight, init, std)
        begin = 0
        for view in (views[name] for name in names):
            view[...] = drawn[begin : begin + view.size].reshape(view.shape)
            begin += view.size
    for direction, length in _lengths(graph):
        if init == "zeros":  # a vector of length 0 has no direction
            views[direction].fill(1)
            continue
        view = views[length]
        missing = views[direction].ndim - view.ndim
        kept = [i for i in range(views[direction].ndim) if i >= missing and view.shape[i - missing] > 1]
        vectors = np.moveaxis(views[direction], kept, range(len(kept))).reshape(view.size, -1)
        squares = np.square(vectors, dtype=np.float64)
        view[...] = np.sqrt(np.add.accumulate(squares, axis=1)[:, -1]).reshape(view.shape)  # in one order everywhere
    return params


def _origin(graph: Graph, value: int) -> Node | None:
    """Return the node whose elements a value has, in whatever order, with constants beside them perhaps."""
    while value:
        node = graph.nodes[value - 1]
        if isinstance(node.operator, Cat):
            own = [i for i in node.inputs if not isinstance(getattr(_origin(graph, i), "operator", None), Constant)]
            if len(own) != 1:
                return None
            (value,) = own
        elif isinstance(node.operator, Reshape | Permute | Slice):
            (value,) = node.inputs
        else:
            return node
    return None


def _parameter(graph: Graph, value: int) -> str | None:
    """Return the name of the tensor that a value has the elements of; None of any other value."""
    node = _origin(graph, value)
    return node.tensors[0][1] if node is not None and isinstance(node.operator, Parameter) else None


def _scales(graph: Graph) -> Iterator[str]:
    """Yield the tensors by which results of norms without tensors are multiplied: γ without β, or of several axes."""
    for node in graph.nodes:
        if isinstance(node.operator, Mul):
            for value, other in (node.inputs, node.inputs[::-1]):
                norm, name = _origin(graph, value), _parameter(graph, other)
                if name is not None and norm is not None and isinstance(norm.operator, NORMS) and not norm.tensors:
                    yield name


def _lengths(graph: Graph) -> Iterator[tuple[str, str]]:
    """Yield the tensors v and g of weights v·(g·1/‖v‖), weight norm's."""
    for node in graph.nodes:
        if isinstance(node.operator, Mul) and (found := _weight_norm(graph, node)) is not None:
            yield found


def _weight_norm(graph: Graph, node: Node) -> tuple[str, str] | None:
    """Return the names of v and g if a product is v·(g·1/‖v‖)."""
    direction, factor = _parameter(graph, node.inputs[0]), _origin(graph, node.inputs[1])
    if direction is None or factor is None or not isinstance(factor.operator, Mul):
        return None
    length, below = _parameter(graph, factor.inputs[0]), _origin(graph, factor.inputs[1])
    if length is None or below is None or not isinstance(below.operator, Reciprocal):
        return None
    root = _origin(graph, below.inputs[0])
    return (direction, length) if root is not None and root.operator == Sqrt(flat=True) else None


def _weights(graph: Graph) -> Iterator[Weight]:
    """Yield the weights that are drawn, in the layout's order."""
    found: dict[str, Weight] = {}
    for node in graph.nodes:
        weight = _product(graph, node) if isinstance(node.operator, MatMul) else _layer(graph, node)
        if weight is not None and (weight.name not in found or not found[weight.name].inputs):
            found[weight.name] = weight  # a dense layer comes before an embedding
    return (found[name] for name, _ in graph.layout.tensors if name in found)


def _layer(graph: Graph, node: Node) -> Weight | None:
    """Return the weight of a dense layer, a convolution or an embedding; None of another node."""
    tensors = dict(node.tensors)
    name = tensors.get("weight")
    if name is None or not isinstance(node.operator, Linear | Conv2d | Embedding):
        return None
    return Weight(name, *_fans(node.operator, dict(graph.layout.tensors)[name]), tensors.get("bias"))


def _product(graph: Graph, node: Node) -> Weight | None:
    """Return the weight that a product of matrices takes: of a transposed convolution, weight norm's v, or another."""
    value = node.inputs[1]
    name, origin = _parameter(graph, value), _origin(graph, value)
    if name is None and origin is not None and isinstance(origin.operator, Mul):
        name = (_weight_norm(graph, origin) or (None,))[0]
    if name is None:
        return None
    shape = dict(graph.layout.tensors)[name]
    if len(shape) > 3:  # inputs, outputs, rows, columns
        return Weight(name, *_fans(node.operator, shape), None)
    inputs, outputs = graph.shapes[value][-2:]
    return Weight(name, inputs, outputs, None)


def _fans(operator: Operator, weight: Shape) -> tuple[int, int]:
    """Return how many inputs a unit has, and how many units an input reaches; (0, 0) for a table."""
    if isinstance(operator, Embedding):
        return 0, 0
    if isinstance(operator, Linear) and operator.layout == "in_out":
        return weight[0], weight[1]
    places = math.prod(weight[2:])
    return weight[1] * places, weight[0] * places


def _drawn(words: Words, weight: Weight, init: str, std: float) -> Array:
    """Return elements of a weight, float32 (n,), one for each random word (n,)."""
    inputs, outputs = weight.inputs, weight.outputs
    if inputs and init in {"glorot", "torch"}:
        limit = np.float32(math.sqrt(6 / (inputs + outputs) if init == "glorot" else 1 / inputs))
        uniform = uniform24(words).astype(np.float32)  # exact
        return limit * (np.float32(2) * uniform - np.float32(1))
    if init != "normal":
        std = math.sqrt(2 / inputs) if inputs else 1.0
    with np.errstate(over="ignore"):  # a run refuses initial parameters that are not finite, and names the key
        return (normal_quantile(words) * std).astype(np.float32)
