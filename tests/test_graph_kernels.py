"""The kernels of networks that are graphs have the bits of the operators' definitions, for any number of threads."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.compute.graph_engine import GraphEngine
from fredsim.data.datasets import Dataset, Split
from fredsim.jit.kernel import Kernel
from fredsim.jit.processor import WIDE
from fredsim.kernels.ops import few_samples, linear, registry
from fredsim.kernels.ops.engine import NumbaGraphEngine
from fredsim.kernels.ops.images import conv2d, conv_weights, correlate
from fredsim.kernels.ops.images.correlate import LANES, Tile, padded, spans, tile_of
from fredsim.kernels.ops.images.repeated import RepeatedPixels
from fredsim.kernels.ops.images.rewritten import with_images
from fredsim.kernels.ops.program import Batch, Steps
from fredsim.networks.graph import Graph
from fredsim.networks.running import Found, Running, RunningNorm
from fredsim.numerics.arrays import MARGIN, aligned
from fredsim.numerics.ops.arithmetic import Add, Keep, Maximum, Mul
from fredsim.numerics.ops.conv2d import Conv2d
from fredsim.numerics.ops.draws import Keys
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.numerics.ops.norms import BatchNorm, GroupNorm, LayerNorm
from fredsim.numerics.ops.operator import Array, Operator
from fredsim.numerics.ops.pointwise import Cos, Log, Log1p, Relu, Sin, Tanh
from fredsim.numerics.ops.pooling import AdaptiveAvgPool2d, MaxPool2d
from fredsim.numerics.ops.products import Softmax
from fredsim.numerics.ops.sources import Constant, Parameter
from fredsim.numerics.ops.views import Cat, Detach, Permute, Reshape
from tests.conftest import HAS_CUDA
from tests.random_graphs import Builder, bits, dataset, guarded, initial, mixed, on_device, random_graph

ROOT = Path(__file__).parent.parent
QUICK, MANY = 36, 3000  # random graphs; the second number with --slow


@pytest.fixture
def few_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tiles be of few sizes, since one takes seconds to compile; with --slow of all.

    Their code is made from the same text; further sizes are tried by `test_convolutions` and the golden digests.
    """
    if not request.config.getoption("--slow"):
        monkeypatch.setattr(correlate, "PIXELS", (1, 4, 7, 20))
        monkeypatch.setattr(conv_weights, "HEIGHTS", (1, 4, 9, 24))


class Minibatches:
    """Some minibatches of a graph, and the gradients, losses and answers of its operators' definitions."""

    def __init__(self, graph: Graph, mu: int, seed: int, *, odd: bool = False, batches: int = 2) -> None:
        rng = np.random.default_rng(seed)
        self.graph, self.mu, self.large = graph, mu, seed % 3 != 0
        self.data = dataset(graph, rng, odd=odd)
        self.held = [initial(graph, rng, odd=odd) for _ in range(batches)]
        self.rows = rng.integers(0, len(self.data.train), (batches, mu))
        self.keys = Keys(seed, *rng.integers(0, 9, (2, batches)))
        self.defined = GraphEngine(graph, self.data)
        self.grads, self.losses = self.defined.gradients(self.held, self.rows, self.keys)

    def compare_kernels(self, threads: int) -> None:
        with guarded(), closing(NumbaGraphEngine(self.graph, self.data, self.mu, threads)) as engine:
            for _ in range(2):  # the second time, buffers have what the first left in them
                found, losses = engine.gradients(self.held, self.rows, self.keys)
                assert bits(losses) == bits(self.losses)
                assert bits(found) == bits(self.grads)
            each, wrong = self.defined.outcomes(self.held[0], "test")
            found_each, found_wrong = engine.outcomes(self.held[0], "test")
            assert bits(found_each) == bits(each)
            assert np.array_equal(found_wrong, wrong, equal_nan=True)

    def compare_device(self) -> None:
        if HAS_CUDA:
            found = on_device(self.graph, self.data, self.held, self.rows, self.keys, large=self.large)
            defined = self.grads, self.losses, self.defined.outcomes(self.held[0], "validation")[0]
            assert [bits(one) for one in found[:3]] == [bits(one) for one in defined]


