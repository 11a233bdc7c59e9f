"""Calls operators and losses for the records: by their definitions, and as networks of one node by compiled kernels."""

from __future__ import annotations

import json
import math
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from fredsim.data.datasets import Dataset, Split
from fredsim.kernels.ops.engine import NumbaGraphEngine
from fredsim.networks.graph import Graph, Node
from fredsim.networks.layout import Layout
from fredsim.numerics.arrays import MARGIN, aligned
from fredsim.numerics.ops import (
    arithmetic,
    attention,
    conv2d,
    dropout,
    embedding,
    linear,
    norms,
    pointwise,
    pooling,
    products,
    sources,
    views,
)
from fredsim.numerics.ops.draws import Draws, Keys
from fredsim.numerics.ops.losses.bce import BinaryCrossEntropy
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.loss import Loss, Losses
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.numerics.ops.operator import Draw, Operator
from fredsim.numerics.oracle import tree_sum

__all__ = ["FILES", "Definitions", "DeviceKernels", "Kernels", "loss_of", "operator_of"]

Array = NDArray[Any]
Shape = tuple[int, ...]
Answers = dict[str, Array]
FILES = (
    arithmetic, attention, conv2d, dropout, embedding, linear, norms, pointwise, pooling, products, sources, views,
)  # fmt: skip
THREADS = 2


def frozen(value: Any) -> Any:
    """Return lists of JSON as tuples."""
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def parsed(text: str) -> dict[str, Any]:
    return {key: frozen(value) for key, value in json.loads(text).items()}


def operator_of(kind: str, options: str) -> Operator:
    """Return an operator by its name and options."""
    cls = next(getattr(file, kind) for file in FILES if kind in file.__all__)
    made: Operator = cls(**parsed(options))
    return made


def loss_of(kind: str, options: str) -> Loss:
    """Return a loss by its name and options."""
    cls: Any = {x.__name__: x for x in (BinaryCrossEntropy, CrossEntropy, MeanSquaredError)}[kind]
    made: Loss = cls(**parsed(options))
    return made


class Case:
    """The arrays of a record of an operator, in their shapes."""

    def __init__(self, kind: str, options: str, shapes: str, samples: int, arrays: dict[str, Array]) -> None:
        self.operator, (*inputs, out) = operator_of(kind, options), frozen(json.loads(shapes))
        self.inputs, self.out, self.samples = inputs, out, samples
        self.xs = [arrays[f"x{i}"].reshape(samples, *shape) for i, shape in enumerate(inputs)]
        self.d = arrays["d"].reshape(samples, *out)
        wanted = self.operator.tensors(*inputs)
        self.tensors = {role: arrays[role].reshape(shape) for role, shape in wanted.items()}
        self.u, self.key = arrays.get("u"), arrays.get("key")
        assert self.operator.shape(*inputs) == out


def without_sign(errors: Array) -> Array:
    """Return errors with +0 for −0."""
    return errors + np.float32(0)


class Definitions:
    """fredsim.numerics.ops: each operator alone."""

    def operator(self, kind: str, options: str, shapes: str, samples: int, **arrays: Array) -> Answers:
        case = Case(kind, options, shapes, samples, arrays)
        u = case.u
        draw: Draw | None = None if u is None else lambda shape: u.reshape(shape).astype(np.float64)
        if case.key is not None:
            draw = Draws(*case.key.tolist()).draw(0)
        y, kept = case.operator.forward(case.xs, case.tensors, draw)
        found = {"y": y}
        for i, error in enumerate(case.operator.backward(case.d, kept, case.tensors)):
            if error is not None:
                found[f"dx{i}"] = without_sign(error)
                found[f"mean{i}"] = mean_of(error)
        for role, leaves in case.operator.gradients(case.d, kept, case.tensors).items():
            found[f"grad_{role}"] = mean_of(np.concatenate([leaves(slice(0, 2)), leaves(slice(2, None))], axis=1))
        return found

    drawn = keyed = operator

    def meeting(self, samples: int, x: Array, weight: Array, d: Array) -> Answers:
        graph = meeting_nodes()
        x, d = (array.reshape(samples, 9, 3) for array in (x, d))
        return {"y": graph.forward(weight, x).output, "grad": graph.gradient(weight, x, d)[0]}

    def loss(self, kind: str, options: str, shapes: str, output: Array, target: Array) -> Answers:
        shape, aim = frozen(json.loads(shapes))
        loss, z, y = loss_of(kind, options), output.reshape(-1, *shape), target.reshape(-1, *aim)
        made, wrong = loss.losses(z, y), loss.wrong(z, y)
        found = {"losses": made.each, "errors": without_sign(made.error), "mean": mean_of(made.error)}
        return found | {"wrong": np.full(len(z), np.nan) if wrong is None else wrong}


