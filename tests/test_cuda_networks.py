"""Networks on a device, or emulated: every kernel, windows and blocks of any size, whole runs, what is refused."""

import ctypes
import gc
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from fredsim.compute.graph_engine import BLOCK, GraphEngine
from fredsim.config.document import dump_yaml
from fredsim.data.datasets import Dataset, Split
from fredsim.errors import ConfigError, SimulationError
from fredsim.networks.graph import Graph
from fredsim.networks.zoo.gpt import gpt
from fredsim.numerics.ops.arithmetic import Add, Mul
from fredsim.numerics.ops.attention import Attention
from fredsim.numerics.ops.conv2d import Conv2d
from fredsim.numerics.ops.draws import Keys
from fredsim.numerics.ops.dropout import Dropout
from fredsim.numerics.ops.embedding import Embedding
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.bce import BinaryCrossEntropy
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.numerics.ops.norms import BatchNorm, FrozenBatchNorm, GroupNorm, LayerNorm
from fredsim.numerics.ops.operator import Array, Operator
from fredsim.numerics.ops.pointwise import Relu, Scale, Shift, Sigmoid
from fredsim.numerics.ops.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from fredsim.numerics.ops.positions import Positions
from fredsim.numerics.ops.products import LogSoftmax, MatMul, Softmax
from fredsim.numerics.ops.sources import Constant, Parameter
from fredsim.numerics.ops.views import Cat, Permute, Reshape, Slice
from fredsim.runs.folder.results import Result
from tests.conftest import HAS_CUDA, DeviceBytes
from tests.random_graphs import Builder, initial

if not HAS_CUDA:
    pytest.skip("there is neither a CUDA device nor a C++ compiler to emulate one", allow_module_level=True)

from fredsim.cuda.backend import can_compute
from fredsim.cuda.kernels import FAMILIES, unit_of
from fredsim.cuda.launches import Launches
from fredsim.cuda.machines import EMULATED, machine
from fredsim.cuda.networks import engine as engines
from fredsim.cuda.networks import program, steps
from fredsim.cuda.networks.engine import CudaGraphEngine

Simulate = Callable[..., Result]
ROWS = 30


def same(found: Any, expected: Any) -> bool:
    """Return whether two arrays have the same bits; one NaN is like another."""
    found, expected = np.asarray(found), np.asarray(expected)
    kind = np.dtype(f"u{found.itemsize}")
    both = np.isnan(found) & np.isnan(expected)
    return bool((both | (found.view(kind) == np.asarray(expected, found.dtype).view(kind))).all())


def images() -> Graph:
    """Return a network of images with strides, groups, every pooling, norms of every kind, layers of many widths."""
    made = Builder(3, 10, 9)
    made.add(Conv2d(40, (2, 2), padding=(1, 1)))
    made.add(GroupNorm(4))
    made.add(Relu())
    made.add(Conv2d(20, (1, 1)))
    made.add(Conv2d(20, (3, 2), (2, 3), (1, 0), groups=4))
    made.add(BatchNorm())
    made.add(MaxPool2d((3, 3), (2, 2), (1, 1)))
    made.add(Conv2d(12, (1, 1), bias=False))
    made.add(FrozenBatchNorm())
    made.add(AvgPool2d((2, 2), (1, 1), (1, 1), count_padding=False))
    made.add(AdaptiveAvgPool2d((2, 2)))
    made.add(Reshape((-1,)))
    made.add(Dropout(0.25))
    made.add(Linear(70, layout="out_in"))
    made.add(Relu())
    made.add(Linear(5))
    return made.graph(CrossEntropy(0.1))


