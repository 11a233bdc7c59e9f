"""Finds nodes that one pass over memory computes together: a norm, a sum of its output and another, a ReLU.

No operation changes, nor the order in which errors are added. A norm's output that only the sum or the ReLU takes need
not be written; nor need that of the sum.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fredsim.kernels.ops.images.norms import NormKernels
from fredsim.networks.graph import Graph
from fredsim.numerics.ops.arithmetic import Add
from fredsim.numerics.ops.norms import BatchNorm, FrozenBatchNorm, GroupNorm
from fredsim.numerics.ops.pointwise import Relu

__all__ = ["Joined", "find_joined"]


@dataclass(frozen=True)
class Joined:
    """Which nodes are computed by a later one's kernels, by number.

    `norms` has the number of the norm of the node, by its number, that ends what is computed together; `inputs` the
    values that this node then takes: the norm's input, and what is added to the norm's output.
    """

    followed: set[int] = field(default_factory=set)
    norms: dict[int, int] = field(default_factory=dict)
    inputs: dict[int, tuple[int, ...]] = field(default_factory=dict)


def find_joined(graph: Graph) -> Joined:
    """Return what a graph's norms are computed with."""
    joined, used = Joined(), Counter(i for node in graph.nodes for i in node.inputs)
    used[len(graph.nodes)] += 1  # the loss
    tensors = Counter(name for node in graph.nodes for _, name in node.tensors)
    for number, node in enumerate(graph.nodes, start=1):
        shapes = [graph.shapes[i] for i in node.inputs]
        alone = all(tensors[name] == 1 for _, name in node.tensors)
        norm = isinstance(node.operator, BatchNorm | FrozenBatchNorm | GroupNorm)
        if not (norm and NormKernels.takes(node.operator, shapes) and alone):
            continue
        # If others take the norm's input, too, errors must be added to its error in the nodes' order.
        if used[node.inputs[0]] == 1:
            _join(graph, number, used, joined)
    return joined


def _join(graph: Graph, number: int, used: Counter[int], joined: Joined) -> None:
    """Join a norm with what follows it, if it does."""
    last, inputs = number, graph.nodes[number - 1].inputs
    add = _taker(graph, last, used)
    if add and isinstance(graph.nodes[add - 1].operator, Add):
        a, b = graph.nodes[add - 1].inputs
        other = a if b == number else b
        if graph.shapes[a] == graph.shapes[b] and other not in joined.followed:
            last, inputs = add, (*inputs, other)
    relu = _taker(graph, last, used)
    # A sum's error goes to what is added when the sum's turn comes: no node may come between it and the ReLU.
    if relu and isinstance(graph.nodes[relu - 1].operator, Relu) and (last == number or relu == last + 1):
        if last != number:
            joined.followed.add(last)
        last = relu
    if last != number:
        joined.followed.add(number)
        joined.norms[last] = number
        joined.inputs[last] = inputs


def _taker(graph: Graph, number: int, used: Counter[int]) -> int:
    """Return the number of the only node that takes a value, once; 0 if there are more or none."""
    if used[number] != 1 or number == len(graph.nodes):
        return 0
    return next(i for i, node in enumerate(graph.nodes, start=1) if number in node.inputs)