def compare(graph: Graph, mu: int, threads: int, seed: int, *, odd: bool = False, batches: int = 2) -> Array:
    """Compare gradients, losses and answers with the definitions'; return the gradients."""
    minibatches = Minibatches(graph, mu, seed, odd=odd, batches=batches)
    minibatches.compare_kernels(threads)
    minibatches.compare_device()
    return minibatches.grads


def compare_random(seed: int) -> None:
    """Compare a random graph, with odd numbers for every other seed."""
    rng = np.random.default_rng(seed)
    graph, mu = random_graph(rng), int(rng.choice([1, 2, 3, 4, 5, 8, 9, 16, 33]))
    batches = 4 if seed % 5 == 0 else 1  # with so many, each thread computes some alone
    compare(graph, mu, 1 + seed % 3, seed, odd=bool(seed % 2), batches=batches)


@pytest.mark.usefixtures("few_tiles")
@pytest.mark.parametrize("part", range(6))
def test_random_graphs(part: int) -> None:
    for seed in range(part, QUICK, 6):
        compare_random(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_random_graphs(part: int) -> None:
    for seed in range(QUICK + part, MANY, 10):
        compare_random(seed)


#: Convolutions: channels, rows and columns of the sample, the operator, µ; each large enough for tiles of other sizes.
CONVOLUTIONS: dict[str, tuple[tuple[int, int, int], Conv2d, int]] = {
    "wide rows": ((3, 9, 32), Conv2d(16, (3, 3), padding=(1, 1)), 4),
    "rows of no whole tiles": ((4, 10, 29), Conv2d(17, (3, 3), padding=(1, 1)), 4),
    "bands": ((16, 20, 13), Conv2d(16, (3, 3), padding=(1, 1), bias=False), 5),
    "across samples": ((20, 12, 12), Conv2d(50, (5, 5)), 16),
    "across samples, some left": ((20, 9, 9), Conv2d(18, (5, 5), padding=(2, 2)), 21),
    "pairs of samples": ((17, 8, 8), Conv2d(33, (3, 3), padding=(1, 1)), 7),
    "strides": ((16, 16, 16), Conv2d(32, (3, 3), (2, 2), (1, 1)), 8),
    "strides wider than the kernel": ((8, 17, 16), Conv2d(48, (2, 1), (3, 2)), 8),
    "no window": ((9, 14, 14), Conv2d(70, (1, 1), (2, 2)), 6),
    "groups": ((24, 14, 14), Conv2d(40, (3, 3), padding=(1, 1), groups=4), 6),
    "each channel": ((20, 12, 12), Conv2d(20, (3, 3), padding=(1, 1), groups=20), 8),
    "each channel, strides": ((17, 13, 18), Conv2d(17, (5, 3), (2, 3), (2, 1), 17, False), 5),
    "each channel, dilated": ((33, 11, 12), Conv2d(33, (3, 3), (2, 1), (2, 3), 33, dilation=(2, 3)), 3),
    "dilated": ((16, 12, 15), Conv2d(20, (3, 3), padding=(2, 4), dilation=(2, 3)), 5),
    "dilated groups": ((12, 9, 16), Conv2d(18, (2, 3), (2, 1), (0, 2), 3, dilation=(1, 2)), 6),
    "one input": ((1, 28, 28), Conv2d(20, (5, 5)), 6),
    "half a vector": ((6, 14, 15), Conv2d(8, (5, 5), padding=(2, 2)), 5),
    "two vectors and a half": ((40, 9, 11), Conv2d(37, (3, 3), padding=(1, 1)), 9),
    "many blocks of samples": ((16, 24, 24), Conv2d(16, (3, 3), padding=(1, 1)), 23),
}


#: Those that differ least from others.
ALIKE = {
    "rows of no whole tiles",
    "across samples, some left",
    "strides",
    "each channel",
    "dilated",
    "two vectors and a half",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in CONVOLUTIONS]
)
def test_convolutions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second convolution takes the first one's output, so that the error of an input is wanted.

    Which processors have gradients of weights from panels is not looked at.
    """
    shape, operator, mu = CONVOLUTIONS[name]
    made = Builder(*shape)
    made.add(Conv2d(shape[0], (1, 1)))
    made.add(operator)
    made.add(AdaptiveAvgPool2d((1, 1)))
    made.add(Reshape((-1,)))
    made.add(Linear(3))
    graph = made.graph(CrossEntropy())
    tile = tile_of(mu, spans(1, 1, 0, 1, shape[2], shape[2]), operator.outputs, 10**9)
    assert tile.samples * tile.pixels * tile.vectors > 1
    minibatches = Minibatches(graph, mu, 1, batches=1)
    minibatches.compare_device()
    for panels in (False, True):
        monkeypatch.setattr(conv2d, "PANELS", panels)
        minibatches.compare_kernels(2)


@pytest.mark.parametrize(("inputs", "outputs", "mu"), [(70, 130, 1), (300, 40, 4), (40, 300, 13), (129, 65, 40)])
@pytest.mark.parametrize("layout", ["in_out", "out_in"])
def test_dense_layers(inputs: int, outputs: int, mu: int, layout: str) -> None:
    made = Builder(inputs)
    made.add(Linear(outputs, True, layout))  # type: ignore[arg-type]
    made.add(Relu())
    made.add(Linear(5, False, layout))  # type: ignore[arg-type]
    minibatches = Minibatches(made.graph(CrossEntropy()), mu, mu, batches=3)
    minibatches.compare_device()
    for threads in (1, 3):
        minibatches.compare_kernels(threads)


@pytest.mark.parametrize("layout", ["in_out", "out_in"])
@pytest.mark.parametrize("mu", [1, 2, 5, 8, 9, 16, 33])
def test_dense_layers_of_few_samples(mu: int, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are read once, along rows, however small they are here and whatever the processor is."""
    monkeypatch.setattr(few_samples, "MOST_SAMPLES", 64)
    monkeypatch.setattr(few_samples, "LARGE", 0)
    monkeypatch.setattr(few_samples, "SUMS_AT_ONCE", 16 * mu * (1 + mu % 3))
    made = Builder(131)
    for outputs, bias in [(12, True), (13, False), (50, True), (1, False), (65, True), (16, False), (3, True)]:
        made.add(Linear(outputs, bias, layout))  # type: ignore[arg-type]
    steps: list[str] = []
    step = Steps.step

    def noted(self: Steps, kernel: Kernel, **fields: Any) -> None:
        steps.append(kernel.function.__name__)
        step(self, kernel, **fields)

    monkeypatch.setattr(Steps, "step", noted)
    compare(made.graph(CrossEntropy()), mu, 1 + mu % 3, mu, odd=mu == 5)
    assert steps.count("by_columns") > 0
    assert steps.count("by_rows") == steps.count("turn")
    assert ("by_rows" in steps) == (mu <= 16)


