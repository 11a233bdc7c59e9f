"""PyTorch's tensors as values of a graph, whose samples come first: where each axis of a tensor lies in its value.

PyTorch's views may put the minibatch's axis anywhere, and join it with others, as nn.MultiheadAttention does. So a
traced tensor has, for each dimension, the axes of the graph's value that it consists of, of which BATCH is one. Views
change only that; a node for the same elements in another order is added where an operator needs it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fredsim.networks.graph import Node, numbers_of
from fredsim.numerics.ops.attention import Attention
from fredsim.numerics.ops.dropout import Dropout
from fredsim.numerics.ops.operator import Array, Operator, Shape
from fredsim.numerics.ops.positions import Positions
from fredsim.numerics.ops.sources import Constant, Parameter
from fredsim.numerics.ops.views import Permute, Reshape, Slice

__all__ = ["BATCH", "Axis", "Builder", "Dim", "Size", "Traced", "UnsupportedError"]


class UnsupportedError(Exception):
    """What about an operator's call is outside the set; `instead` is the operator of the set to use, if one is near.

    `native`: whether PyTorch may compute the module.
    """

    def __init__(self, text: str, instead: str = "", *, native: bool = True) -> None:
        super().__init__(text)
        self.instead, self.native = instead, native


@dataclass(frozen=True, eq=False)
class Axis:
    """A factor of a dimension, of over one element, but for BATCH."""

    size: int


BATCH = Axis(1)  # the samples; it counts as 1 wherever sizes are multiplied
Dim = tuple[
    Axis, ...
]  # the axes that a dimension is the product of, the slowest first; () is a dimension of one element


@dataclass(frozen=True)
class Size:
    """The size of a dimension: `count`, times the number of samples if `batch`."""

    count: int
    batch: bool = False


@dataclass(frozen=True)
class Traced:
    """A tensor: a value of the graph, whose elements of a sample lie in the order of `axes`, as dimensions of them.

    A tensor without BATCH is the same for every sample.
    """

    value: int
    axes: tuple[Axis, ...]
    dims: tuple[Dim, ...]

    @property
    def batch(self) -> int | None:
        """The dimension that has the samples; None if none has."""
        return next((i for i, dim in enumerate(self.dims) if BATCH in dim), None)

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The sizes of the dimensions."""
        return tuple(Size(count_of(dim), BATCH in dim) for dim in self.dims)


def count_of(dim: Dim) -> int:
    """Return the number of elements of a dimension, samples apart."""
    return math.prod(axis.size for axis in dim)


def without_batch(dim: Dim) -> Dim:
    """Return the other axes of a dimension."""
    return tuple(axis for axis in dim if axis is not BATCH)