def meeting_nodes() -> Graph:
    """Return the network of `meeting`: errors meet in values 1 and 5, and three nodes have one tensor."""
    tied = (("weight", "weight"),)
    dense, product = linear.Linear(3, bias=False), arithmetic.Mul()
    nodes = (
        Node(dense, (0,), tied), Node(pointwise.Tanh(), (1,)), Node(product, (1, 2)), Node(dense, (3,), tied),
        Node(arithmetic.Add(), (4, 1)), Node(product, (5, 5)), Node(dense, (6,), tied),
    )  # fmt: skip
    return Graph((9, 3), (9, 3), nodes, Given(), Layout((("weight", (3, 3)),)))


class Given(Loss):
    """Takes the error of the output as target, and notes the output."""

    def __init__(self) -> None:
        self.outputs: list[Array] = []

    def check(self, output: Shape, target: Shape) -> None:
        assert output == target

    def losses(self, output: Array, target: Array) -> Losses:
        self.outputs.append(output.copy())
        return Losses(np.zeros(len(output), np.float32), target)


class Kernels:
    """fredsim.kernels.ops: a network of the operator.

    A tensor of −0 is added to each input, which changes nothing: its gradient is the error of the input, for
    minibatches of one sample.
    """

    def operator(self, kind: str, options: str, shapes: str, samples: int, **arrays: Array) -> Answers:
        case = Case(kind, options, shapes, samples, arrays)
        graph, x = network(case)
        params = parameters(graph, case.tensors)
        data = Split(x, case.d)
        found, loss = Answers(), graph.loss
        assert isinstance(loss, Given)
        names = {name for name, _ in graph.layout.tensors}
        means = self.gradient(graph, data, params, np.arange(samples)[None], case.key)[0][0]
        if loss.outputs:
            found["y"] = loss.outputs.pop()
        for role, own in graph.layout.split(means).items():
            if role not in ("mean", "variance") and not role.startswith("input"):
                found[f"grad_{role}"] = own
        # Where samples meet, or their places count, their own errors cannot be told apart.
        meet = kind == "BatchNorm" or case.key is not None
        single = self.gradient(graph, data, params, np.arange(samples)[:, None])[0]
        for i in range(len(case.inputs)):
            if f"input{i}" in names:
                found[f"mean{i}"] = graph.layout.split(means)[f"input{i}"]
            if f"input{i}" in names and not meet:
                found[f"dx{i}"] = np.stack([graph.layout.split(own)[f"input{i}"] for own in single])
        return found

    keyed = operator

    def engine(self, graph: Graph, data: Split, mu: int) -> Any:
        """Return the engine of a network for minibatches of µ samples."""
        return NumbaGraphEngine(graph, Dataset(data, data, data, 2), mu, THREADS)

    def gradient(
        self, graph: Graph, data: Split, params: Array, rows: Array, key: Array | None = None
    ) -> tuple[Array, Array]:
        """Return the gradients and losses of minibatches."""
        engine = self.engine(graph, data, rows.shape[1])
        try:
            keys = None if key is None else Keys(int(key[0]), key[1:2], key[2:3])
            grads, losses = engine.gradients([params] * len(rows), rows, keys)
            return np.array(grads), losses.copy()
        finally:
            engine.close()

    def meeting(self, samples: int, x: Array, weight: Array, d: Array) -> Answers:
        graph, (x, d) = meeting_nodes(), (array.reshape(samples, 9, 3) for array in (x, d))
        params = parameters(graph, {"weight": weight.reshape(3, 3)})
        grads, _ = self.gradient(graph, Split(x, d), params, np.arange(samples)[None])
        assert isinstance(graph.loss, Given)
        return {"y": graph.loss.outputs[0], "grad": grads}

    def loss(self, kind: str, options: str, shapes: str, output: Array, target: Array) -> Answers:
        shape, aim = frozen(json.loads(shapes))
        nodes = (Node(sources.Parameter(shape), (0,), (("weight", "input0"),)), Node(arithmetic.Add(), (0, 1)))
        graph = Graph(shape, aim, nodes, loss_of(kind, options), Layout((("input0", shape),)))
        data = Split(output.reshape(-1, *shape), target.reshape(-1, *aim))
        params = parameters(graph, {})
        single, losses = self.gradient(graph, data, params, np.arange(len(data))[:, None])
        means, same = self.gradient(graph, data, params, np.arange(len(data))[None])
        assert losses.tobytes() == same.tobytes()
        engine = self.engine(graph, data, 1)
        try:
            each, wrong = engine.outcomes(params, "test")
        finally:
            engine.close()
        assert each.tobytes() == losses.tobytes()
        return {"losses": each, "errors": single, "mean": means, "wrong": wrong}