def matrices() -> Graph:
    """Return a network of products of matrices, of numbers that are no samples, of views, and of broadcast products."""
    made = Builder(6, 5)
    made.add(Linear(40))
    parts = [made.add(Slice(1, begin, begin + 20), 1) for begin in (0, 20)]
    scores = made.add(MatMul(), parts[0], made.add(Permute((1, 0)), parts[1]))
    shares = made.add(Softmax(), made.add(Scale(0.3), scores))
    mixed = made.add(MatMul(), shares, parts[1])
    gate = made.add(Parameter((1, 20)), 0)
    mixed = made.add(Mul(), mixed, gate)
    fixed = made.add(Constant.of(np.arange(12, dtype=np.float32).reshape(6, 2)), 0)
    made.add(Cat(1), made.add(Shift(-0.5), mixed), made.add(Sigmoid(), fixed))
    made.add(LogSoftmax())
    made.add(Linear(2, bias=False))
    return made.graph(BinaryCrossEntropy(), (6, 2))


def wide() -> Graph:
    """Return a network of dense layers for tiles of every size, in both layouts, at one and at several positions."""
    made = Builder(9, 33)
    made.add(Linear(70, layout="out_in"))
    made.add(Linear(35))
    made.add(Reshape((-1,)))
    made.add(Linear(66))
    made.add(Linear(3, layout="out_in"))
    return made.graph(MeanSquaredError(), (3,))


def tokens() -> Graph:
    """Return a transformer with dropout, whose table is its last layer, too; some places do not count."""
    return gpt(13, (10,), 12, 1, 3, CrossEntropy(ignored=-1), dropout=0.3)


def data(graph: Graph, count: int = ROWS) -> Dataset:
    """Return samples and targets that fit a graph."""
    rng = np.random.default_rng(0)
    x: Array = rng.standard_normal((count, *graph.sample)).astype(np.float32)
    y: Array = rng.standard_normal((count, *graph.target)).astype(np.float32)
    if isinstance(graph.nodes[0].operator, Embedding):
        x = rng.integers(0, graph.nodes[0].operator.rows, x.shape, dtype=np.int32)
    if isinstance(graph.loss, CrossEntropy):
        y = rng.integers(0 if graph.loss.ignored is None else -1, graph.shapes[-1][-1], y.shape)
    elif isinstance(graph.loss, BinaryCrossEntropy):
        y = (y > 0).astype(np.float32)
    split = Split(x, y)
    return Dataset(split, split, split, 5)


#: What computes with all kernels: networks, and sizes of minibatches.
NETWORKS = [(images, 9), (images, 2), (matrices, 5), (wide, 130), (wide, 70), (tokens, 9)]


@pytest.mark.parametrize("large", [True, False])
@pytest.mark.parametrize(("make", "mu"), NETWORKS, ids=lambda one: getattr(one, "__name__", one))
def test_every_kernel(make: Callable[[], Graph], mu: int, large: bool) -> None:
    """In small and in large tiles, with draws and without, as defined."""
    graph = make()
    dataset, rng = data(graph), np.random.default_rng(mu)
    held, rows = [initial(graph, rng) for _ in range(2)], rng.integers(0, ROWS, (2, mu))
    with tiles(large=large):
        engine = CudaGraphEngine(graph, dataset, mu)
        for keys in (None, Keys(7, np.array([3, 0]), np.array([5, 2**31 + 1]))):
            grads, losses = engine.gradients(held, rows, keys)
            expected, expected_losses = GraphEngine(graph, dataset).gradients(held, rows, keys)
            assert same(losses, expected_losses)
            different = [
                (b, name)
                for b in range(2)
                for name, part in graph.layout.slices.items()
                if not same(np.asarray(grads)[b, part], expected[b, part])
            ]
            assert different == []
        for found, wanted in zip(
            engine.outcomes(held[0], "test"), GraphEngine(graph, dataset).outcomes(held[0], "test"), strict=True
        ):
            assert same(found, wanted)


@contextmanager
def tiles(*, large: bool) -> Iterator[None]:
    """Let launches have the largest tiles that there are, or the smallest."""
    few, most = (0, 0) if large else (10**9, 10**9)
    with patch.object(program, "FEW_BLOCKS", few), patch.object(steps, "MOST_SUMS", most):
        yield


