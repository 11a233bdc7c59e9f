"""Random small networks of the operators that have kernels, with samples and parameters, some of them odd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from fredsim.compute.buffers import Buffer
from fredsim.data.datasets import Dataset, Split
from fredsim.kernels.ops.program import Program, Steps
from fredsim.networks.graph import Graph, Node
from fredsim.networks.layout import Layout
from fredsim.numerics.arrays import MARGIN, aligned
from fredsim.numerics.ops.arithmetic import Add, Keep, Maximum, Minimum, Mul
from fredsim.numerics.ops.attention import Attention
from fredsim.numerics.ops.conv2d import Conv2d
from fredsim.numerics.ops.draws import Keys
from fredsim.numerics.ops.dropout import Dropout
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.numerics.ops.norms import BatchNorm, FrozenBatchNorm, GroupNorm, LayerNorm, RmsNorm
from fredsim.numerics.ops.operator import Array, Operator
from fredsim.numerics.ops.pointwise import (
    Abs,
    Cos,
    Elu,
    Exp,
    Gelu,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyRelu,
    Log,
    Log1p,
    Mish,
    Reciprocal,
    Relu,
    Scale,
    Shift,
    Sigmoid,
    Silu,
    Sin,
    Softplus,
    Sqrt,
    Tanh,
)
from fredsim.numerics.ops.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from fredsim.numerics.ops.products import LogSoftmax, MatMul, Softmax
from fredsim.numerics.ops.sources import Constant, Parameter
from fredsim.numerics.ops.views import Cat, Detach, Permute, Reshape, Slice

__all__ = ["UNTOUCHED", "Builder", "bits", "dataset", "guarded", "initial", "mixed", "on_device", "random_graph"]

Draw = np.random.Generator


class Builder:
    """Adds nodes one after the other; each operator's tensors are named after its number."""

    def __init__(self, *sample: int) -> None:
        self.shapes: list[tuple[int, ...]] = [sample]
        self.nodes: list[Node] = []
        self.tensors: list[tuple[str, tuple[int, ...]]] = []

    @property
    def last(self) -> int:
        """The number of the last value."""
        return len(self.nodes)

    def add(self, operator: Operator, *inputs: int, tensors: dict[str, str] | None = None) -> int:
        """Add a node that takes the last value, or those named; return its number. `tensors` are another node's."""
        taken = inputs or (self.last,)
        shapes = [self.shapes[i] for i in taken]
        shape, wanted = operator.shape(*shapes), operator.tensors(*shapes)
        names = tensors or {role: f"{self.last}.{role}" for role in wanted}
        if tensors is None:
            self.tensors += [(names[role], wanted[role]) for role in wanted]
        self.nodes.append(Node(operator, taken, tuple(names.items())))
        self.shapes.append(shape)
        return self.last

    def graph(self, loss: Loss, target: tuple[int, ...] = ()) -> Graph:
        """Return the graph."""
        return Graph(self.shapes[0], target, tuple(self.nodes), loss, Layout(tuple(self.tensors)))


def mixed() -> Graph:
    """Return a network with each kind of kernel, large enough for tiles of many sums."""
    made = Builder(3, 12, 12)
    made.add(Conv2d(20, (3, 3), padding=(1, 1)))
    made.add(GroupNorm(5))
    made.add(Relu())
    made.add(Conv2d(20, (3, 3), padding=(1, 1), bias=False))
    made.add(MaxPool2d((2, 2), (2, 2)))
    made.add(Reshape((-1,)))
    made.add(Linear(10, layout="out_in"))
    return made.graph(CrossEntropy())


def bits(array: Array) -> bytes:
    """Return an array's bits, those of every NaN being the same: processors differ in them."""
    return np.where(np.isnan(array), np.float32(np.nan), array).tobytes()


UNTOUCHED = 0x7FC0_1234  # the bits of a NaN that nothing computes


