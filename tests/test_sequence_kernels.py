"""Kernels of operators of sequences have the bits of their definitions, for any shape and number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fredsim.compute.graph_engine import GraphEngine
from fredsim.data.datasets import Dataset, Split
from fredsim.errors import SimulationError
from fredsim.jit.cache import make_module
from fredsim.jit.team import Team
from fredsim.kernels.ops.engine import NumbaGraphEngine
from fredsim.kernels.ops.images.repeated import RepeatedPixels
from fredsim.kernels.ops.images.rewritten import with_images
from fredsim.kernels.ops.sequences.heads import fuse_heads
from fredsim.networks.graph import Graph, Node
from fredsim.networks.layout import Layout
from fredsim.networks.zoo.gpt import gpt
from fredsim.numerics import elementary
from fredsim.numerics.arrays import MARGIN, aligned
from fredsim.numerics.ops.arithmetic import Add, Mul
from fredsim.numerics.ops.attention import Attention
from fredsim.numerics.ops.conv2d import Conv2d
from fredsim.numerics.ops.embedding import Embedding
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.bce import BinaryCrossEntropy
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.numerics.ops.norms import BatchNorm, LayerNorm, RmsNorm
from fredsim.numerics.ops.operator import Array, Operator, Shape
from fredsim.numerics.ops.pointwise import Gelu, LeakyRelu, Sigmoid, Silu, Tanh
from fredsim.numerics.ops.positions import Positions
from fredsim.numerics.ops.sources import Constant
from fredsim.numerics.ops.views import Cat, Permute, Reshape, Slice
from tests.conftest import HAS_CUDA
from tests.random_graphs import guarded, on_device

F = np.float32
ROWS = 40
ODD = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1e-42, -1e-40, 3e38, -3e38, 1e-30, 88.8, -87.1], F)


@dataclass
class Builder:
    """A graph as it is put together."""

    sample: Shape
    nodes: list[Node]
    tensors: dict[str, Shape]

    def add(self, operator: Operator, *inputs: int, names: dict[str, str] | None = None) -> int:
        """Add a node; return the number of its value. `names` are of tensors that other nodes have."""
        number = len(self.nodes) + 1
        wanted = operator.tensors(*(self._shape(i) for i in inputs))
        named = {role: (names or {}).get(role, f"{number}.{role}") for role in wanted}
        self.tensors |= {named[role]: shape for role, shape in wanted.items()}
        self.nodes.append(Node(operator, inputs, tuple(named.items())))
        return number

    def _shape(self, number: int) -> Shape:
        if number == 0:
            return self.sample
        node = self.nodes[number - 1]
        return node.operator.shape(*(self._shape(i) for i in node.inputs))

    def graph(self, loss: Loss, target: Shape | None = None) -> Graph:
        """Return the graph; the target has the output's shape if none is given."""
        last = self._shape(len(self.nodes))
        shape = last if target is None else target
        return Graph(self.sample, shape, tuple(self.nodes), loss, Layout(tuple(self.tensors.items())))


def same(a: Array, b: Array) -> bool:
    """Return whether two float32 arrays have the same bits; one NaN is like another."""
    both = np.isnan(a) & np.isnan(b)
    return a.shape == b.shape and bool((both | (a.view(np.int32) == b.view(np.int32))).all())