def test_that_every_kernel_is_launched_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the test above, whichever process has which part of it."""
    launched, add = set[str](), Launches.add

    def noted(self: Launches, kernel: Any, grid: Any, *where: Any, **fields: Any) -> None:
        launched.add(kernel.name)
        add(self, kernel, grid, *where, **fields)

    monkeypatch.setattr(Launches, "add", noted)
    keys = Keys(7, np.array([3]), np.array([5]))
    for make, mu in NETWORKS:
        graph, rng = make(), np.random.default_rng(mu)
        held, rows = [initial(graph, rng)], rng.integers(0, ROWS, (1, mu))
        for large in (True, False):
            with tiles(large=large):
                engine = CudaGraphEngine(graph, data(graph), mu)
                engine.gradients(held, rows, keys)
                engine.outcomes(held[0], "test")
    families = [family for family in FAMILIES if family.startswith("networks/")]
    assert launched >= {name for family in families for name in unit_of(family).kernels}


@pytest.mark.skipif(not EMULATED, reason="a device has an order of its own")
@pytest.mark.parametrize(("make", "mu"), [(images, 5), (matrices, 3), (wide, 40), (tokens, 4)])
def test_threads_of_a_block_may_take_turns_in_any_order(make: Callable[[], Graph], mu: int) -> None:
    """A barrier that is missing would let one read what another has yet to write."""
    graph, rng = make(), np.random.default_rng(mu)
    engine, held = CudaGraphEngine(graph, data(graph), mu), [initial(graph, rng)]
    rows, libraries = rng.integers(0, ROWS, (1, mu)), getattr(machine(), "_libraries")  # noqa: B009
    expected = [np.asarray(one) for one in engine.gradients(held, rows)]
    orders = [ctypes.c_int.in_dll(library, "emulated_reversed") for library in libraries]
    try:
        for order in orders:
            order.value = 1
        for found, wanted in zip(engine.gradients(held, rows), expected, strict=True):
            assert same(found, wanted)
    finally:
        for order in orders:
            order.value = 0


def test_more_than_fits_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Minibatches of a window, and samples that are evaluated, go through in turn where their values are too large."""
    made = Builder(2, 3, 3)
    made.add(Conv2d(3, (2, 2)))
    made.add(BatchNorm())  # which needs the blocks of the definition
    made.add(Reshape((-1,)))
    made.add(Linear(4))
    graph = made.graph(CrossEntropy())
    dataset, rng = data(graph, 2 * BLOCK + 7), np.random.default_rng(0)
    held, rows = [initial(graph, rng) for _ in range(5)], rng.integers(0, ROWS, (5, 3))
    defined = GraphEngine(graph, dataset)
    for most in (1, 1000, 10**9):
        monkeypatch.setattr(engines, "MOST_FLOATS", most)
        engine = CudaGraphEngine(graph, dataset, 3)
        assert 1 <= engine.fix_window(4, 9, 100) <= 4
        assert same(engine.gradients(held, rows)[0], defined.gradients(held, rows)[0])
        assert engine.evaluate(held[0], "train") == defined.evaluate(held[0], "train")
        outputs = np.concatenate([output for _, output in engine.outputs(held[0], "train")])
        assert same(outputs, np.concatenate([output for _, output in defined.outputs(held[0], "train")]))
        assert engine.buffer_bytes > 0