class DeviceKernels(Kernels):
    """fredsim.cuda.networks, likewise; without a device, emulated."""

    def engine(self, graph: Graph, data: Split, mu: int) -> Any:
        from fredsim.cuda.networks.engine import CudaGraphEngine

        return CudaGraphEngine(graph, Dataset(data, data, data, 2), mu)

    def gradient(
        self, graph: Graph, data: Split, params: Array, rows: Array, key: Array | None = None
    ) -> tuple[Array, Array]:
        """Note the outputs of all samples, too, if nothing is drawn."""
        from fredsim.cuda.networks import registry
        from fredsim.cuda.networks.operator import LossKernels
        from fredsim.cuda.networks.steps import Given as Known
        from fredsim.cuda.networks.steps import blocks_for

        class GivenKernels(LossKernels):
            """Lets the error of the output be the target."""

            def losses(self, plan: Any, output: Any, error: Any) -> None:
                if error is not None:
                    plan.step(
                        "networks/copies", "gather_samples", blocks_for(error.size), x=Known.TARGETS, rows=Known.ROWS,
                        out=error, mu=plan.mu, size=error.each,
                    )  # fmt: skip

        with patch.dict(registry.LOSSES, {Given: GivenKernels}):
            if isinstance(graph.loss, Given) and len(rows) == 1 and key is None:
                outputs = self.engine(graph, data, rows.size).outputs(params, "train")
                graph.loss.outputs.append(np.concatenate([output for _, output in outputs]))
            return super().gradient(graph, data, params, rows, key)


def network(case: Case) -> tuple[Graph, Array]:
    """Return a network that applies an operator to a sample's inputs, one after the other in a row, and the samples."""
    nodes, tensors, values = list[Node](), list[tuple[str, Shape]](), list[int]()
    sizes = [math.prod(shape) for shape in case.inputs]
    only = len(case.inputs) == 1
    learned = case.xs[0].dtype == np.float32 and not isinstance(case.operator, sources.Parameter | views.Detach)
    for i, shape in enumerate(case.inputs):
        at = 0
        if not only:
            begin = sum(sizes[:i])
            nodes += [
                Node(views.Slice(0, begin, begin + sizes[i]), (0,)),
                Node(views.Reshape(shape), (len(nodes) + 1,)),
            ]
            at = len(nodes)
        if learned and not (i and isinstance(case.operator, arithmetic.Keep)):  # which has no error of its mask
            nodes.append(Node(sources.Parameter(shape), (0,), (("weight", f"input{i}"),)))
            nodes.append(Node(arithmetic.Add(), (at, len(nodes))))
            tensors.append((f"input{i}", shape))
            at = len(nodes)
        values.append(at)
    own = [(role, tensor.shape) for role, tensor in case.tensors.items()]
    nodes.append(Node(case.operator, tuple(values), tuple((role, role) for role, _ in own)))
    sample = case.inputs[0] if only else (sum(sizes),)
    x = case.xs[0] if only else np.concatenate([one.reshape(case.samples, -1) for one in case.xs], axis=1)
    return Graph(sample, case.out, tuple(nodes), Given(), Layout((*tensors, *own))), x


def parameters(graph: Graph, tensors: dict[str, Array]) -> Array:
    """Return the tensors, the others being −0."""
    params = aligned(graph.layout.size + MARGIN)[: graph.layout.size]
    params[...] = -0.0
    for name, view in graph.layout.split(params).items():
        if name in tensors:
            view[...] = tensors[name]
    return params


def mean_of(own: Array) -> Array:
    """Return a minibatch's gradient of samples' own ones."""
    return np.asarray(tree_sum(own) / np.float32(len(own)))