def compare(
    graph: Graph, x: Array, y: Array, mu: int, threads: int, scale: float = 0.5, odd: bool = False, device: bool = True
) -> None:
    """Compare the gradients of two minibatches and the outcomes of all engines, at random parameters.

    `device`: whether the one of devices is among them.
    """
    rng = np.random.default_rng(mu)
    dataset = Dataset(Split(x, y), Split(x[:9], y[:9]), Split(x[:0], y[:0]), 2)
    held = []
    for _ in range(2):
        params = aligned(graph.layout.size + MARGIN)[: graph.layout.size]
        params[:] = rng.normal(size=len(params)) * scale
        if odd and len(params):
            params[rng.integers(0, len(params), 3)] = rng.choice(ODD, 3)
        held.append(params)
    rows = rng.integers(0, len(x), (2, mu))
    plain = GraphEngine(graph, dataset)
    with guarded(), closing(NumbaGraphEngine(graph, dataset, mu, threads)) as engine:
        first = engine.gradients(held[:1], rows[:1])[0][0].copy()  # by all threads together
        grads, losses = (part.copy() for part in engine.gradients(held, rows))
        assert same(first, grads[0])
        expected, expected_losses = plain.gradients(held, rows)
        assert same(losses, expected_losses)
        for own, other in zip(grads, expected, strict=True):
            different = [name for name, part in graph.layout.slices.items() if not same(own[part], other[part])]
            assert different == []
        outcomes, expected_outcomes = engine.outcomes(held[0], "validation"), plain.outcomes(held[0], "validation")
        assert same(outcomes[0], expected_outcomes[0])
        np.testing.assert_array_equal(outcomes[1], expected_outcomes[1])
    if HAS_CUDA and device:
        theirs = on_device(graph, dataset, held, rows, large=mu % 2 == 0)
        found = zip(theirs[:3], (expected, expected_losses, expected_outcomes[0]), strict=True)
        assert all(same(own, other) for own, other in found)
        np.testing.assert_array_equal(theirs[3], expected_outcomes[1])