@contextmanager
def guarded() -> Iterator[None]:
    """Give threads their workspace farther apart in programs that are planned meanwhile, and at the end look between.

    There no kernel may have written anything: the next thread's workspace would be there, or another buffer. Each
    program has memory of its own, in which no other buffer lies where this workspace does.
    """
    rooms: list[tuple[Steps, Buffer, int, int]] = []
    between: list[Array] = []
    each_thread, place_buffers, begin = Steps.each_thread, Steps.place_buffers, Program.__init__

    def farther(self: Steps, floats: int) -> tuple[Buffer, int]:
        stride = each_thread(self, floats)[1] + MARGIN
        rooms.append((self, Buffer(4 * stride * self.threads), -(-floats // 16) * 16, stride))
        return rooms[-1][1], stride

    def place(self: Steps) -> int:
        for plan, buffer, _, _ in rooms:
            if plan is self:
                buffer.first, buffer.last = 0, len(self.steps)
        return place_buffers(self)

    def make(self: Program, planned: Steps, shared: Any = None) -> None:  # noqa: ARG001
        begin(self, planned)
        for plan, buffer, floats, stride in rooms:
            if plan is planned and buffer.offset >= 0:
                memory = self.arena[buffer.offset : buffer.offset + buffer.size].view(np.int32)
                between.append(memory.reshape(-1, stride)[:, floats:])
                between[-1][...] = UNTOUCHED

    with (
        patch.object(Steps, "each_thread", farther),
        patch.object(Steps, "place_buffers", place),
        patch.object(Program, "__init__", make),
    ):
        yield
    assert all((part == UNTOUCHED).all() for part in between)


def on_device(
    graph: Graph, data: Dataset, held: list[Array], rows: Array, keys: Keys | None = None, *, large: bool
) -> list[Array]:
    """Return gradients and losses of minibatches on a device, and the outcomes of the first parameters on `validation`.

    With `large`, tiles are large and samples are summed in groups of several, where there is a choice.
    """
    from fredsim.cuda.networks import program, steps
    from fredsim.cuda.networks.engine import CudaGraphEngine

    with (
        patch.object(program, "FEW_BLOCKS", 0 if large else 10**9),
        patch.object(steps, "MOST_SUMS", 0 if large else 10**9),
    ):
        engine = CudaGraphEngine(graph, data, rows.shape[1])
        grads, losses = engine.gradients(held, rows, keys)
        return [np.asarray(grads), losses, *engine.outcomes(held[0], "validation")]


def random_graph(rng: Draw) -> Graph:
    """Return a graph of one to seven random layers for images, then a dense layer or two."""
    while True:
        made = Builder(*map(int, (rng.choice([1, 2, 3, 5, 17]), *rng.integers(1, 12, 2))))
        try:
            for _ in range(rng.integers(1, 8)):
                LAYERS[rng.integers(len(LAYERS))](made, rng)
                if rng.random() < 0.2:
                    again(made, rng)
        except ValueError:  # a kernel is larger than the image
            if not made.nodes:
                continue
        layout = ("in_out", "out_in")[rng.integers(2)]
        made.add(Reshape((-1,)))
        if rng.random() < 0.4:
            hidden = int(rng.integers(1, 40))
            made.add(Linear(hidden, bool(rng.integers(2)), layout))  # type: ignore[arg-type]
            made.add(Relu())
            if rng.random() < 0.3:
                made.add(Linear(hidden, bool(rng.integers(2)), layout))  # type: ignore[arg-type]
                again(made, rng)
        made.add(Linear(int(rng.integers(2, 12)), bool(rng.integers(2)), layout))  # type: ignore[arg-type]
        loss = rng.random() < 0.7
        graph = made.graph(CrossEntropy()) if loss else made.graph(MeanSquaredError(), made.shapes[-1])
        return reordered(graph, rng) if rng.random() < 0.3 else graph


def reordered(graph: Graph, rng: Draw) -> Graph:
    """Return the graph with its nodes in another order in which each takes values before its own; the last stays."""
    numbers, nodes, left = {0: 0}, list[Node](), list(range(1, len(graph.nodes)))
    while left:
        ready = [number for number in left if numbers.keys() >= set(graph.nodes[number - 1].inputs)]
        number = ready[rng.integers(len(ready))]
        left.remove(number)
        nodes.append(graph.nodes[number - 1])
        numbers[number] = len(nodes)
    nodes = [replace(node, inputs=tuple(numbers[i] for i in node.inputs)) for node in [*nodes, graph.nodes[-1]]]
    return replace(graph, nodes=tuple(nodes))


def again(made: Builder, rng: Draw) -> None:
    """Add an operator with the tensors of an earlier node to a value of the shape that this took, if there is one."""
    found = [
        (node, i)
        for node in made.nodes
        for i, shape in enumerate(made.shapes)
        if node.tensors and len(node.inputs) == 1 and shape == made.shapes[node.inputs[0]] and i >= len(made.nodes) - 2
    ]
    if found:
        node, i = found[rng.integers(len(found))]
        made.add(node.operator, i, tensors=dict(node.tensors))


def pair(rng: Draw, low: int, high: int) -> tuple[int, int]:
    """Return two numbers, often the same."""
    a, b = map(int, rng.integers(low, high, 2))
    return (a, a) if rng.random() < 0.5 else (a, b)


def conv(made: Builder, rng: Draw) -> None:
    """Add a convolution of any kind."""
    channels = made.shapes[-1][0]
    divisors = [d for d in range(1, channels + 1) if channels % d == 0]
    kind = rng.random()
    groups = int(rng.choice(divisors)) if kind < 0.2 else channels if kind < 0.4 else 1
    outputs = groups * int(rng.choice([1, 2, 3, 4, 7, 16, 20])) if kind < 0.3 or kind >= 0.4 else groups
    dilation = pair(rng, 1, 4) if rng.random() < 0.25 else (1, 1)
    flat = made.shapes[-1][1] == 1 and bool(rng.integers(2))
    kernel, bias = pair(rng, 1, 6), bool(rng.integers(2))
    kernel = (1, kernel[1]) if flat else kernel
    made.add(Conv2d(outputs, kernel, pair(rng, 1, 4), pair(rng, 0, 3), groups, bias, flat, dilation))


def norm(made: Builder, rng: Draw) -> None:
    """Add a norm, and perhaps what is computed together with it."""
    channels, affine = made.shapes[-1][0], bool(rng.random() < 0.8)
    other = int(rng.choice([i for i, shape in enumerate(made.shapes) if shape == made.shapes[-1]]))
    divisors = [d for d in range(1, channels + 1) if channels % d == 0]
    kinds = (
        GroupNorm(int(rng.choice(divisors)), affine=affine),
        BatchNorm(affine=affine),
        FrozenBatchNorm(affine=affine),
    )
    before = made.add(kinds[int(rng.choice(3, p=[0.5, 0.35, 0.15]))])
    if rng.random() < 0.5:
        made.add(Add(), *((before, other) if rng.random() < 0.5 else (other, before)))
    if rng.random() < 0.7:
        made.add(Relu())


def pool(made: Builder, rng: Draw) -> None:
    """Add a pooling."""
    kernel, stride, kind = pair(rng, 1, 4), pair(rng, 1, 4), rng.integers(4)
    padding = (int(rng.integers(kernel[0] // 2 + 1)), int(rng.integers(kernel[1] // 2 + 1)))
    if kind < 2:
        made.add(MaxPool2d(kernel, kernel if rng.random() < 0.5 else stride, padding))
    elif kind == 2:
        made.add(AvgPool2d(kernel, stride, padding, count_padding=bool(rng.integers(2))))
    else:
        made.add(AdaptiveAvgPool2d(pair(rng, 1, 4)))


def add(made: Builder, rng: Draw) -> None:
    """Add two values of one shape, or take the larger or the smaller one; one of them may be detached."""
    same = [i for i, shape in enumerate(made.shapes) if shape == made.shapes[-1]]
    one, other = map(int, rng.choice(same, 2))
    if rng.random() < 0.2:
        other = made.add(Detach(), other)
    made.add((Add(), Maximum(), Minimum())[int(rng.choice(3, p=[0.5, 0.25, 0.25]))], one, other)


def block(made: Builder, rng: Draw) -> None:
    """Add a residual block."""
    before, outputs = made.last, int(rng.choice([3, 8, 16]))
    stride = pair(rng, 1, 3)
    made.add(Conv2d(outputs, (3, 3), stride, (1, 1), bias=False))
    made.add(GroupNorm(1))
    made.add(Relu())
    made.add(Conv2d(outputs, (3, 3), padding=(1, 1), bias=False))
    end = made.add(BatchNorm() if rng.random() < 0.3 else GroupNorm(1))
    shortcut = made.add(Conv2d(outputs, (1, 1), stride, bias=False), before)
    made.add(Add(), end, shortcut)
    made.add(Relu())


def activation(made: Builder, rng: Draw) -> None:
    """Add an activation."""
    made.add(Relu() if rng.random() < 0.3 else ACTIVATIONS[rng.integers(len(ACTIVATIONS))])


def gate(made: Builder, rng: Draw) -> None:
    """Combine the last value with one that is repeated along some axes: a parameter, numbers, or one made of it."""
    x, shape, kind = made.last, made.shapes[-1], rng.random()
    shape = tuple(size if rng.random() < 0.6 else 1 for size in shape)
    if kind < 0.4:
        other = made.add(Parameter(shape))
    elif kind < 0.6:
        other = made.add(Constant.of(rng.normal(size=shape).astype(np.float32)))
    else:
        other = made.add(AdaptiveAvgPool2d((1, 1)))
        if rng.random() < 0.5:
            other = made.add(Conv2d(shape[0], (1, 1)))
        other = made.add(Sigmoid())
    pair_of = (x, other) if rng.random() < 0.5 else (other, x)
    kinds = (Mul(), Add(), Maximum(), Minimum(), Keep())
    made.add(kinds[int(rng.choice(5, p=[0.35, 0.25, 0.13, 0.13, 0.14]))], *pair_of)


def views(made: Builder, rng: Draw) -> None:
    """Put axes in another order, take a part, make other axes, or join values along an axis."""
    shape, kind = made.shapes[-1], rng.integers(6)
    axis = int(rng.integers(3))
    if kind == 0:
        made.add(Permute(tuple(map(int, rng.permutation(3)))))
    elif kind == 1:
        made.add(Permute((1, 2, 0)))
        made.add(LayerNorm() if rng.random() < 0.5 else Linear(int(rng.integers(1, 30)), bool(rng.integers(2))))
        made.add(Permute((2, 0, 1)))
    elif kind == 2:
        begin = int(rng.integers(shape[axis]))
        made.add(Slice(axis, begin, int(rng.integers(begin + 1, shape[axis] + 1))))
    elif kind == 3:
        made.add(Reshape((shape[1], shape[0], shape[2])))
    elif kind == 4 and max(shape[1:]) < 12:
        resized(made, rng)
    else:
        fitting = [
            i for i, other in enumerate(made.shapes)
            if len(other) == 3 and all(a == b for k, (a, b) in enumerate(zip(shape, other, strict=True)) if k != axis)
        ]  # fmt: skip
        width = list(shape)
        width[axis] = int(rng.integers(1, 3))
        edge = made.add(Constant.of(np.zeros(width, np.float32)), made.last)  # as padding on one side is
        before = len(made.shapes) - 2
        chosen = [before, *map(int, rng.choice(fitting, int(rng.integers(1, 3)))), edge]
        made.add(Cat(axis), *map(int, rng.permutation(chosen)))


def resized(made: Builder, rng: Draw) -> None:
    """Repeat an image's pixels; other nodes may take the image meanwhile."""
    image, shape = made.last, made.shapes[-1]
    down, across = map(int, rng.integers(1, 4, 2))
    pixels = made.add(Reshape((shape[0], shape[1], 1, shape[2], 1)))
    ones = made.add(Constant.of(np.ones((1, 1, down, 1, across), np.float32)))
    others = [made.add(Conv2d(shape[0], (1, 1)), image) for _ in range(int(rng.choice([0, 0, 1, 2])))]
    made.add(Mul(), pixels, ones)
    large = made.add(Reshape((shape[0], shape[1] * down, shape[2] * across)))
    for other in others:
        large = made.add(Add(), large, made.add(AdaptiveAvgPool2d((1, 1)), other))


def thin(made: Builder, rng: Draw) -> None:
    """Make an image of one channel, and of one column or row; two convolutions take it, and one with its mean."""
    size = int(rng.integers(1, 9))
    made.add(AdaptiveAvgPool2d((size, 1) if rng.random() < 0.7 else (1, size)))
    image = made.add(Conv2d(1, (3, 3), padding=(1, 1)))
    mean = made.add(AdaptiveAvgPool2d((1, 1)), image)
    both = (image, mean) if rng.random() < 0.5 else (mean, image)
    product = made.add(Mul() if rng.random() < 0.5 else Add(), *both)
    made.add(Add(), product, made.add(Conv2d(1, (3, 3), padding=(1, 1)), image))


def drop(made: Builder, rng: Draw) -> None:
    """Add dropout."""
    made.add(Dropout(float(rng.choice([0.1, 0.5]))))


def attend(made: Builder, rng: Draw) -> None:
    """Add attention between pixels, beside a dense layer with dropout."""
    rows, columns = (min(size, 4) for size in made.shapes[-1][1:])
    made.add(AdaptiveAvgPool2d((rows, columns)))
    heads, width, places = int(rng.integers(1, 4)), int(rng.integers(1, 8)), rows * columns
    made.add(Reshape((made.shapes[-1][0], places)))
    pixels = made.add(Permute((1, 0)))
    each, parts = heads * width, list[int]()
    whole = made.add(Linear(3 * each))
    for begin in map(int, rng.permutation([0, each, 2 * each])):
        made.add(Reshape((places, heads, width)), made.add(Slice(1, begin, begin + each), whole))
        parts.append(made.add(Permute((1, 0, 2))))
    made.add(Attention(bool(rng.integers(2)), dropout=float(rng.choice([0.0, 0.2]))), *parts)
    beside = made.add(Dropout(0.3), made.add(Linear(each), pixels)) if rng.random() < 0.7 else 0
    made.add(Permute((1, 0, 2)), parts[-1] + 1)
    y = made.add(Reshape((places, each)))
    if beside:
        made.add(Add(), y, beside)
    made.add(Permute((1, 0)))
    made.add(Reshape((each, rows, columns)))


def pairs(made: Builder, rng: Draw) -> None:
    """Multiply each channel, a matrix, by its transpose, or by that of what is made of it."""
    x = made.last
    other = made.add(Tanh()) if rng.random() < 0.5 else x
    turned = made.add(Permute((0, 2, 1)), other)
    made.add(MatMul(), *((x, turned) if rng.random() < 0.5 else (turned, x)))


def positions(made: Builder, rng: Draw) -> None:
    """Add what is done along the last axis."""
    width = int(rng.integers(1, 20))
    kinds = [LayerNorm(), RmsNorm(), Softmax(), LogSoftmax(), Linear(width), LayerNorm(affine=False)]
    made.add(kinds[rng.integers(len(kinds))])


ACTIVATIONS: list[Operator] = [
    Silu(), Gelu(), Gelu("tanh"), Tanh(), Sigmoid(), LeakyRelu(0.2), Elu(0.7), Hardtanh(0.0, 6.0), Hardtanh(-0.5, 0.25),
    Hardsigmoid(), Hardswish(), Scale(-0.7), Shift(0.3), Softplus(), Mish(), Abs(), Exp(), Sqrt(), Reciprocal(),
    Hardtanh(-0.25, 0.5, inclusive=True), Sqrt(flat=True), Log(), Log1p(),
    Sin(), Cos(), Sin(), Cos(),
]  # fmt: skip
LAYERS: list[Callable[[Builder, Draw], Any]] = [
    conv, conv, conv, conv, norm, norm, pool, pool, add, block, activation, activation, gate, views, positions,
    pairs, resized, thin, drop, attend,
]  # fmt: skip


def dataset(graph: Graph, rng: Draw, count: int = 40, *, odd: bool = False) -> Dataset:
    """Return samples and targets that fit a graph; odd samples have zeros of both signs, subnormal and huge numbers."""
    x = rng.normal(size=(count, *graph.sample)).astype(np.float32)
    if odd:
        values = np.array([0.0, -0.0, 1e-42, -3e-39, 1.0], np.float32)
        x = np.where(rng.random(x.shape) < 0.4, rng.choice(values, x.shape), x)
        huge = np.where(rng.random(x.shape) < 0.2, rng.choice(np.array([1e30, -2e19, 3e38], np.float32), x.shape), x)
        x = np.where(rng.random((count, *[1] * len(graph.sample))) < 0.1, huge, x)  # a tenth of the samples
    y: Array = rng.integers(0, graph.shapes[-1][-1], count)
    if isinstance(graph.loss, MeanSquaredError):
        y = rng.normal(size=(count, *graph.target)).astype(np.float32)
    split = Split(x, y)
    return Dataset(split, split, Split(x[:17], y[:17]), graph.shapes[-1][-1])


def initial(graph: Graph, rng: Draw, *, odd: bool = False) -> Array:
    """Return parameters, float32 (P,), with MARGIN floats behind them; odd ones as odd samples are."""
    params = aligned(graph.layout.size + MARGIN)[: graph.layout.size]
    for name, view in graph.layout.split(params).items():
        drawn = rng.normal(size=view.shape) * (1 / np.sqrt(max(1, view[0].size)) if view.ndim > 1 else 1)
        if odd:
            values = np.array([0.0, -0.0, 1e-40, 100.0, -0.5])
            drawn = np.where(rng.random(view.shape) < 0.2, rng.choice(values, view.shape), drawn)
        view[...] = np.abs(drawn) if name.endswith("variance") else drawn
    return params