def test_samples_of_many_numbers_are_evaluated_in_smaller_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a kernel can count, where samples do not meet; a batch norm is refused before a run begins."""
    made, normed = Builder(6, 4), Builder(6, 4)
    made.add(Attention(causal=True), 0, 0, 0)
    normed.add(BatchNorm())
    rng = np.random.default_rng(0)
    monkeypatch.setattr(engines, "MOST_FLOATS", 20_000)
    monkeypatch.setattr("fredsim.cuda.networks.plan.MOST_NUMBERS", 12_000)
    for builder in (made, normed):
        builder.add(Linear(3))
        graph = builder.graph(CrossEntropy(), (6,))
        dataset, held = data(graph, BLOCK + 7), initial(graph, rng)
        assert can_compute(graph, dataset, 2) == (builder is made)
        engine, defined = CudaGraphEngine(graph, dataset, 2), GraphEngine(graph, dataset)
        if builder is normed:
            with pytest.raises(ConfigError, match=r"^backend is cuda, 512 .*, in an evaluation: give backend"):
                engine.evaluate(held, "train")
            continue
        assert engine.evaluate(held, "train") == defined.evaluate(held, "train")
        outputs = np.concatenate([output for _, output in engine.outputs(held, "train")])
        assert same(outputs, np.concatenate([output for _, output in defined.outputs(held, "train")]))


def test_buffers_that_are_not_needed_at_once_share_memory() -> None:
    """A chain of convolutions keeps their inputs for the gradients, and needs two errors at a time."""
    made, mu, size = Builder(16, 16, 16), 8, 16 * 16 * 16
    for _ in range(6):
        made.add(Conv2d(16, (3, 3), padding=(1, 1), bias=False))
    made.add(AdaptiveAvgPool2d((1, 1)))
    made.add(Reshape((-1,)))
    made.add(Linear(3))
    graph = made.graph(CrossEntropy())
    floats = CudaGraphEngine(graph, data(graph), mu)._learning.floats
    assert 7 * mu * size < floats < 9.2 * mu * size + mu * 16 * 16 * 9


RUNS: dict[str, dict[str, Any]] = {
    "resnet": {
        "model": {"name": "resnet", "width": 8},
        "server": {"name": "fasgd", "lr": 0.005},
        "window": 3,
        "evaluation": {"every": 6},
    },
    "dropout and augmented images": {
        "model": {"name": "vgg", "widths": [8], "dropout": 0.3},
        "data": {"name": "digits", "train": 60, "validation": 30, "augment": {"flip": True}},
    },
    "dropout": {"model": {"name": "vgg", "widths": [8], "dropout": 0.3}, "window": 2},
    "partly trained": {"model": {"name": "vgg", "widths": [8], "trainable": ["3.*"]}},
    "softened labels": {"model": {"hidden": [9]}, "loss": {"name": "cross_entropy", "label_smoothing": 0.1}},
    "squared errors": {"model": {"hidden": [9]}, "loss": "mse"},
    "local steps": {
        "model": {"hidden": [9]},
        "loss": "mse",
        "clients": {"count": 3, "batch_size": 2, "local_steps": 2},
    },
}


@pytest.mark.parametrize("name", RUNS)
def test_whole_runs(name: str, simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fredsim.cuda.queue.AT_ONCE", 2)  # so that some windows are launched after others
    base = {
        "iterations": 12,
        "data": {"name": "digits", "train": 60, "validation": 30},
        "clients": {"count": 4, "batch_size": 3},
        "server": {"name": "asgd", "lr": 0.05},
        "evaluation": {"every": 5, "per_client": True, "gradient_norm": True},
        **RUNS[name],
    }
    one, other = (simulate({**base, "backend": backend}) for backend in ("numba", "cuda"))
    for file in ("metrics.csv", "clients.csv", "staleness.csv", "params.safetensors"):
        if (one.folder / file).exists():
            assert (one.folder / file).read_bytes() == (other.folder / file).read_bytes(), file
    queued = name in {"resnet", "dropout", "softened labels", "squared errors"}
    assert other.summary["path"] == ("queued" if queued else "snapshots")
    assert other.summary["digest"] == one.summary["digest"]


def test_as_many_bands_as_there_is_room_for() -> None:
    """Of a sample's positions: 1,023 sums, of which the tree has room for no more, as in the definition."""
    made = Builder(8184, 2)
    made.add(Linear(1))
    dense = made.graph(MeanSquaredError(), (8184, 1))
    made = Builder(1, 8184, 2)
    made.add(Conv2d(1, (1, 1)))
    rng = np.random.default_rng(0)
    for graph in (dense, made.graph(MeanSquaredError(), (1, 8184, 2))):
        dataset, rows = data(graph, 3), np.array([[1]])
        params = initial(graph, rng)
        one, _ = GraphEngine(graph, dataset).gradients([params], rows)
        other, _ = CudaGraphEngine(graph, dataset, 1).gradients([params], rows)
        assert same(other, one)


