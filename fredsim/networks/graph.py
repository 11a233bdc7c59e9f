"""A network as data: nodes, each an operator with inputs and named tensors, and a loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fredsim.networks.layout import Layout
from fredsim.networks.running import Found, Running, found_in
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.norms import BatchNorm, FrozenBatchNorm
from fredsim.numerics.ops.operator import Array, Draw, Leaves, Operator, Shape, quiet
from fredsim.numerics.ops.sources import Constant
from fredsim.numerics.ops.views import Reshape
from fredsim.numerics.oracle import tree_sum

__all__ = ["Graph", "Node", "Passed", "numbers_of", "sum_up"]

MAX_LEAVES = 2**18  # the most numbers of samples' own gradients that are in memory at once: a megabyte


@dataclass(frozen=True)
class Node:
    """An operator; the numbers of the values that it takes; and its tensors' names in the layout, by role.

    Value 0 is the sample, value i the output of node i, counted from 1. Two nodes may share a tensor.
    """

    operator: Operator
    inputs: tuple[int, ...]
    tensors: tuple[tuple[str, str], ...] = ()


class Passed(NamedTuple):
    """What a forward pass leaves: the output (µ, …), and what each node's operator keeps."""

    output: Array
    kept: list[Any]


@dataclass(frozen=True)
class Graph:
    """Nodes in an order in which each takes only values before its own; the last one's is the output.

    `sample` and `target` are the shapes of a sample and of what the output is compared with; `layout` names all tensors
    in the order of the flat vector; those in `frozen` stay as they are. If its batch norms keep `running` statistics,
    it is evaluated by these. Raises ValueError, which names the node, if something does not fit.
    """

    sample: Shape
    target: Shape
    nodes: tuple[Node, ...]
    loss: Loss
    layout: Layout
    frozen: tuple[str, ...] = ()
    running: Running | None = None

    def __post_init__(self) -> None:
        self.loss.check(self.shapes[-1], self.target)
        if unknown := [name for name in self.frozen if name not in self.layout.slices]:
            raise ValueError(f"the tensor {unknown[0]!r}, which is not trained, is not among its tensors")
        if self.frozen and not self.trained.tensors:
            raise ValueError("no tensor is trained")
        if self.running is not None:
            self._check_running(self.running)

    def _check_running(self, running: Running) -> None:
        """Raise ValueError unless each batch norm has statistics, which are no tensors of the layout."""
        if len(running.norms) != len(self.batch_norms):
            raise ValueError(f"it has {len(self.batch_norms)} batch norms, and statistics of {len(running.norms)}")
        if taken := [name for name in running.names if name in self.layout.slices]:
            raise ValueError(f"the statistics {taken[0]!r} are also among its tensors")
        if {norm.mean for norm in running.norms} & {norm.variance for norm in running.norms}:
            raise ValueError("means and variances have the same names")
        self.statistics  # noqa: B018  it checks the shapes

    @cached_property
    def batch_norms(self) -> list[Node]:
        """The nodes that are batch norms, which keep running statistics if any do."""
        return [node for node in self.nodes if isinstance(node.operator, BatchNorm)]

    @cached_property
    def statistics(self) -> Layout:
        """The running means and variances, in the order of running.names. Raises ValueError if shapes differ."""
        running, shapes = self.running, dict[str, Shape]()
        assert running is not None
        for node, norm in zip(self.batch_norms, running.norms, strict=True):
            shape = self.shapes[node.inputs[0]][:1]
            for name in (norm.mean, norm.variance):
                if shapes.setdefault(name, shape) != shape:
                    raise ValueError(f"the statistics {name!r} are of {shapes[name]} and {shape} channels")
        return Layout(tuple((name, shapes[name]) for name in running.names))

    @cached_property
    def evaluated(self) -> Graph:
        """The graph that is evaluated: one whose batch norms go by running statistics has these behind its tensors."""
        if self.running is None:
            return self
        norms, nodes = iter(self.running.norms), list[Node]()
        for node in self.nodes:
            operator = node.operator
            if isinstance(operator, BatchNorm):
                norm = next(norms)
                given = (("mean", norm.mean), ("variance", norm.variance))
                node = Node(FrozenBatchNorm(operator.eps, operator.affine), node.inputs, (*node.tensors, *given))
            nodes.append(node)
        layout = Layout((*self.layout.tensors, *self.statistics.tensors))
        return Graph(self.sample, self.target, tuple(nodes), self.loss, layout)

    def found(self, passed: Passed) -> list[Found]:
        """Return the means and variances that the batch norms have found in a minibatch."""
        both = zip(self.nodes, passed.kept, strict=True)
        return [found_in(kept) for node, kept in both if isinstance(node.operator, BatchNorm)]

    @cached_property
    def trained(self) -> Layout:
        """The tensors that are trained, of which parameters and gradients consist."""
        if not self.frozen:
            return self.layout
        return Layout(tuple((name, shape) for name, shape in self.layout.tensors if name not in self.frozen))

    def part_of(self, values: Array) -> Array:
        """Return those of the tensors that are trained, a new array, of the values (P,) of all tensors."""
        return np.concatenate([values[self.layout.slices[name]] for name, _ in self.trained.tensors])

    def fill(self, values: Array, params: Array) -> Array:
        """Write the tensors that are trained into the values (P,) of all tensors; return these."""
        for name, place in self.trained.slices.items():
            values[self.layout.slices[name]] = params[place]
        return values

    @cached_property
    def shapes(self) -> list[Shape]:
        """The shape of each value, without the samples' axis."""
        shapes, tensors = [self.sample], dict(self.layout.tensors)
        for number, node in enumerate(self.nodes, start=1):
            if any(not 0 <= i < number for i in node.inputs):
                raise ValueError(f"node {number}: takes values {node.inputs}, which are not all before it")
            given = [shapes[i] for i in node.inputs]
            wanted = node.operator.tensors(*given)
            named = {role: tensors.get(name) for role, name in node.tensors}
            if named != wanted:
                raise ValueError(f"node {number}: takes the tensors {wanted}, not {named}")
            shapes.append(node.operator.shape(*given))
        return shapes

    @property
    def values(self) -> int:
        """How many numbers the values have that are computed from one sample."""
        return sum(map(math.prod, self.shapes[1:]))

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers in training."""
        return any(node.operator.draws for node in self.nodes)

    @cached_property
    def learns(self) -> list[bool]:
        """Whether each value depends on a tensor that is trained, so that its error is needed."""
        learns = [False]
        for node in self.nodes:
            own = any(name not in self.frozen for _, name in node.tensors)
            learns.append(own or any(learns[i] for i in node.inputs))
        return learns

    def _tensors(self, node: Node, views: Mapping[str, Array]) -> dict[str, Array]:
        return {role: views[name] for role, name in node.tensors}

    def forward(self, params: Array, x: Array, draw: Sequence[Draw | None] | None = None) -> Passed:
        """Return the output for samples x (µ, …) at parameters (P,); `draw` has random numbers for each node."""
        views, values, kept = self.layout.split(params), [x], []
        for number, node in enumerate(self.nodes):
            value, keeps = node.operator.forward(
                [values[i] for i in node.inputs], self._tensors(node, views), draw[number] if draw else None
            )
            values.append(value)
            kept.append(keeps)
        return Passed(values[-1], kept)

    def gradient(
        self,
        params: Array,
        x: Array,
        y: Array,
        draw: Sequence[Draw | None] | None = None,
        backward: Array | None = None,
        seen: list[Found] | None = None,
    ) -> tuple[Array, NDArray[np.float32]]:
        """Return the minibatch-mean gradient (P,) and the losses (µ,) of samples x (µ, …) with targets y (µ, …).

        `backward`: the parameters (P,) of the backward pass, if they are not those of the forward pass. Operators then
        take them in the place of their tensors, and what the forward pass has kept as it is. `seen` becomes what batch
        norms have found.

        The errors that nodes send to one value are added, the last node's first, and so are a sample's own gradients of
        a tensor of several nodes; the tree over samples comes after.
        """
        passed = self.forward(params, x, draw)
        if seen is not None:
            seen[:] = self.found(passed)
        losses, error = self.loss.losses(passed.output, y)
        leaves = self.leaves(params if backward is None else backward, passed, error)
        grad = np.zeros(self.layout.size, np.float32)
        for name, view in self.layout.split(grad).items():
            if leaves[name]:
                sum_up(leaves[name], view.reshape(view.shape or (1,)), len(x))
        return grad, losses

    def leaves(self, params: Array, passed: Passed, error: Array) -> dict[str, list[Leaves]]:
        """Return the samples' own gradients of each tensor, of each node that takes it, for the outputs' error (µ, …).

        `params` are the parameters (P,) of the backward pass.
        """
        views = self.layout.split(params)
        errors = {len(self.nodes): error}
        leaves: dict[str, list[Leaves]] = {name: [] for name, _ in self.layout.tensors}
        for number in range(len(self.nodes), 0, -1):
            if not (self.learns[number] and number in errors):
                continue
            node, error, keeps = self.nodes[number - 1], errors.pop(number), passed.kept[number - 1]
            tensors = self._tensors(node, views)
            names = dict(node.tensors)
            for role, own in node.operator.gradients(error, keeps, tensors).items():
                leaves[names[role]].append(own)
            if any(self.learns[i] for i in node.inputs):
                for i, sent in zip(node.inputs, node.operator.backward(error, keeps, tensors), strict=True):
                    if sent is not None and self.learns[i]:
                        with quiet():
                            errors[i] = errors[i] + sent if i in errors else sent
        return leaves


def numbers_of(nodes: Sequence[Node], shapes: Sequence[Shape], value: int) -> Array | None:
    """Return the numbers of a constant, perhaps in another shape; None of any other value."""
    operator = nodes[value - 1].operator if value else None
    if isinstance(operator, Reshape):
        found = numbers_of(nodes, shapes, nodes[value - 1].inputs[0])
        return None if found is None else found.reshape(shapes[value])
    return operator.values if isinstance(operator, Constant) else None


def sum_up(leaves: Sequence[Leaves], view: Array, count: int) -> None:
    """Write to a tensor the tree over samples of their own gradients, divided by their number, some rows at a time."""
    step = max(1, MAX_LEAVES // (count * view[0].size))
    with quiet():
        for begin in range(0, len(view), step):
            part = slice(begin, min(begin + step, len(view)))
            own = leaves[0](part)
            for more in leaves[1:]:
                own = own + more(part)
            view[part] = tree_sum(own) / np.float32(count)