class Builder:
    """Nodes of a graph that grows."""

    def __init__(self, sample: Shape, tensors: dict[str, Shape], *, apart: bool = False) -> None:
        """Begin without nodes; `apart`: dropout does not become a part of attention."""
        self.apart = apart
        self.fused: list[int] = []  # results of dropout that attention draws itself
        self.shapes: list[Shape] = [sample]
        self.nodes: list[Node] = []
        self._tensors = tensors
        self._known: dict[Node, int] = {}
        #: By the value of a batch norm, each time that it is computed: the names of the running statistics that follow
        #: it, "" if none do, and their momentum.
        self.running: dict[int, list[tuple[str, str, float]]] = {}

    def add(self, operator: Operator, *inputs: int, tensors: dict[str, str] | None = None) -> int:
        """Return the value of an operator; without inputs it takes the sample. An equal node is not added again.

        Raises UnsupportedError if it does not take such inputs, or has other tensors.
        """
        taken = inputs or (0,)
        node = Node(operator, taken, tuple((tensors or {}).items()))
        random = isinstance(operator, Dropout) or (isinstance(operator, Attention) and operator.dropout > 0)
        if node in self._known and not random:
            return self._known[node]
        given = [self.shapes[i] for i in taken]
        try:
            wanted, shape = operator.tensors(*given), operator.shape(*given)
        except ValueError as error:
            raise UnsupportedError(str(error)) from error
        found = {role: self._tensors[name] for role, name in node.tensors}
        if wanted != found:
            raise UnsupportedError(f"takes the tensors {wanted}, not {found}")
        self.nodes.append(node)
        self.shapes.append(shape)
        self._known[node] = len(self.nodes)
        return len(self.nodes)

    def reshaped(self, value: int, shape: Shape) -> int:
        """Return the elements of a value in another shape."""
        while value and isinstance(self.nodes[value - 1].operator, Reshape):
            value = self.nodes[value - 1].inputs[0]
        sizes = shape if len(shape) != 1 else (-1,)
        return value if self.shapes[value] == shape else self.add(Reshape(sizes), value)

    def permuted(self, value: int, order: tuple[int, ...]) -> int:
        """Return a value whose axes have another order."""
        if isinstance(before := self.operator(value), Permute):
            value, order = self.inputs(value)[0], tuple(before.axes[i] for i in order)
        return value if order == tuple(range(len(order))) else self.add(Permute(order), value)

    def operator(self, value: int) -> Operator | None:
        """Return the operator of a value; None of the sample."""
        return self.nodes[value - 1].operator if value else None

    def inputs(self, value: int) -> tuple[int, ...]:
        """Return the values that the operator of a value takes."""
        return self.nodes[value - 1].inputs

    def of_samples(self, value: int) -> bool:
        """Return whether a value depends on the sample."""
        if isinstance(self.operator(value), Constant | Parameter | Positions):
            return False
        return value == 0 or any(map(self.of_samples, self.inputs(value)))

    def numbers(self, value: int) -> Array | None:
        """Return the numbers of a constant; None of any other value."""
        return numbers_of(self.nodes, self.shapes, value)

    def traced(self, value: int, batch: bool = True) -> Traced:
        """Return a value as a tensor with the samples as its first dimension, or without samples."""
        dims = self.fresh(self.shapes[value])
        axes = tuple(axis for dim in dims for axis in dim)
        return Traced(value, axes, ((BATCH,), *dims) if batch else dims)

    @staticmethod
    def fresh(shape: Shape) -> tuple[Dim, ...]:
        """Return dimensions of new axes, one each."""
        return tuple((Axis(size),) if size > 1 else () for size in shape)

    def arranged(self, x: Traced, dims: Sequence[Dim]) -> int:
        """Return a value with these dimensions, which have all axes of a tensor but BATCH, in their order."""
        value, runs = x.value, list[list[int]]()  # neighbours of one dimension that stay so are moved together
        for dim in dims:
            before = -2
            for place in (x.axes.index(axis) for axis in dim):
                if place == before + 1:
                    runs[-1].append(place)
                else:
                    runs.append([place])
                before = place
        if runs != sorted(runs):
            old = sorted(runs)
            value = self.reshaped(value, tuple(math.prod(x.axes[i].size for i in run) for run in old))
            value = self.permuted(value, tuple(old.index(run) for run in runs))
        return self.reshaped(value, tuple(map(count_of, dims)))

    def sample_first(self, x: Traced) -> int:
        """Return a tensor's value in the order of its dimensions, which the samples have the first of, or none."""
        if x.batch is None:
            return self.arranged(x, x.dims)
        if x.dims[0] != (BATCH,):
            raise UnsupportedError(f"is called with samples on another axis than the first: {shown(x)}")
        return self.arranged(x, x.dims[1:])

    def rows(self, x: Traced, kept: int = 1) -> tuple[int, tuple[Dim, ...]]:
        """Return a value (…, last dimensions), and the dimensions before the `kept` last ones.

        It is for operators that treat these as so many rows, wherever the samples are among them.
        """
        lead, last = x.dims[: len(x.dims) - kept], x.dims[len(x.dims) - kept :]
        if any(BATCH in dim for dim in last):
            raise UnsupportedError(f"is called across samples: {shown(x)}")
        return self.arranged(x, [*(without_batch(dim) for dim in lead if dim != (BATCH,)), *last]), lead

    def of_rows(self, value: int, lead: tuple[Dim, ...], kept: int = 1) -> Traced:
        """Return a tensor of `lead` dimensions and new last ones: the result for what `rows` returned."""
        shape = self.shapes[value]
        last = self.fresh(shape[len(shape) - kept :])
        axes = [axis for dim in (*lead, *last) for axis in dim if axis is not BATCH]
        return Traced(value, tuple(axes), (*lead, *last))

    def viewed(self, x: Traced, sizes: Sequence[Size]) -> Traced:
        """Return a tensor's elements, row-major, with other sizes. Raises UnsupportedError if that mixes samples."""
        found = _factored(x, sizes)
        if found is None and (x.batch is None or x.dims[0] == (BATCH,)):
            value = self.sample_first(x)
            flat = self.reshaped(value, (math.prod(self.shapes[value]),))
            found = _factored(self.traced(flat, x.batch is not None), sizes)
        if found is None:
            raise UnsupportedError(f"makes {tuple(map(plain, sizes))} of {shown(x)}, which mixes samples")
        return found

    def constant(self, values: Array) -> Traced:
        """Return an array, float32 or int64, as a tensor without samples."""
        if values.dtype.kind == "i" and values.ndim == 1 and np.array_equal(values, np.arange(len(values))):
            return self.traced(self.add(Positions(len(values))), batch=False)
        return self.traced(self.add(Constant.of(values)), batch=False)

    def parameter(self, name: str) -> Traced:
        """Return a parameter as a tensor without samples."""
        shape = self._tensors[name]
        return self.traced(self.add(Parameter(shape), tensors={"weight": name}), batch=False)

    def sliced(self, x: Traced, dim: int, begin: int, end: int) -> Traced:
        """Return the elements begin … end − 1 along a dimension that has no samples."""
        if BATCH in x.dims[dim]:
            raise UnsupportedError(f"takes some of the samples: {shown(x)}")
        if (begin, end) == (0, count_of(x.dims[dim])):
            return x
        if end <= begin:
            raise UnsupportedError("takes no element")
        if len(x.dims[dim]) > 1:  # its axes become one, as the value is arranged like the tensor
            value = self.arranged(x, [without_batch(each) for each in x.dims])
            dims = [each if BATCH in each else self.fresh((count_of(each),))[0] for each in x.dims]
            axes = tuple(axis for each in dims for axis in each if axis is not BATCH)
            x = Traced(value, axes, tuple(dims))
        (axis,) = x.dims[dim]
        place = x.axes.index(axis)
        value, at, inner = self._place(x, place)
        value = self.add(Slice(at, begin * inner, end * inner), value)
        (new,) = self.fresh((end - begin,))
        axes = (*x.axes[:place], *new, *x.axes[place + 1 :])
        return Traced(value, axes, (*x.dims[:dim], new, *x.dims[dim + 1 :]))

    def _place(self, x: Traced, place: int) -> tuple[int, int, int]:
        """Return a value of a tensor's elements, where an axis of it begins, and how many elements each step has there.

        The axis is number `place` of the tensor's; the value's own axis may join it with those that follow.
        """
        sizes, first = [axis.size for axis in x.axes], 0
        for at, size in enumerate(self.shapes[x.value]):
            count = next((i for i in range(first, len(sizes) + 1) if math.prod(sizes[first:i]) == size), None)
            if count is None or place < first:
                break
            if place == first and size > 1:
                return x.value, at, size // sizes[place]
            first = count
        shape = (math.prod(sizes[:place]), sizes[place], math.prod(sizes[place + 1 :]))
        return self.reshaped(x.value, shape), 1, 1

    def together(self, *tensors: Traced) -> tuple[list[int], tuple[Dim, ...], list[int]]:
        """Return values of tensors with as many axes, dimension by dimension, as operators of several inputs take them.

        Also returns the dimensions of the first that has samples, and the dimensions that the values' axes stand for:
        one that has only samples is none of a value's. Raises UnsupportedError if the samples are not in one dimension.
        """
        count = max(len(x.dims) for x in tensors)
        padded = [replace(x, dims=((),) * (count - len(x.dims)) + x.dims) for x in tensors]
        leading = next((x for x in padded if x.batch is not None), padded[0])
        at = leading.batch
        for x in padded:
            if at is None or (x.batch is None and not x.dims[at]):
                continue
            own, its = leading.dims[at], x.dims[at]
            if x.batch != at or [(a is BATCH, a.size) for a in own] != [(a is BATCH, a.size) for a in its]:
                raise UnsupportedError(f"is called with samples on different axes: {', '.join(map(shown, padded))}")
        kept = [i for i in range(count) if i != at or leading.dims[i] != (BATCH,)]
        values = [self.arranged(x, [without_batch(x.dims[i]) for i in kept]) for x in padded]
        return values, leading.dims, kept

    def of_together(self, value: int, dims: tuple[Dim, ...], kept: Sequence[int]) -> Traced:
        """Return the result of an operator for what `together` returned as a tensor."""
        shape = dict(zip(kept, self.shapes[value], strict=True))
        found: list[Dim] = []
        for i, dim in enumerate(dims):
            if BATCH in dim:
                found.append(tuple(axis if axis is BATCH else Axis(axis.size) for axis in dim))
            else:
                found.extend(self.fresh((shape[i],)))
        axes = tuple(axis for dim in found for axis in dim if axis is not BATCH)
        return Traced(value, axes, tuple(found))

    def needed(self, output: int) -> set[int]:
        """Return the sample and the values that the output depends on."""
        needed, waiting = {0}, [output]
        while waiting:
            value = waiting.pop()
            if value not in needed:
                needed.add(value)
                waiting += self.nodes[value - 1].inputs
        return needed

    def pruned(self, output: int) -> tuple[Node, ...]:
        """Return the nodes that the output depends on, numbered again."""
        needed = self.needed(output)
        number = {old: new for new, old in enumerate(sorted(needed))}
        return tuple(
            replace(self.nodes[old - 1], inputs=tuple(number[i] for i in self.nodes[old - 1].inputs))
            for old in sorted(needed - {0})
        )


