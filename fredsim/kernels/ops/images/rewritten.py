"""Writes a graph with images where sequences would be computed by definitions, or be copied; it has the same bits."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from fredsim.kernels.ops.images.repeated import RepeatedPixels
from fredsim.networks.graph import Graph, Node, numbers_of
from fredsim.numerics.ops.arithmetic import Mul
from fredsim.numerics.ops.norms import BatchNorm, FrozenBatchNorm, GroupNorm
from fredsim.numerics.ops.operator import Operator
from fredsim.numerics.ops.sources import Constant
from fredsim.numerics.ops.views import Permute, Reshape

__all__ = ["with_images"]


class _Writer:
    """The nodes of the new graph, and the numbers that the values of the old one have there."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.numbers = [0]

    def add(self, operator: Operator, *inputs: int, like: Node | None = None) -> int:
        """Add a node with the tensors of another one; return its number."""
        self.nodes.append(Node(operator, inputs, like.tensors if like else ()))
        return len(self.nodes)


def with_images(graph: Graph) -> Graph:
    """Return the graph with norms of sequences as those of images, and without copies of images' elements.

    The norm of a sequence of n positions is that of an image of n rows of one column. Channels that become the last
    axis after rows and columns were joined become it before, when the elements already lie so. Pixels that are repeated
    by a product with ones are so by one node. What stands for several nodes stands at the place of the first, at which
    these send the image its error: others may add to that before the last. If the output were not the last value then,
    as nobody takes some value between these nodes, the graph stays as it is.
    """
    used = Counter(i for node in graph.nodes for i in node.inputs)
    used[len(graph.nodes)] += 1
    to, shapes, turned, repeated = _Writer(), graph.shapes, _joined_first(graph, used), _repeated(graph, used)
    for number, node in enumerate(graph.nodes, start=1):
        operator, inputs = node.operator, tuple(to.numbers[i] for i in node.inputs)
        shape = shapes[node.inputs[0]]
        if number in turned:
            to.numbers.append(to.add(Reshape(shapes[number][::-1]), to.add(Permute((1, 2, 0)), *inputs)))
        elif number in repeated:
            source, pixels = repeated[number]
            to.numbers.append(to.numbers[source] if pixels is None else to.add(pixels, to.numbers[source]))
        elif turned.intersection(node.inputs):  # it is done
            to.numbers.append(inputs[0])
        elif isinstance(operator, BatchNorm | FrozenBatchNorm | GroupNorm) and len(shape) != 3:
            image = to.add(Reshape((shape[0], math.prod(shape[1:]), 1)), *inputs)
            to.numbers.append(to.add(Reshape(_sizes(shape)), to.add(operator, image, like=node)))
        else:
            to.numbers.append(to.add(operator, *inputs, like=node))
    while to.numbers[-1] < len(to.nodes) and isinstance(to.nodes[-1].operator, Constant | Reshape):
        to.nodes.pop()  # the ones of a product that is written otherwise: nobody takes them
    changed = (len(to.nodes) != len(graph.nodes) or turned) and to.numbers[-1] == len(to.nodes)
    return replace(graph, nodes=tuple(to.nodes)) if changed else graph


def _sizes(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if len(shape) > 1 else (-1,)


def _repeated(graph: Graph, used: Counter[int]) -> dict[int, tuple[int, RepeatedPixels | None]]:
    """Return of nodes that repeat an image's pixels: of the first, the image's number, and what it is written as.

    Of the others, return the first's number. (C, H, W) becomes (C, H, 1, W, 1); a product with ones makes
    (C, H, r, W, c) of it, which becomes (C, H·r, W·c).
    """
    found = dict[int, tuple[int, RepeatedPixels | None]]()
    for number, node in enumerate(graph.nodes, start=1):
        product = node.inputs[0]
        if not isinstance(node.operator, Reshape) or not product or used[product] != 1:
            continue
        times = graph.nodes[product - 1]
        if not isinstance(times.operator, Mul) or len(graph.shapes[product]) != 5:
            continue
        before, ones = times.inputs
        if not before or not ones or used[before] != 1:
            continue
        first, factor = graph.nodes[before - 1], numbers_of(graph.nodes, graph.shapes, ones)
        channels, rows, down, columns, across = graph.shapes[product]
        source = first.inputs[0]
        if (
            isinstance(first.operator, Reshape)
            and factor is not None
            and factor.shape == (1, 1, down, 1, across)
            and bool((factor == 1).all())
            and graph.shapes[source] == (channels, rows, columns)
            and graph.shapes[number] == (channels, rows * down, columns * across)
        ):
            found |= {before: (source, RepeatedPixels(down, across)), product: (before, None), number: (before, None)}
    return found


def _joined_first(graph: Graph, used: Counter[int]) -> set[int]:
    """Return which nodes join rows and columns of an image alone, for a node that then puts the channels last."""
    found = set()
    for node in graph.nodes:
        source = node.inputs[0]
        if source == 0 or not isinstance(node.operator, Permute) or node.operator.axes != (1, 0) or used[source] != 1:
            continue
        before = graph.nodes[source - 1]
        shape = graph.shapes[before.inputs[0]]
        if isinstance(before.operator, Reshape) and len(shape) == 3 and shape[0] == graph.shapes[source][0]:
            found.add(source)
    return found