def draw(rng: np.random.Generator, *shape: int, odd: bool = False) -> Array:
    """Return normal numbers, a few of them odd."""
    values = rng.normal(size=(ROWS, *shape)).astype(F)
    if odd:
        values.reshape(-1)[rng.integers(0, values.size, max(1, values.size // 60))] = rng.choice(
            ODD, max(1, values.size // 60)
        )
    return values


def operators() -> Iterator[tuple[str, Shape, list[Operator]]]:
    """Yield names, shapes of samples, and operators to be done one after the other, the first of which learns."""
    for operator in (Tanh(), Sigmoid(), Silu(), Gelu(), Gelu("tanh"), LeakyRelu(0.1)):
        yield f"{operator}", (5, 7), [Linear(13), operator]
    for bias, layout in ((True, "in_out"), (True, "out_in"), (False, "out_in")):
        for shape, outputs in (((3, 5), 1), ((17, 20), 33), ((8, 16), 16), ((2, 19, 9), 18), ((33, 1), 9)):
            dense = Linear(outputs, bias, layout)  # type: ignore[arg-type]
            yield f"{shape} {dense}", shape, [Linear(shape[-1]), dense]
    for norm in (LayerNorm(), LayerNorm(1e-3, affine=False), RmsNorm(), RmsNorm(affine=False)):
        for width in (1, 16, 23, 97):
            yield f"{norm} {width}", (19, 4), [Linear(width), norm]
    yield "views", (6, 8), [
        Linear(24), Slice(1, 3, 19), Reshape((6, 2, 8)), Permute((1, 0, 2)), Slice(0, 1, 2), Permute((2, 1, 0)),
    ]  # fmt: skip
    yield "turned", (6, 8), [Linear(5), Permute((1, 0)), Linear(3, layout="out_in"), Reshape((-1,))]


CASES = list(operators())


@pytest.mark.parametrize("case", range(len(CASES)), ids=[name for name, _, _ in CASES])
def test_operators(case: int) -> None:
    _, shape, chain = CASES[case]
    rng = np.random.default_rng(case)
    network = Builder(shape, [], {})
    for number, operator in enumerate(chain):
        network.add(operator, number)
    graph = network.graph(MeanSquaredError())
    for odd in (False, True):
        mu, threads = int(rng.integers(1, 34)), int(rng.integers(1, 4))
        compare(graph, draw(rng, *shape, odd=odd), draw(rng, *graph.target), mu, threads, odd=odd)


@pytest.mark.parametrize("mu", [1, 6])
@pytest.mark.parametrize(
    "attention",
    [
        Attention(),
        Attention(causal=True),
        Attention(causal=True, scale=0.25),
        Attention(masked=tuple(tuple((3 * i + j) % 4 == 0 for j in range(21)) for i in range(18))),
        Attention(causal=True, masked=tuple(tuple(j == 0 or j == i for j in range(21)) for i in range(18))),
    ],
    ids=["all", "causal", "scaled", "masked", "both"],
)
def test_attention(attention: Attention, mu: int) -> None:
    rng = np.random.default_rng(mu)
    network = Builder((39, 4), [], {})
    queries, others = network.add(Slice(0, 0, 18), 0), network.add(Slice(0, 18, 39), 0)
    q, k, v = (network.add(Linear(width), i) for i, width in ((queries, 10), (others, 10), (others, 19)))
    network.add(attention, q, k, v)
    graph = network.graph(MeanSquaredError())
    for odd in (False, True):
        compare(graph, draw(rng, 39, 4, odd=odd), draw(rng, *graph.target), mu, mu % 3 + 1, scale=1.5, odd=odd)


def heads(form: str) -> Builder:
    """Return a network with attention of two heads of width 5, whose parts are cut out in several ways.

    In one, heads are joined at the end, and nobody takes the value before this.
    """
    network = Builder((7, 4), [], {})
    order = Permute((1, 0, 2))
    if form == "apart":  # q, k and v are values of their own
        three = [network.add(Linear(10), 0) for _ in range(3)]
    elif form == "together":  # (7, 3, 2, 5) -> (3, 2, 7, 5)
        whole = network.add(Reshape((7, 3, 2, 5)), network.add(Linear(30), 0))
        turned = network.add(Permute((1, 2, 0, 3)), whole)
        three = [network.add(Reshape((2, 7, 5)), network.add(Slice(0, i, i + 1), turned)) for i in range(3)]
    else:
        whole = network.add(Linear(30), 0)
        begins = (0, 5, 20) if form == "overlapping" else (20, 0, 10)
        three = [network.add(Slice(1, begin, begin + 10), whole) for begin in begins]
    if form != "together":
        three = [network.add(order, network.add(Reshape((7, 2, 5)), part)) for part in three]
    y = network.add(Attention(causal=True), *three)
    if form == "twice":
        y = network.add(Add(), y, three[2])
    turned = network.add(order, y)
    if form == "unused":
        network.add(Tanh(), 0)
    last = network.add(Reshape((7, 10)), turned)
    if form != "unused":
        network.add(Linear(3), last)
    return network


@pytest.mark.parametrize(
    ("form", "nodes"),
    [("apart", 5), ("together", 3), ("sorted", 3), ("overlapping", 14), ("twice", 15), ("unused", 14)],
)
def test_attention_reads_its_parts_where_they_lie(form: str, nodes: int) -> None:
    graph, rng = heads(form).graph(MeanSquaredError()), np.random.default_rng(5)
    assert len(fuse_heads(graph).nodes) == nodes
    for mu in (1, 6):
        compare(graph, draw(rng, 7, 4), draw(rng, *graph.target), mu, mu % 2 + 1, scale=1)


@pytest.mark.parametrize("unused", [False, True])
def test_pixels_that_are_repeated_last(unused: bool) -> None:
    """Nobody takes the ones then, which stand behind the node that repeats them; nor, perhaps, another value."""
    rng, network = np.random.default_rng(6), Builder((4, 3, 5), [], {})
    network.add(BatchNorm(), network.add(Linear(5), 0))
    pixels = network.add(Reshape((4, 3, 1, 5, 1)), 2)
    ones = network.add(Reshape((1, 1, 2, 1, 3)), network.add(Constant.of(np.ones((1, 1, 1, 2, 1, 3), F)), 0))
    if unused:
        network.add(Tanh(), 0)
    network.add(Reshape((4, 6, 15)), network.add(Mul(), pixels, ones))
    graph = network.graph(MeanSquaredError())
    assert isinstance(with_images(graph).nodes[-1].operator, Reshape if unused else RepeatedPixels)
    assert with_images(graph).shapes[-1] == graph.shapes[-1]
    compare(graph, draw(rng, 4, 3, 5), draw(rng, 4, 6, 15), 5, 2)


def test_a_table_of_floats_beside_a_convolution() -> None:
    """Samples of three axes, which are rows of a table for one node, and an image for another."""
    rng = np.random.default_rng(9)
    x = rng.integers(0, 9, (ROWS, 2, 3, 4)).astype(F)
    for beside in (False, True):
        network = Builder((2, 3, 4), [], {})
        ends = [network.add(Reshape((-1,)), network.add(Embedding(9, 5), 0))]
        if beside:
            ends.append(network.add(Reshape((-1,)), network.add(Conv2d(3, (2, 2)), 0)))
        network.add(Linear(3), network.add(Cat(0), *ends))
        graph = network.graph(CrossEntropy(), ())
        compare(graph, x, rng.integers(0, 3, ROWS), 5, 2, device=False)


@pytest.mark.parametrize("first", ["integers", "floats"])
def test_integers_beside_floats(first: str) -> None:
    """They become float32, as in torch.cat, whichever come first."""
    rng, network = np.random.default_rng(9), Builder((4,), [], {})
    numbers, values = network.add(Positions(6), 0), network.add(Linear(5), 0)
    joined = network.add(Cat(0), *((numbers, values) if first == "integers" else (values, numbers)))
    network.add(Linear(3), network.add(Slice(0, 2, 9), joined))
    graph = network.graph(MeanSquaredError())
    x = draw(rng, 4)
    params = rng.normal(size=graph.layout.size).astype(F)
    output = graph.forward(params, x).output
    dense = graph.layout.split(params)
    values_of = x.astype(np.float64) @ dense["2.weight"] + dense["2.bias"]
    both = [np.tile(np.arange(6.0), (len(x), 1)), values_of]
    whole = np.concatenate(both if first == "integers" else both[::-1], axis=1)[:, 2:9]
    assert output.dtype == F
    np.testing.assert_allclose(output, whole @ dense["5.weight"] + dense["5.bias"], rtol=1e-4, atol=1e-4)
    compare(graph, x, draw(rng, 3), 5, 2, device=False)


def test_sums_and_products_of_several_inputs() -> None:
    rng, network = np.random.default_rng(3), Builder((4, 5), [], {})
    a, b = network.add(Linear(6), 0), network.add(Linear(3), 0)
    both = network.add(Cat(1), a, b)
    other = network.add(Linear(9, layout="out_in"), 0)
    network.add(Add(), network.add(Mul(), both, other), both)
    graph = network.graph(MeanSquaredError())
    compare(graph, draw(rng, 4, 5, odd=True), draw(rng, *graph.target), 7, 2)


@pytest.mark.parametrize(("kind", "mu"), [(np.uint8, 16), (np.int16, 5), (np.int32, 1), (np.int64, 33)])
def test_tables(kind: type[np.integer[Any]], mu: int) -> None:
    rng, network = np.random.default_rng(mu), Builder((11,), [], {})
    tokens = network.add(Embedding(30, 18, untrained=3), 0)
    places = network.add(Embedding(11, 18), network.add(Positions(11), 0))
    parts = network.add(Embedding(30, 18), network.add(Slice(0, 2, 7), 0))
    network.add(Cat(0), network.add(Add(), tokens, places), parts)
    graph = network.graph(MeanSquaredError())
    x = rng.integers(0, 30, (ROWS, 11)) ** 2 // 30  # some occur more often than others
    compare(graph, x.astype(kind), draw(rng, *graph.target), mu, mu % 3 + 1)


def test_a_table_that_is_also_the_last_layer() -> None:
    rng, network = np.random.default_rng(8), Builder((9,), [], {})
    table = {"weight": "1.weight"}
    first = network.add(Embedding(21, 17), 0)
    network.add(Add(), network.add(Gelu(), network.add(Linear(17), first)), first)
    network.add(Linear(21, bias=False, layout="out_in"), 4, names=table)
    graph = network.graph(CrossEntropy(), (9,))
    x, y = rng.integers(0, 21, (2, ROWS, 9))
    for mu in (1, 7, 32):
        compare(graph, x, y, mu, mu % 3 + 1)


def test_a_number_that_is_no_row_is_refused() -> None:
    network = Builder((3,), [], {})
    network.add(Embedding(5, 4), 0)
    graph, x = network.graph(MeanSquaredError()), np.asarray([[0, 5, 1]])
    split = Split(x, np.zeros((1, 3, 4), F))
    with pytest.raises(SimulationError, match=r"embedding: 0 … 5 are no rows of 0 … 4"):
        NumbaGraphEngine(graph, Dataset(split, split, split, 2), 1, 1)


@pytest.mark.parametrize(
    "loss", [CrossEntropy(), CrossEntropy(0.1), CrossEntropy(ignored=-1), CrossEntropy(0.3, ignored=2)], ids=str
)
@pytest.mark.parametrize(("places", "classes"), [((), 5), ((7,), 33), ((2, 3), 16)])
def test_cross_entropy(loss: CrossEntropy, places: Shape, classes: int) -> None:
    rng, network = np.random.default_rng(classes), Builder((1, *places, 6), [], {})
    network.add(Reshape((*places, classes)), network.add(Linear(classes, layout="out_in"), 0))
    graph = network.graph(loss, places)
    y = np.asarray(rng.integers(0, classes, (ROWS, *places)))
    if loss.ignored is not None:
        y[rng.random(y.shape) < 0.5] = loss.ignored
        y[0] = loss.ignored
    for odd, mu in ((False, 1), (False, 12), (True, 33)):
        compare(graph, draw(rng, 1, *places, 6, odd=odd), y.astype(np.int32), mu, mu % 3 + 1, scale=9, odd=odd)


@pytest.mark.parametrize("mu", [1, 13])
def test_other_losses_of_sequences(mu: int) -> None:
    rng, network = np.random.default_rng(4), Builder((5, 6), [], {})
    network.add(Linear(3), 0)
    graph, x = network.graph(BinaryCrossEntropy()), draw(rng, 5, 6, odd=True)
    for targets in ((rng.random((ROWS, 5, 3)) < 0.5).astype(F), rng.random((ROWS, 5, 3)).astype(F)):
        compare(graph, x, targets, mu, mu % 3 + 1, scale=3)


@pytest.mark.parametrize(
    ("tokens", "block", "width", "layers", "heads", "mu", "threads"),
    [(11, 9, 12, 1, 2, 3, 1), (17, 20, 32, 2, 4, 5, 2), (33, 35, 24, 1, 1, 8, 3), (5, 1, 8, 1, 2, 33, 2)],
)
def test_transformers(tokens: int, block: int, width: int, layers: int, heads: int, mu: int, threads: int) -> None:
    rng = np.random.default_rng(mu)
    x, y = rng.integers(0, tokens, (2, ROWS, block), dtype=np.int32)
    compare(gpt(tokens, (block,), width, layers, heads), x, y, mu, threads, scale=0.3)


@pytest.mark.parametrize("number", range(10))
def test_random_networks_of_sequences(number: int) -> None:
    rng = np.random.default_rng(number)
    places, width = int(rng.integers(1, 30)), int(rng.integers(1, 40))
    network = Builder((places, int(rng.integers(1, 12))), [], {})
    last = network.add(Linear(width), 0)
    for _ in range(int(rng.integers(2, 8))):
        given = last
        choice = int(rng.integers(0, 6))
        if choice == 0:
            last = network.add(Linear(width, layout="out_in"), last)
        elif choice == 1:
            last = network.add((LayerNorm(), RmsNorm())[int(rng.integers(0, 2))], last)
        elif choice == 2:
            last = network.add((Gelu(), Tanh(), Silu(), Gelu("tanh"))[int(rng.integers(0, 4))], last)
        elif choice == 3:
            last = network.add(Attention(causal=bool(rng.integers(0, 2))), last, last, network.add(Linear(width), last))
        elif choice == 4:
            last = network.add(Mul(), last, network.add(Sigmoid(), network.add(Linear(width), last)))
        else:
            last = network.add(Permute((1, 0)), network.add(Permute((1, 0)), last))
        if rng.random() < 0.5:
            last = network.add(Add(), given, last)
    graph = network.graph(MeanSquaredError())
    x, y = draw(rng, *graph.sample), draw(rng, *graph.target)
    compare(graph, x, y, int(rng.integers(1, 20)), int(rng.integers(1, 4)))


SOURCE = """
from fredsim.jit.doubles import narrow, widen
from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats
from fredsim.jit.vector import load, store, zeros
from fredsim.kernels.arrays.functions import (
    circle_wide, erfc_wide, exp_vector, log1p_wide, log_wide, sigmoid_wide, sine_of, tanh_wide
)


@kernel(
    x=floats, count=int, exp=floats, tanh=floats, sigmoid=floats, erfc=floats, log=floats, log1p=floats, sin=floats,
    cos=floats,
)
def compute(rank, size, barrier, a):
    for i in range(0, a.count, 16):
        x = load(zeros(16), a.x, i)
        store(a.exp, i, exp_vector(x))
        store(a.tanh, i, narrow(tanh_wide(widen(x))))
        store(a.sigmoid, i, narrow(sigmoid_wide(widen(x))))
        store(a.erfc, i, narrow(erfc_wide(widen(x))))
        store(a.log, i, narrow(log_wide(widen(x))))
        store(a.log1p, i, narrow(log1p_wide(widen(x))))
        store(a.sin, i, narrow(sine_of(circle_wide(widen(x)), 0)))
        store(a.cos, i, narrow(sine_of(circle_wide(widen(x)), 1)))
"""


def test_functions_of_vectors() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 2**17, dtype=np.uint64).astype(np.uint32).view(F)  # every kind of float32
    near = np.concatenate([rng.normal(size=2**15) * scale for scale in (1e-3, 0.1, 1, 10, 60)]).astype(F)
    edges = np.array([(*ODD, 1, 2.0**-9, 12, -1, 88.72, -87, 2.0**20, -(2.0**20), 2.0**-20, -(2.0**-20))], F)
    around = [np.nextafter(edges, F(-np.inf)), edges, np.nextafter(edges, F(np.inf))]
    x = np.concatenate([bits, near, *(part.reshape(-1) for part in around)])
    x = np.concatenate([x, np.zeros(-len(x) % 16, F)])
    definitions: dict[str, Callable[[Array], Array]] = {
        "exp": elementary.exp32, "tanh": elementary.tanh64, "sigmoid": elementary.sigmoid64, "erfc": elementary.erfc64,
        "log": elementary.log64, "log1p": elementary.log1p64, "sin": elementary.sine64,
        "cos": lambda x: elementary.sine64(x, 1),
    }  # fmt: skip
    found = {name: np.empty_like(x) for name in definitions}
    compute = make_module(SOURCE, "functions of vectors").compute
    with Team(1) as team, np.errstate(all="ignore"):
        team.run(compute, compute.pack(x=x, count=len(x), **found))
        for name, definition in definitions.items():
            assert same(found[name], definition(x).astype(F)), name
