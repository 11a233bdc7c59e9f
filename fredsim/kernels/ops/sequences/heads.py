"""Attention whose queries, keys and values are read where they lie, without copies in the order of heads.

A network cuts queries, keys and values out of other values and sorts them by heads, and what attention returns by
places. `fuse_heads` writes such a part of a graph as one node, which has the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fredsim.kernels.ops.operator import JoinedNodes
from fredsim.kernels.ops.sequences.attention import AttentionKernels
from fredsim.networks.graph import Graph, Node
from fredsim.numerics.ops.attention import Attention
from fredsim.numerics.ops.operator import Shape
from fredsim.numerics.ops.views import Permute, Reshape, Slice

__all__ = ["HeadsAttention", "HeadsKernels", "fuse_heads"]

Indices = NDArray[np.int64]


class Lie(NamedTuple):
    """Where an array (heads, rows, columns) lies in an input: element (h, r, c) is begin + h·head + r·row + c."""

    input: int
    begin: int
    head: int
    row: int


@dataclass(frozen=True)
class HeadsAttention(JoinedNodes):
    """Attention of q, k and v that lie in the inputs; each element of these belongs to one of them.

    `parts` are the shapes of q, k and v, (heads, rows, columns), and `lies` where they lie; `output` is the output's
    shape, in which what attention returns lies as `output_lie` says. It has no definition of its own: the nodes that
    it stands for have it.
    """

    attention: Attention
    parts: tuple[Shape, ...]
    lies: tuple[Lie, ...]
    output: Shape
    output_lie: Lie
    inputs: ClassVar[int | None] = None

    @property
    def draws(self) -> bool:
        return self.attention.draws

    def shape(self, *shapes: Shape) -> Shape:
        del shapes
        return self.output


class HeadsKernels(AttentionKernels):
    """HeadsAttention, of plain values."""

    def __init__(self, operator: HeadsAttention, shapes: Sequence[Shape], tensors: Any) -> None:
        """Keep where everything lies."""
        super().__init__(operator.attention, operator.parts, tensors)
        self._heads, self._given = operator, [math.prod(shape) for shape in shapes]

    def _strides(self) -> dict[str, int]:
        strides = {}
        for name, lie in zip("qkv", self._heads.lies, strict=True):
            strides |= {f"{name}_begin": lie.begin, f"{name}_sample": self._given[lie.input]}
            strides |= {f"{name}_head": lie.head, f"{name}_row": lie.row}
        lie = self._heads.output_lie
        return strides | {"out_sample": math.prod(self._heads.output), "out_head": lie.head, "out_row": lie.row}

    def _parts(self, values: Sequence[Any]) -> dict[str, Any]:
        return {name: values[lie.input] for name, lie in zip("qkv", self._heads.lies, strict=True)}


def fuse_heads(graph: Graph) -> Graph:
    """Return the graph with HeadsAttention for attention and the views around it, wherever that is possible."""
    number = len(graph.nodes)
    while number > 0:
        if isinstance(graph.nodes[number - 1].operator, Attention):
            graph = _fuse(graph, number) or graph
        number = min(number, len(graph.nodes) + 1) - 1
    return graph


def _fuse(graph: Graph, number: int) -> Graph | None:
    """Return the graph with one node for attention, node `number`, and the views around it; None if they do not fit."""
    node, shapes, users = graph.nodes[number - 1], graph.shapes, _users(graph)
    attention = node.operator
    assert isinstance(attention, Attention)
    gone, last, places = {number}, number, np.arange(math.prod(shapes[number])).reshape(1, *shapes[number])
    while len(users[last]) == 1 and isinstance(graph.nodes[users[last][0] - 1].operator, Permute | Reshape):
        last = users[last][0]
        gone.add(last)
        places = graph.nodes[last - 1].operator.forward([places], {})[0]
    found = _sources(graph, users, node.inputs, gone)
    sources = sorted({source for source, _ in found})
    lies = [_lie(sources.index(source), indices) for source, indices in found]
    output = _lie(0, np.argsort(places, axis=None).reshape(shapes[number]))
    if output is None or output.begin or None in lies or len(set(node.inputs)) < len(node.inputs):
        return None
    for source in sources:  # every element must belong to one of q, k and v, and to nothing else
        own = np.concatenate([indices.reshape(-1) for one, indices in found if one == source])
        whole = np.array_equal(np.sort(own), np.arange(math.prod(shapes[source])))
        if not (whole and set(users[source]) <= gone):
            return None
    parts = tuple(_three(shapes[i]) for i in node.inputs)
    fused = HeadsAttention(attention, parts, tuple(lies), shapes[last], output)  # type: ignore[arg-type]
    # It has attention's place, as drawing nodes are counted in their order.
    return _without(graph, gone, number, last, Node(fused, tuple(sources)))


def _users(graph: Graph) -> list[list[int]]:
    """Return which nodes take each value."""
    users: list[list[int]] = [[] for _ in range(len(graph.nodes) + 1)]
    for number, node in enumerate(graph.nodes, start=1):
        for i in node.inputs:
            users[i].append(number)
    return users


def _sources(graph: Graph, users: list[list[int]], numbers: Sequence[int], gone: set[int]) -> list[tuple[int, Indices]]:
    """Return for each value which value it is a view of, and which elements it has of that.

    Add the nodes between them to `gone`; only nodes in `gone` take their values.
    """
    found = [(i, np.arange(math.prod(graph.shapes[i])).reshape(graph.shapes[i])) for i in numbers]
    views = [i for i in numbers if i]
    while views:
        view = views.pop()
        node = graph.nodes[view - 1]
        if not isinstance(node.operator, Slice | Permute | Reshape) or view in gone or not set(users[view]) <= gone:
            continue
        (above,) = node.inputs
        whole = np.arange(math.prod(graph.shapes[above])).reshape(1, *graph.shapes[above])
        elements = node.operator.forward([whole], {})[0].reshape(-1)
        found = [(above, elements[indices]) if i == view else (i, indices) for i, indices in found]
        gone.add(view)
        views += [above] if above else []
    return found


def _three(shape: Shape) -> Shape:
    return math.prod(shape[:-2]), *shape[-2:]


def _lie(number: int, indices: Indices) -> Lie | None:
    """Return where elements (…, rows, columns) lie in an input; None if rows are not whole or not equally far apart."""
    three = indices.reshape(_three(indices.shape))
    heads, rows, columns = three.shape
    begin = int(three[0, 0, 0])
    head = int(three[1, 0, 0]) - begin if heads > 1 else 0
    row = int(three[0, 1, 0]) - begin if rows > 1 else columns
    wanted = begin + head * np.arange(heads)[:, None, None] + row * np.arange(rows)[:, None] + np.arange(columns)
    return Lie(number, begin, head, row) if np.array_equal(three, wanted) else None


def _without(graph: Graph, gone: set[int], number: int, last: int, fused: Node) -> Graph | None:
    """Return the graph without the nodes `gone`; another one stands at `number` for what `last` of them returns.

    None if the output would not be the last value then, as nobody takes some value between these.
    """
    numbers, nodes = {0: 0}, []
    for place, node in enumerate(graph.nodes, start=1):
        if place in gone and place != number:
            continue
        kept = fused if place == number else node
        nodes.append(replace(kept, inputs=tuple(numbers[i] for i in kept.inputs)))
        numbers[last if place == number else place] = len(nodes)
    return replace(graph, nodes=tuple(nodes)) if numbers[len(graph.nodes)] == len(nodes) else None
