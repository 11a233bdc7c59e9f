"""Plans the computation of a minibatch: which steps, in which order, on which values.

The walk is that of Graph.gradient: forwards, the loss, then backwards, the last node first. The errors that nodes send
to one value are added in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fredsim.compute.buffers import Buffer, Tensor
from fredsim.data.datasets import Split
from fredsim.kernels.ops.fallback import FallbackKernels, FallbackLoss, finish
from fredsim.kernels.ops.images.joined import find_joined
from fredsim.kernels.ops.images.layouts import ToImage, ToPlain, gather
from fredsim.kernels.ops.images.norms import NormKernels
from fredsim.kernels.ops.images.rewritten import with_images
from fredsim.kernels.ops.operator import LossKernels, OperatorKernels
from fredsim.kernels.ops.pointwise import add_rows, combined, copy_value
from fredsim.kernels.ops.program import Batch, Steps
from fredsim.kernels.ops.registry import LOSSES, kernels_of
from fredsim.kernels.ops.sequences.heads import fuse_heads
from fredsim.kernels.ops.sums import mean_of_samples
from fredsim.kernels.ops.values import Value
from fredsim.networks.graph import Graph, Node
from fredsim.networks.running import Found
from fredsim.numerics.ops.norms import BatchNorm
from fredsim.numerics.ops.pointwise import Relu
from fredsim.numerics.ops.positions import Positions
from fredsim.numerics.ops.sources import Constant
from fredsim.numerics.ops.views import Cat, Permute, Reshape, Slice

__all__ = ["Plan"]

MOST = 2**24  # the most numbers of samples' own gradients of a tensor that are in memory at once


@dataclass
class PlannedNode:
    """A node of the plan: kernels, and the numbers of the values that they take and make."""

    kernels: OperatorKernels
    inputs: list[int]
    number: int


class Plan(Steps):
    """The steps of one minibatch of µ samples of a split: its gradient and losses, or its losses and answers only."""

    #: What batch norms have found in the last minibatch, if they keep running statistics.
    seen: list[Found] | None = None

    def __init__(
        self,
        graph: Graph,
        split: Split,
        mu: int,
        threads: int,
        *,
        learn: bool,
        loss: LossKernels | None = None,
        two_vectors: bool = False,
    ) -> None:
        """Plan the steps; `loss`: what takes the outputs instead of the graph's own loss.

        `two_vectors`: the backward pass may have other parameters than the forward pass.
        """
        graph = with_images(fuse_heads(graph))
        super().__init__(graph, split.y, mu, threads, learn=learn)
        self.two_vectors = two_vectors
        self.graph, self.samples, self._bounds = graph, np.ascontiguousarray(split.x), split.bounds
        self._lay_out()
        values = self._forward()
        if learn and graph.running is not None:
            self._keep_found()
        last = self._planned[-1].number if self._planned else 0
        loss = loss or LOSSES.get(type(graph.loss), FallbackLoss)(graph.loss)
        error = values[last].error() if learn and self._learns[last] else None
        loss.losses(self, values[last], error, wrong=not learn)
        if learn:
            self.turn = len(self.steps)
            self._backward(values, last, error)
            self._clear_others()

    def _lay_out(self) -> None:
        """Make the nodes' kernels; decide which values are images, with which halos, and where one is converted."""
        graph, shapes = self.graph, self.graph.shapes
        joined = find_joined(graph)
        made = [self._make(node, joined.norms.get(i, 0)) for i, node in enumerate(graph.nodes, start=1)]
        norms = [i for i, node in enumerate(graph.nodes, start=1) if isinstance(node.operator, BatchNorm)]
        ends = {number: end for end, number in joined.norms.items()}
        self._norms: list[Any] = [made[ends.get(i, i) - 1] for i in norms]
        self._find_floats(made)
        drawing = [i for i, node in enumerate(graph.nodes) if node.operator.draws]
        for place, i in enumerate(drawing):
            made[i].draws = place
        image = len(graph.sample) == 3 and any(
            kernels.images([i == 0 for i in node.inputs])[0][node.inputs.index(0)]
            for kernels, node in zip(made, graph.nodes, strict=True)
            if 0 in node.inputs
        )
        image = image and self.samples.dtype == np.float32
        self._shapes, self._images, self._learns = [shapes[0]], [image], [False]
        self._planned: list[PlannedNode] = []
        numbers = [0]  # of the graph's values in the plan
        for place, (node, kernels) in enumerate(zip(graph.nodes, made, strict=True), start=1):
            if place in joined.followed:  # computed by a later node's kernels
                numbers.append(-1)
                continue
            inputs = [numbers[i] for i in joined.inputs.get(place, node.inputs)]
            wanted, gives = kernels.images([self._images[i] for i in inputs])
            # The last input's first: backwards, the errors of one value's copies are added in the inputs' order.
            last_first = [self._converted(i, form) for i, form in zip(inputs[::-1], wanted[::-1], strict=True)]
            inputs = last_first[::-1]
            numbers.append(self._add(kernels, inputs, shapes[place], gives))
        if self._images[-1]:  # the loss takes plain outputs
            self._converted(len(self._shapes) - 1, False)
        self._find_halos()

    def _find_floats(self, made: Sequence[OperatorKernels]) -> None:
        """Tell kernels whether their inputs, and their output, are float32; views of integers alone are integers."""
        floats = [self.samples.dtype == np.float32]
        for node, kernels in zip(self.graph.nodes, made, strict=True):
            operator, kernels.floats = node.operator, all(floats[i] for i in node.inputs)
            numbers = isinstance(operator, Positions) or (isinstance(operator, Constant) and operator.dtype == "int64")
            view = isinstance(operator, Reshape | Permute | Slice | Cat)
            kernels.gives_floats = not numbers and (not view or any(floats[i] for i in node.inputs))
            floats.append(kernels.gives_floats)

    def _make(self, node: Node, norm: int = 0) -> OperatorKernels:
        """Return a node's kernels; the fallback's if samples' own gradients of a tensor meet and one of its nodes'.

        A node that ends what is computed together with a norm, by its number, has the norm's kernels.
        """
        if norm:
            kernels = self._make(self.graph.nodes[norm - 1])
            assert isinstance(kernels, NormKernels)
            kernels.relu = isinstance(node.operator, Relu)
            return kernels
        shapes, operator = [self.graph.shapes[i] for i in node.inputs], node.operator
        tensors = {role: self.tensors[name] for role, name in node.tensors}
        shared = [self.tensors[name] for _, name in node.tensors if self.shared(name)]
        kind = self._kind(node) if all(self._meet(tensor) for tensor in shared) else FallbackKernels
        return kind(operator, shapes, tensors)

    def _kind(self, node: Node) -> type[OperatorKernels]:
        shared = any(self.shared(name) for _, name in node.tensors)
        return kernels_of(node.operator, [self.graph.shapes[i] for i in node.inputs], shared=shared) or FallbackKernels

    def _meet(self, tensor: Tensor) -> bool:
        """Return whether kernels add up the samples' own gradients of a tensor that several nodes have."""
        nodes = [node for node in self.graph.nodes if tensor.name in dict(node.tensors).values()]
        return self.mu * tensor.size <= MOST and all(self._kind(node).shares for node in nodes)

    def _converted(self, number: int, image: bool) -> int:
        if self._images[number] == image:
            return number
        shape = self._shapes[number]
        kernels = (ToImage if image else ToPlain)(None, [shape], {})
        return self._add(kernels, [number], shape, image)

    def _add(self, kernels: OperatorKernels, inputs: list[int], shape: tuple[int, ...], image: bool) -> int:
        number = len(self._shapes)
        self._shapes.append(shape)
        self._images.append(image)
        own = any(tensor.name not in self.graph.frozen for tensor in kernels.tensors.values())
        self._learns.append(own or any(self._learns[i] for i in inputs))
        self._planned.append(PlannedNode(kernels, inputs, number))
        return number

    def _find_halos(self) -> None:
        """Find the widest halo that is wanted of each value and of its error."""
        self._halos, self._error_halos = [0] * len(self._shapes), [0] * len(self._shapes)
        for node in reversed(self._planned):
            kernels = node.kernels
            wanted = self._halos[node.number] if kernels.passes_values else kernels.halo()
            for i in node.inputs:
                self._halos[i] = max(self._halos[i], wanted)
        for node in self._planned:
            kernels = node.kernels
            passed = max((self._error_halos[i] for i in node.inputs), default=0)
            self._error_halos[node.number] = passed if kernels.passes_errors else kernels.error_halo()

    def _value(self, number: int, **changes: Any) -> Value:
        value = Value(
            Buffer(0), self.mu, self._shapes[number], self._images[number],
            self._halos[number] if self._images[number] else 0,
            self._error_halos[number] if self._images[number] else 0,
        )  # fmt: skip
        return value.like(**changes)

    def _forward(self) -> list[Value]:
        values = [self._value(0, dtype=self.samples.dtype.newbyteorder("="))]
        gather(self, self.samples, values[0])
        if values[0].dtype.kind in "iu" and self.samples.size:
            known = self._bounds or (int(self.samples.min()), int(self.samples.max()))
            self.ranges[id(values[0].buffer)] = known
        for node in self._planned:
            kernels = node.kernels
            kernels.inputs = [values[i] for i in node.inputs]
            out = self._value(node.number)
            value = kernels.forward(self, kernels.inputs, out)
            if value.halo < out.halo:
                value = copy_value(self, value, out)
            values.append(replace(value, error_halo=out.error_halo))
        return values

    def _keep_found(self) -> None:
        """Let `seen` be what the batch norms have found, in the order of the graph's nodes."""

        def keep(batch: Batch) -> None:
            self.seen = [kernels.found(batch) for kernels in self._norms]

        self.call(keep, *(kernels.statistics for kernels in self._norms if isinstance(kernels, NormKernels)))

    def _backward(self, values: list[Value], last: int, error: Value | None) -> None:
        errors = {last: error}
        for node in reversed(self._planned):
            error = errors.pop(node.number, None)
            if error is None or not self._learns[node.number]:
                continue
            wanted = [self._learns[i] for i in node.inputs]
            for i, sent in zip(node.inputs, node.kernels.backward(self, error, wanted), strict=True):
                if sent is None or not self._learns[i]:
                    continue
                if (before := errors.get(i)) is not None:
                    errors[i] = combined(self, add_rows, before, sent, values[i].error())
                elif sent.halo < values[i].error_halo:
                    errors[i] = copy_value(self, sent, values[i].error())
                else:
                    errors[i] = sent

    def _clear_others(self) -> None:
        """Sum up what several nodes have collected; let the gradients of tensors that have none be +0, if trained."""
        for name, tensor in self.tensors.items():
            if name in self.owned:
                mean_of_samples(self, self.owned[name], tensor.size, tensor)
            elif self.shared(name) or name not in (*self.written, *self.graph.frozen):
                self.call(partial(self._finish, tensor))

    def _finish(self, tensor: Tensor, batch: Batch) -> None:
        finish(self.leaves.pop(tensor.name, []), batch, tensor)
