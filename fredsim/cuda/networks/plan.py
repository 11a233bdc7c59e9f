"""Plans the computation of a minibatch on a device: which launches, in which order, on which values.

The walk is that of Graph.gradient: forwards, the loss, then backwards, the last node first. The errors that nodes send
to one value are added in that order.
"""

from __future__ import annotations

from fredsim.compute.buffers import Buffer
from fredsim.cuda.networks.elements import add_values
from fredsim.cuda.networks.operator import OperatorKernels
from fredsim.cuda.networks.registry import KERNELS, LOSSES, why_refused
from fredsim.cuda.networks.steps import Given, Steps, Value, blocks_for
from fredsim.errors import ConfigError
from fredsim.networks.graph import Graph

__all__ = ["Plan"]

MOST_NUMBERS = 2**31 - 2**20  # of all samples at one place, which kernels count in 32 bits; threads go a little beyond


class Plan(Steps):
    """The launches of minibatches of µ samples: their gradients and losses, or their losses and answers only.

    `bounds` are the lowest and the highest number in samples, of integers; None for others. Without `losses`, the
    outputs are all that is computed.
    """

    def __init__(
        self, graph: Graph, mu: int, stride: int, bounds: tuple[int, int] | None, *, learn: bool, losses: bool = True
    ) -> None:
        """Plan it. Raises ConfigError for what has no kernels."""
        if why := why_refused(graph):
            raise ConfigError(f"backend is cuda, which has no kernels for {why}: give backend numba")
        super().__init__(graph, mu, stride, learn=learn)
        self._graph = graph
        self._kernels = self._make()
        values = self._forward(bounds)
        self.output = values[-1]
        if losses:
            error = self.output.like() if learn and graph.learns[-1] else None
            LOSSES[type(graph.loss)](graph.loss).losses(self, self.output, error)
            if learn:
                self._backward(error)
                self.finish_gradients()
        largest = max((buffer.size for buffer in self.buffers), default=0)
        if largest > MOST_NUMBERS:
            what = f"{mu} samples have {largest:,} numbers at one place of the network, and a kernel counts to 2³¹"
            what = f"{what}: give smaller minibatches, or" if learn else f"{what}, in an evaluation: give"
            raise ConfigError(f"backend is cuda, {what} backend numba")

    def _make(self) -> list[OperatorKernels]:
        made, draws = [], 0
        for node in self._graph.nodes:
            shapes = [self._graph.shapes[i] for i in node.inputs]
            tensors = {role: self.tensors[name] for role, name in node.tensors}
            made.append(KERNELS[type(node.operator)](node.operator, shapes, tensors))
            if node.operator.draws:
                made[-1].draws = draws
                draws += 1
        return made

    def _forward(self, bounds: tuple[int, int] | None) -> list[Value]:
        value = Value(Buffer(0), self.mu, self._graph.sample, bounds is not None, bounds or (0, 0)).like()
        self.step(
            "networks/copies", "gather_samples", blocks_for(value.size), x=Given.SAMPLES, rows=Given.ROWS, out=value,
            mu=self.mu, size=value.each,
        )  # fmt: skip
        values = [value]
        for node, kernels, shape in zip(self._graph.nodes, self._kernels, self._graph.shapes[1:], strict=True):
            kernels.inputs = [values[i] for i in node.inputs]
            kinds = {one.whole for one in kernels.inputs}
            whole, mixed = True in kinds, len(kinds) > 1
            if mixed or (whole and not kernels.copies and not kernels.whole) or (kernels.whole and not whole):
                what = "whole numbers and floats" if mixed else "whole numbers" if whole else "floats"
                name = type(node.operator).__name__
                raise ConfigError(
                    f"backend is cuda, which has no kernels for the operator {name} on {what}: give backend numba"
                )
            lows, highs = zip(*(one.bounds for one in kernels.inputs), strict=True)
            out = Value(Buffer(0), self.mu, shape, whole, (min(lows), max(highs))).like()
            values.append(kernels.forward(self, kernels.inputs, out))
        return values

    def _backward(self, error: Value | None) -> None:
        graph, count = self._graph, len(self._kernels)
        errors = {count: error}
        for number in range(count, 0, -1):
            error = errors.pop(number, None)
            if error is None or not graph.learns[number]:
                continue
            inputs = graph.nodes[number - 1].inputs
            wanted = [graph.learns[i] for i in inputs]
            for i, sent in zip(inputs, self._kernels[number - 1].backward(self, error, wanted), strict=True):
                if sent is not None and graph.learns[i]:
                    before = errors.get(i)
                    errors[i] = sent if before is None else add_values(self, before, sent)