@dataclass(frozen=True)
class Unknown(Relu):
    """An operator that no backend has kernels for."""


@dataclass(frozen=True)
class OwnLoss(Loss):
    """A loss that no backend has kernels for."""

    def check(self, output: tuple[int, ...], target: tuple[int, ...]) -> None:
        pass

    def losses(self, output: Array, target: Array) -> Any:
        raise NotImplementedError


def network(sample: tuple[int, ...], *operators: Operator, loss: Loss = MeanSquaredError()) -> Graph:  # noqa: B008
    """Return a network of operators one after the other, whose targets are like its outputs."""
    made = Builder(*sample)
    for operator in operators:
        made.add(operator)
    return made.graph(loss, made.shapes[-1])


def beside_places() -> Graph:
    """Return a network that joins samples and the numbers of their places."""
    made = Builder(4)
    made.add(Cat(0), 0, made.add(Positions(4), 0))
    made.add(Linear(1))
    return made.graph(MeanSquaredError(), (1,))


#: What has no kernels: the network, the size of minibatches, and what is said.
REFUSED: dict[str, tuple[Graph, int, str]] = {
    "an operator": (network((2, 6), Linear(5), Unknown(), Linear(3)), 2, "the operator Unknown: give backend numba"),
    "a loss": (network((2, 6), Linear(5), loss=OwnLoss()), 2, "your own loss, a function of NumPy arrays: give"),
    "positions": (network((8185, 2), Linear(1)), 2, "the operator Linear with more than 8184 positions: give"),
    "rows": (network((1, 8186, 1), Conv2d(1, (2, 1))), 2, "the operator Conv2d with more than 8184 rows: give"),
    "channels": (network((2049, 1, 1), GroupNorm(1)), 2, "the operator GroupNorm with more than 2048 channels: give"),
    "bands": (network((1, 8193, 1), GroupNorm(1)), 2, "the operator GroupNorm with more than 8192 positions: give"),
    "floats": (network((4,), Embedding(5, 3)), 2, "the operator Embedding on floats: give backend numba"),
    "both": (beside_places(), 2, "the operator Cat on whole numbers and floats: give backend numba"),
    "samples of a norm": (network((1, 2, 2), BatchNorm()), 2049, "BatchNorm of more than 2048 samples: give"),
    "numbers": (network((2**16,), Relu()), 2**15, "32768 samples have 2,147,483,648 numbers at one place of the"),
    "samples": (network((1, 2, 2), GroupNorm(1)), 65_536, "takes no minibatches of 65,536 samples here: give"),
    "samples of a parameter": (
        network((1,), Parameter((1,))),
        2**21 - 7,
        "takes no minibatches of 2,097,145 samples here",
    ),
}


def floats(graph: Graph) -> Dataset:
    """Return samples and targets that are floats."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((3, *shape)).astype(np.float32) for shape in (graph.sample, graph.target))
    split = Split(x, y)
    return Dataset(split, split, split, 2)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    """So that `backend: auto` leaves it to numba."""
    graph, mu, says = REFUSED[name]
    with pytest.raises(ConfigError, match=f"^backend is cuda, .*{re.escape(says)}"):
        CudaGraphEngine(graph, floats(graph), mu)
    assert not can_compute(graph, floats(graph), mu)


def test_what_is_just_not_refused() -> None:
    for sample, operators, mu in (
        ((8184, 2), [Linear(1)], 2), ((1, 8185, 1), [Conv2d(1, (2, 1))], 2), ((1, 2, 2), [BatchNorm()], 2048),
        ((1, 2, 2), [GroupNorm(1)], 65_535), ((2**15,), [Relu()], 2**16 - 2**7),
        ((1,), [Parameter((1,))], 2**21 - 8),
    ):  # fmt: skip
        graph = network(sample, *operators)
        assert can_compute(graph, floats(graph), mu)


#: A process of which a sum beyond the end of an array is the end.
MANY_SAMPLES = """
import sys
import numpy as np
from fredsim.cuda import emulation