def _factored(x: Traced, sizes: Sequence[Size]) -> Traced | None:
    """Return a tensor with other sizes, whose dimensions are made of its axes or factors of these; None if none is."""
    rest = [axis for dim in x.dims for axis in dim]
    axes, dims = list(x.axes), []
    for size in sizes:
        dim: list[Axis] = []
        while count_of(tuple(dim)) < size.count or (size.batch and BATCH not in dim):
            if not rest:
                return None
            axis = rest.pop(0)
            missing, left = divmod(size.count, count_of(tuple(dim)))
            if left or (axis is BATCH and not size.batch):
                return None
            if axis.size > missing:
                factor, uneven = divmod(axis.size, missing)
                if uneven or missing == 1:
                    return None
                first, second = Axis(missing), Axis(factor)
                axes[axes.index(axis) : axes.index(axis) + 1] = [first, second]
                rest.insert(0, second)
                axis = first
            dim.append(axis)
        if count_of(tuple(dim)) != size.count:
            return None
        dims.append(tuple(dim))
    return None if rest else Traced(x.value, tuple(axes), tuple(dims))


def plain(size: Size) -> str:
    """Return a size as messages have it: n stands for the samples."""
    if not size.batch:
        return str(size.count)
    return "n" if size.count == 1 else f"{size.count}·n"


def shown(x: Traced) -> str:
    """Return the shape of a tensor as messages have it."""
    return f"({', '.join(map(plain, x.sizes))}{',' if len(x.dims) == 1 else ''})"