@pytest.mark.parametrize("vectors", [1, 2, 3, 4])
def test_nothing_is_read_behind_a_bias_that_is_not_there(vectors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of weights are read by several vectors at once, of which the last block may have some too many."""
    monkeypatch.setattr(few_samples, "MOST_SAMPLES", 0)
    monkeypatch.setattr(linear, "tile_of", lambda *_, **__: Tile(1, 1, vectors, across=False))
    fields: list[dict[str, Any]] = []
    monkeypatch.setattr(Steps, "step", lambda self, kernel, **given: fields.append(given))
    for outputs in range(1, 200, 8):
        made = Builder(3)
        made.add(Linear(outputs, bias=False, layout="in_out"))
        graph = made.graph(MeanSquaredError(), (outputs,))
        NumbaGraphEngine(graph, dataset(graph, np.random.default_rng(0)), 2, 1).close()
        (bias, blocks), *_ = [(given["bias"], given["blocks"]) for given in fields if "blocks" in given]
        assert len(bias) >= LANES * vectors * blocks, outputs
        fields.clear()


def test_what_no_kernel_computes_is_computed_by_its_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where two nodes have one tensor."""
    for operator in (Softmax, LayerNorm, Mul):
        monkeypatch.delitem(registry.KERNELS, operator)
    made = Builder(4, 6, 6)
    made.add(Conv2d(4, (3, 3), padding=(1, 1)))
    before = made.add(Tanh())
    after = made.add(Conv2d(4, (3, 3), padding=(1, 1)))
    made.add(Mul(), before, after)
    made.add(Reshape((12, 12)))
    made.add(LayerNorm())
    made.add(Softmax())
    made.add(Reshape((-1,)))
    made.add(Linear(4))
    graph = made.graph(CrossEntropy())
    compare(graph, 5, 2, 0)
    nodes = [*graph.nodes]
    nodes[2] = type(nodes[2])(nodes[2].operator, nodes[2].inputs, nodes[0].tensors)
    tied = Graph(graph.sample, graph.target, tuple(nodes), graph.loss, graph.layout)
    grads = compare(tied, 5, 2, 0)
    assert not tied.layout.split(grads[0])["2.weight"].any()


def test_a_convolution_of_very_many_rows() -> None:
    """More than 2^17 bands, whose sums wait for each other in a tree of 17 levels."""
    made = Builder(1, 2**20 + 9, 1)
    made.add(Conv2d(1, (1, 1), bias=False))
    graph, rng = made.graph(MeanSquaredError(), (1, 2**20 + 9, 1)), np.random.default_rng(0)
    x, y = (rng.standard_normal((2, *shape)).astype(np.float32) for shape in (graph.sample, graph.target))
    data, params = Dataset(Split(x, y), Split(x[:0], y[:0]), Split(x[:0], y[:0]), 2), initial(graph, rng)
    rows = np.zeros((1, 1), np.int64)
    (expected,), losses = GraphEngine(graph, data).gradients([params], rows)
    with guarded(), closing(NumbaGraphEngine(graph, data, 1, 1)) as engine:
        found, found_losses = engine.gradients([params], rows)
        assert bits(found[0]) == bits(expected)
        assert bits(found_losses) == bits(losses)


def test_one_norm_at_two_nodes() -> None:
    """Each finds its own mean and variance; the second is computed together with a sum and a ReLU."""
    made, norm = Builder(3, 4, 5), BatchNorm()
    image = made.add(Conv2d(4, (3, 3)), made.add(norm))
    made.add(Relu(), made.add(Add(), made.add(norm, made.add(Conv2d(4, (1, 1)), image)), image))
    made.add(Reshape((-1,)))
    made.add(Linear(4))
    graph, rng = made.graph(CrossEntropy()), np.random.default_rng(0)
    graph = replace(graph, running=Running((RunningNorm("m0", "v0"), RunningNorm("m1", "v1"))))
    data, params, rows = dataset(graph, rng), initial(graph, rng), np.arange(6)[None]
    seen: list[Found] = []
    graph.gradient(params, data.train.x[:6], data.train.y[:6], seen=seen)
    assert [len(found.mean) for found in seen] == [3, 4]
    engine = NumbaGraphEngine(graph, data, 6, 2)
    engine.gradients([params], rows)
    found = engine._plan.seen or []
    engine.close()
    assert [bits(np.stack(one[:2])) for one in found] == [bits(np.stack(one[:2])) for one in seen]


def test_errors_that_meet_are_added_in_the_nodes_order() -> None:
    """A value goes to a norm, two sums and a convolution; what can be computed together is, the rest is not."""
    made = Builder(3, 7, 7)
    h = made.add(Conv2d(8, (3, 3), padding=(1, 1)))
    a = made.add(GroupNorm(2), h)
    b = made.add(Conv2d(8, (3, 3), padding=(1, 1)), h)
    c = made.add(BatchNorm(), b)
    d = made.add(Add(), a, c)
    e = made.add(Relu(), d)
    f = made.add(Add(), e, h)
    g = made.add(GroupNorm(4), f)
    i = made.add(Add(), g, d)
    made.add(Add(), i, i)
    made.add(Reshape((-1,)))
    made.add(Linear(4))
    compare(made.graph(CrossEntropy()), 6, 2, 3)


def test_errors_of_one_value_are_added_in_the_order_of_a_nodes_inputs() -> None:
    """A node takes an image three times in another form, and another node takes it later."""
    made = Builder(3, 7, 6)
    h = made.add(Conv2d(8, (3, 3), padding=(1, 1)))
    joined = made.add(Cat(2), h, h, h)
    last = made.add(Conv2d(3, (3, 3)), h)
    ends = [made.add(Reshape((-1,)), i) for i in (joined, last)]
    made.add(Cat(0), *ends)
    made.add(Linear(4))
    compare(made.graph(CrossEntropy()), 6, 2, 3)


@pytest.mark.parametrize("repeated", [True, False], ids=["repeated pixels", "channels last"])
def test_a_value_whose_error_others_add_to_meanwhile(repeated: bool) -> None:
    """Two convolutions take the image between the first and the last of the nodes that one is written for."""
    made = Builder(3, 4, 6)
    image = made.add(Conv2d(5, (3, 3), padding=(1, 1)))
    ones = made.add(Constant.of(np.ones((1, 1, 2, 1, 3), np.float32)))
    first = made.add(Reshape((5, 4, 1, 6, 1) if repeated else (5, 24)), image)
    others = [made.add(Conv2d(4, (3, 3)), image) for _ in range(2)]
    if repeated:
        last = made.add(Reshape((5, 8, 18)), made.add(Mul(), first, ones))
    else:
        last = made.add(Linear(7), made.add(Permute((1, 0)), first))
    made.add(Cat(0), *(made.add(Reshape((-1,)), i) for i in (last, *others)))
    made.add(Linear(4))
    graph = made.graph(CrossEntropy())
    assert with_images(graph).nodes != graph.nodes
    compare(graph, 5, 2, 0)


@pytest.mark.parametrize(
    ("operator", "swapped"), [(Add(), False), (Mul(), True), (Maximum(), False), (Keep(), True)],
    ids=["add", "multiply", "maximum", "keep"],
)  # fmt: skip
def test_an_operand_of_one_channel_and_column_with_a_halo(operator: Operator, swapped: bool) -> None:
    """Another node, a convolution, wants columns of +0 beside it, so that its elements are no neighbours."""
    made = Builder(1, 8, 1)
    image = made.add(Conv2d(1, (3, 3), padding=(1, 1)))
    mean = made.add(AdaptiveAvgPool2d((1, 1)), image)
    both = made.add(operator, *((mean, image) if swapped else (image, mean)))
    made.add(Add(), made.add(Conv2d(1, (3, 3), padding=(1, 1)), image), both)
    made.add(Reshape((-1,)))
    made.add(Linear(4))
    compare(made.graph(CrossEntropy()), 5, 2, 0)


def test_what_the_plan_writes_with_images_has_the_bits_of_the_graph() -> None:
    """Repeated pixels, norms of sequences and of vectors, and channels that become the last axis."""
    made = Builder(5, 4, 6)
    image = made.add(Conv2d(20, (3, 3), padding=(1, 1)))
    pixels = made.add(Reshape((20, 4, 1, 6, 1)))
    ones = made.add(Reshape((1, 1, 2, 1, 3)), made.add(Constant.of(np.ones((1, 1, 1, 2, 1, 3), np.float32)), image))
    made.add(Mul(), pixels, ones)
    made.add(Reshape((20, 8, 18)))
    made.add(Conv2d(4, (3, 3), (2, 2)))
    made.add(Reshape((4, 24)))
    made.add(Permute((1, 0)))
    made.add(LayerNorm())
    made.add(BatchNorm())
    made.add(GroupNorm(8))
    made.add(Reshape((-1,)))
    made.add(Linear(6))
    made.add(BatchNorm(affine=False))
    made.add(Linear(4))
    graph = made.graph(CrossEntropy())
    kinds = [type(node.operator) for node in with_images(graph).nodes]
    assert kinds.count(RepeatedPixels) == 1
    assert kinds.count(Mul) == 0
    assert Permute((1, 2, 0)) in [node.operator for node in with_images(graph).nodes]
    compare(graph, 5, 2, 0)


def test_samples_that_meet_are_evaluated_in_the_blocks_of_the_definition() -> None:
    made = Builder(2, 3, 3)
    made.add(BatchNorm())
    made.add(Reshape((-1,)))
    made.add(Linear(4))
    graph, rng = made.graph(CrossEntropy()), np.random.default_rng(0)
    data, params = dataset(graph, rng, 700), initial(graph, rng)
    engine = NumbaGraphEngine(graph, data, 3, 2)
    losses, wrong = engine.outcomes(params, "train")
    expected = GraphEngine(graph, data).outcomes(params, "train")
    assert (bits(losses), wrong.tolist()) == (bits(expected[0]), expected[1].tolist())
    assert engine.evaluate(params, "train") == GraphEngine(graph, data).evaluate(params, "train")
    engine.close()


def test_tensors_whose_results_are_detached() -> None:
    """One has no gradient at all, one that of its other node alone."""
    made = Builder(5)
    alone, shared = made.add(Linear(4), 0), made.add(Linear(4), 0)
    seen = made.add(Linear(4), 0, tensors=dict(made.nodes[shared - 1].tensors))
    made.add(Mul(), made.add(Detach(), shared), seen)
    made.add(Add(), made.last, made.add(Detach(), alone))
    made.add(Linear(3))
    graph = made.graph(CrossEntropy())
    parts = graph.layout.split(compare(graph, 6, 2, 1)[0])
    assert not parts["0.weight"].any()
    assert parts["1.weight"].all()


@pytest.mark.parametrize("operator", [Log(), Log1p(), Sin(), Cos()], ids=lambda one: type(one).__name__)
def test_functions_of_any_number(operator: Operator) -> None:
    """Of random bits: values, and by the gradient of what is added, which is −0, slopes."""
    made, size = Builder(3000), 3000
    made.add(Add(), 0, made.add(Parameter((size,))))
    made.add(operator)
    graph = made.graph(MeanSquaredError(), (size,))
    x = np.random.default_rng(0).integers(0, 2**32, (20, size), np.uint64).astype(np.uint32).view(np.float32)
    split = Split(x, np.ones((20, size), np.float32))
    data, rows = Dataset(split, split, split, 2), np.arange(20)[:, None]
    held = [aligned(size + MARGIN)[:size]] * 20
    held[0][...] = -0.0
    with np.errstate(all="ignore"):
        grads, losses = GraphEngine(graph, data).gradients(held, rows)
    assert np.isfinite(grads).mean() > 0.3
    with closing(NumbaGraphEngine(graph, data, 1, 2)) as engine:
        found = engine.gradients(held, rows)
        assert [bits(one) for one in found] == [bits(grads), bits(losses)]
    if HAS_CUDA:
        assert [bits(one) for one in on_device(graph, data, held, rows, large=True)[:2]] == [bits(grads), bits(losses)]


def test_overflow_spreads_as_in_the_definition() -> None:
    """Activations overflow, dead units have infinite errors, and padding of +0 meets them in gradients of weights."""
    made = Builder(2, 9, 9)
    made.add(Conv2d(5, (3, 3), (2, 2), (1, 1)))
    made.add(Relu())
    made.add(MaxPool2d((2, 2), (2, 2), (1, 1)))
    made.add(Conv2d(3, (3, 3), padding=(2, 2)))
    made.add(Reshape((-1,)))
    made.add(Linear(2))
    graph = made.graph(MeanSquaredError(), (2,))
    grads = np.concatenate([compare(graph, 4, 2, seed, odd=True) for seed in range(12)])
    unknown = np.isnan(grads)
    assert unknown.any()
    assert not unknown.any(axis=1).all()


def test_buffers_that_are_not_needed_at_once_share_memory() -> None:
    """A chain of convolutions keeps their inputs for the gradients, and needs two errors at a time."""
    made, mu, size = Builder(16, 16, 16), 8, 16 * 16 * 16 * 4
    for _ in range(6):
        made.add(Conv2d(16, (3, 3), padding=(1, 1), bias=False))
    made.add(AdaptiveAvgPool2d((1, 1)))
    made.add(Reshape((-1,)))
    made.add(Linear(3))
    graph = made.graph(CrossEntropy())
    engine = NumbaGraphEngine(graph, dataset(graph, np.random.default_rng(0)), mu, 1)
    kept, weights = 7 * mu * size, 6 * 4 * 16 * 16 * 9
    assert kept < engine.buffer_bytes < 1.15 * kept + 3 * mu * size + 4 * weights
    engine.close()


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_written_behind_a_gradient(seed: int) -> None:
    """There may stand another one, which another thread computes."""
    rng = np.random.default_rng(seed)
    graph, mu = random_graph(rng), 3
    engine, size = NumbaGraphEngine(graph, dataset(graph, rng), mu, 1), graph.layout.size
    held, rows = [initial(graph, rng)], rng.integers(0, 30, (1, mu))
    engine.gradients(held, rows)
    room, losses = np.full(size + 4 * MARGIN, 7, np.float32), np.empty(mu, np.float32)
    engine._program.run(engine._team, Batch(held[0], rows[0], room, losses, None, engine._program.arena), 0)
    assert (room[size:] == 7).all()
    assert (room[:size] != 7).any()
    engine.close()


#: How many registers there are, and how many hold 16 floats: 32 of 16 floats with AVX-512, 16 of 8 with AVX2.
REGISTERS, EACH = (32, 1) if WIDE else (16, 2)


def test_tiles_fit_and_leave_nothing_out() -> None:
    for samples in (1, 2, 7, 32):
        for columns in (1, 3, 8, 29):
            for outputs in (1, 20, 24, 25, 48, 70):
                reached = spans(-1, 1, 1, 3, columns, columns)
                tile = tile_of(samples, reached, outputs, 10**9)
                assert tile.samples <= samples
                assert tile.pixels <= (samples if tile.across else columns)
                assert padded(outputs) // LANES % tile.vectors == 0
                # Sums, weights, a product and an input; the smallest tile is there whatever fits.
                width = tile.vectors - all(tile.halves) / 2
                vectors = tile.samples * tile.pixels * width + width
                assert EACH * vectors + 2 <= REGISTERS or vectors <= 2
                blocks = padded(outputs) // LANES // tile.vectors
                last = not WIDE and outputs in (1, 20, 24, 70)  # one, four, eight and six channels of 16
                assert tile.halves == ((False, True) if last and blocks > 1 else (last,))
    assert tile_of(32, spans(1, 1, -1, 3, 32, 32), 16, 10**9) != Tile(1, 1, 1, across=False)


DIGEST = """
import hashlib
import numpy as np
from tests.random_graphs import bits, dataset, initial, mixed
from fredsim.kernels.ops import few_samples, registry
from fredsim.kernels.ops.engine import NumbaGraphEngine

graph, rng = mixed(), np.random.default_rng(0)
engine = NumbaGraphEngine(graph, dataset(graph, rng), 9, 1)
grads, losses = engine.gradients([initial(graph, rng)], np.arange(9)[None])
print(hashlib.sha256(bits(grads) + bits(losses)).hexdigest())
"""


@pytest.mark.parametrize("processor", [pytest.param("generic", marks=pytest.mark.slow), "haswell"])
def test_other_processors_have_the_same_bits(processor: str) -> None:
    """Code for SSE2 and for AVX2, whose registers hold fewer sums."""
    if os.uname().machine != "x86_64":
        pytest.skip("the processor is of another kind")
    environment = os.environ | {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": ""}
    words = [sys.executable, "-c", DIGEST]
    found = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    graph, rng = mixed(), np.random.default_rng(0)
    engine = GraphEngine(graph, dataset(graph, rng))
    grads, losses = engine.gradients([initial(graph, rng)], np.arange(9)[None])
    assert found.strip() == hashlib.sha256(bits(grads) + bits(losses)).hexdigest()