emulation.Emulation.flags += ("-fsanitize=bounds", "-fsanitize-undefined-trap-on-error")
from fredsim.cuda.array import empty, upload
from fredsim.cuda.kernels import unit_of
from fredsim.cuda.launches import launch
from fredsim.cuda.machines import machine

mu, out = 2**20 + 3, empty(1)
errors = np.zeros(mu, np.float32)
errors[[5, 2**19, 2**20, mu - 1]] = 1
x, errors = upload(np.zeros(mu, np.int32)), upload(errors)
kernel = machine().load(unit_of("networks/embedding"))["mean_of_rows"]
sizes = {"mu": mu, "places": 1, "rows": 1, "width": 1, "untrained": -1}
launch(machine(), kernel, (1, 1, 1), x=x.address, errors=errors.address, out=out.address, **sizes)
sys.exit(int(np.asarray(out)[0] != np.float32(4) / np.float32(mu)))
"""


@pytest.mark.skipif(not EMULATED, reason="on a device nothing looks at the bounds of arrays")
def test_an_embedding_of_more_than_a_million_samples() -> None:
    """Sums of 2^20 samples wait for others in the tree: of a few errors that are 1, and all others 0."""
    assert subprocess.run([sys.executable, "-c", MANY_SAMPLES], check=False).returncode == 0


def test_whole_numbers_that_are_no_rows() -> None:
    graph = network((4,), Embedding(5, 3))
    whole = Split(np.full((9, 4), 5), np.zeros((9, 4, 3), np.float32))
    with pytest.raises(SimulationError, match="5 … 5 are no rows of 0 … 4"):
        CudaGraphEngine(graph, Dataset(whole, whole, whole, 2), 2)


@pytest.mark.parametrize(
    ("shape", "norm", "count"), [((2048, 1, 2), GroupNorm(1), 2), ((1, 8192, 1), GroupNorm(1), 1)], ids=str
)  # fmt: skip
def test_the_largest_norms(shape: tuple[int, ...], norm: Operator, count: int) -> None:
    graph = network(shape, norm)
    held, rows = [initial(graph, np.random.default_rng(0))], np.arange(count)[None]
    found = CudaGraphEngine(graph, floats(graph), count).gradients(held, rows)
    expected = GraphEngine(graph, floats(graph)).gradients(held, rows)
    assert same(found[1], expected[1])
    assert same(found[0], expected[0])


#: More terms than a block keeps at once, more bands than it keeps sums or terms of, and many samples.
LARGE_NORMS: list[tuple[tuple[int, ...], Operator, int]] = [
    ((20, 33, 30), GroupNorm(1), 2), ((66, 300), GroupNorm(1), 2), ((3, 17, 9), BatchNorm(), 41),
    ((2, 1100), LayerNorm(), 2), ((4, 530), GroupNorm(2), 2), ((530, 3), LayerNorm(), 2),
]  # fmt: skip


def normed(shape: tuple[int, ...], norm: Operator) -> Graph:
    """Return a network of a norm of samples and parameters."""
    made = Builder(*shape)
    made.add(Parameter(shape), 0)
    made.add(Add(), 0, 1)
    made.add(norm)
    return made.graph(MeanSquaredError(), shape)


@pytest.mark.parametrize(("shape", "norm", "mu"), LARGE_NORMS, ids=str)
def test_norms_of_many_numbers(shape: tuple[int, ...], norm: Operator, mu: int) -> None:
    graph = normed(shape, norm)
    dataset, rng = data(graph), np.random.default_rng(0)
    held, rows = [initial(graph, rng)], rng.integers(0, ROWS, (1, mu))
    found = CudaGraphEngine(graph, dataset, mu).gradients(held, rows)
    expected = GraphEngine(graph, dataset).gradients(held, rows)
    assert same(found[1], expected[1])
    assert same(found[0], expected[0])


def test_patterns_of_masks_and_places() -> None:
    """Attention with a fixed pattern, in which a query sees no key; positions of samples that are whole numbers."""
    made = Builder(6)
    made.add(Embedding(8, 5))
    made.add(Embedding(6, 5), made.add(Positions(6), 0))
    mixed = made.add(Cat(0), 1, 3)
    pattern = tuple(tuple((i + 2 * j) % 3 == 0 or i == 4 for j in range(12)) for i in range(12))
    made.add(Attention(masked=pattern, scale=0.7), mixed, mixed, mixed)
    graph = made.graph(MeanSquaredError(), (12, 5))
    dataset, rng = data(graph), np.random.default_rng(0)
    held, rows = [initial(graph, rng)], rng.integers(0, ROWS, (1, 7))
    held[0][3] = np.inf
    found = CudaGraphEngine(graph, dataset, 7).gradients(held, rows)
    expected = GraphEngine(graph, dataset).gradients(held, rows)
    assert same(found[1], expected[1])
    assert same(found[0], expected[0])


def test_a_recorded_run_is_verified_on_the_device(command: Callable[..., Any], small_yaml: Path) -> None:
    changes = ("model={name: vgg, widths: [8]}", "iterations=6", "--quiet", "--out", "out")
    assert command("run", small_yaml, "backend=cuda", *changes)[0] == 0
    assert command("verify", "out", "--backend", "numba")[:2] == (0, "out: same bits\n")


LEAST_SQUARES = {"name": "least_squares", "train": 4000, "columns": 50}


AVERAGE = {"name": "window", "min_window": 3, "max_window": 9}
ADAMW = {"name": "adamw", "lr": 0.01}
MANY = {"name": "npz:many.npz"}  # test rows


@pytest.mark.parametrize("more", [
    {"model": {"name": "vgg", "widths": [16]}}, {"data": LEAST_SQUARES, "model": {"name": "linear"}},
    {"model": {"hidden": [200]}}, {"model": {"hidden": [200]}, "clients": {"count": 4, "batch_size": 400}},
    {"model": {"hidden": [600]}, "average": AVERAGE},
    {"model": {"hidden": [600]}, "average": AVERAGE | {"device": "cpu"}},
    {"model": {"hidden": [600]}, "compress": {"name": "top_k", "k": 0.1}},
    {"model": {"hidden": [600]}, "clients": {"count": 4, "batch_size": 8, "clip_each_sample": 0.5}},
    {"model": {"hidden": [600]}, "clients": {"count": 4, "batch_size": 8, "local_steps": 3, "optimizer": ADAMW}},
    {"model": {"hidden": [200]}, "evaluation": {"every": 12, "gradient_norm": True}},
    {"model": {"hidden": [200]}, "data": MANY},
    {"model": {"hidden": [200]}, "data": MANY, "loss": {"name": "cross_entropy", "label_smoothing": 0.1}},
], ids=[
    "digits", "least_squares", "perceptron", "four parts", "average", "average on the host", "residuals on the host",
    "samples' gradients on the host", "local steps", "gradient norm", "many test rows", "many test rows of a network",
])  # fmt: skip
def test_plan_says_the_memory_of_the_device(
    more: dict[str, Any], command: Callable[..., Any], simulate: Simulate, tmp_path: Path, device_bytes: DeviceBytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    few, many = np.arange(200) % 10, np.arange(5000) % 10
    x_train, x_test = (np.repeat(y[:, None], 64, 1).astype(np.float32) for y in (few, many))
    np.savez("many.npz", x_train=x_train, y_train=few, x_test=x_test, y_test=many)
    changes: dict[str, Any] = {
        "iterations": 12, "data": {"name": "digits"}, "backend": "cuda", "clients": {"count": 4, "batch_size": 8},
        "server": {"name": "asgd", "lr": 0.01}, **more,
    }  # fmt: skip
    (tmp_path / "planned.yaml").write_text(dump_yaml(changes), encoding="utf-8")
    code, said, _ = command("plan", tmp_path / "planned.yaml")
    found = re.search(r" versions +([\d.]+) MB ", said)
    assert code == 0
    assert found is not None
    gc.collect()
    assert device_bytes.live == 0
    device_bytes.most = 0
    simulate(changes)
    assert float(found[1]) * 1e6 == pytest.approx(device_bytes.most, rel=0.15)
