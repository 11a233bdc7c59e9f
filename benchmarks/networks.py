"""One iteration of real networks, gradient and ASGD's update, by fredsim's kernels and by a plain PyTorch loop.

The loop is what one would write for speed on a processor: the module as PyTorch's users write it, with PyTorch's own
attention and activations, autograd, and one update in place for all tensors. Both sides take the same minibatches,
in the same order, from the same parameters; nothing is timed before they agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from benchmarks.rounds import alternate, in_brief
from benchmarks.tables import Table, say
from fredsim import zoo
from fredsim.data.datasets import Dataset, Split
from fredsim.kernels.ops.engine import NumbaGraphEngine
from fredsim.networks.graph import Graph
from fredsim.networks.zoo.gpt import gpt
from fredsim.networks.zoo.lenet import lenet
from fredsim.networks.zoo.resnet import resnet
from fredsim.networks.zoo.vgg import vgg
from fredsim.numerics.arrays import MARGIN, aligned
from fredsim.servers.asgd import ASGD

__all__ = ["NETWORKS", "Case", "FredsimSide", "TorchSide", "agreement", "networks"]

LEARNING_RATE = 0.01
SAMPLES, CLASSES = 256, 10
CHECKED = 5  # iterations after which the parameters must agree
TOLERANCE = 1e-3  # for max|Δθ| / max|θ|, as the order of summation differs
SECONDS = 0.5  # a side's round takes about as long
#: The transformers' sizes: tokens, places, width, heads.
TOKENS, BLOCK, WIDTH, HEADS = 96, 64, 128, 4

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """A network in both forms, whose tensors have the same names, and data to train it on."""

    name: str
    mu: int
    graph: Graph
    module: Callable[[], torch.nn.Module]
    dataset: Dataset


class TorchSide:
    """PyTorch's side; `params` are its parameters, (P,), in the order of the layout."""

    def __init__(self, case: Case, memory_format: torch.memory_format = torch.contiguous_format) -> None:
        torch.manual_seed(0)
        self._module, self._mu, train = case.module().to(memory_format=memory_format), case.mu, case.dataset.train
        x = torch.from_numpy(train.x)
        self._x = x.to(memory_format=memory_format) if x.is_floating_point() else x.long()
        self._y = torch.from_numpy(train.y).long()
        named = dict(self._module.named_parameters())
        self._tensors = [named[name] for name, _ in case.graph.layout.tensors]
        self._at = 0

    @property
    def params(self) -> Array:
        """Return a copy."""
        return torch.cat([tensor.detach().reshape(-1) for tensor in self._tensors]).numpy()

    def run(self, iterations: int) -> float:
        """Return the seconds that so many iterations take."""
        begin = time.perf_counter()
        for _ in range(iterations):
            rows = slice(self._at, self._at + self._mu)
            self._at = (self._at + self._mu) % (len(self._y) // self._mu * self._mu)
            for tensor in self._tensors:
                tensor.grad = None
            output, y = self._module(self._x[rows]), self._y[rows]
            cross_entropy(output.reshape(-1, output.shape[-1]), y.reshape(-1)).backward()
            with torch.no_grad():
                torch._foreach_add_(self._tensors, [tensor.grad for tensor in self._tensors], alpha=-LEARNING_RATE)
        return time.perf_counter() - begin


class FredsimSide:
    """fredsim's side, from the same parameters as PyTorch's."""

    def __init__(self, case: Case, start: Array, threads: int) -> None:
        self._engine = NumbaGraphEngine(case.graph, case.dataset, case.mu, threads)
        self._update = self._engine.operations.compile_rule(ASGD.rule)
        self.params = aligned(len(start) + MARGIN)[: len(start)]
        self.params[:] = start
        self._mu, self._count, self._at = case.mu, len(case.dataset.train), 0

    def run(self, iterations: int) -> float:
        """Return the seconds that so many iterations take."""
        rate, size = np.float32(LEARNING_RATE), len(self.params)
        begin = time.perf_counter()
        for _ in range(iterations):
            rows = np.arange(self._at, self._at + self._mu)[None]
            self._at = (self._at + self._mu) % (self._count // self._mu * self._mu)
            grads, _ = self._engine.gradients([self.params], rows)
            self._update(self.params, grads[0], 0, size, rate)
        return time.perf_counter() - begin


def transformer(layers: int, mu: int) -> Case:
    """Return a GPT of so many layers, on random tokens."""
    rng = np.random.default_rng(0)
    x, y = (rng.integers(0, TOKENS, (SAMPLES, BLOCK)).astype(np.int32) for _ in range(2))
    split = Split(x, y)  # type: ignore[arg-type]  # tokens, not float32
    module = partial(zoo.gpt, TOKENS, (BLOCK,), width=WIDTH, layers=layers, heads=HEADS)
    graph = gpt(TOKENS, (BLOCK,), WIDTH, layers, HEADS)
    return Case(f"GPT, {layers} layers of {WIDTH}", mu, graph, module, Dataset(split, split, split, TOKENS))


def image_network(name: str, shape: tuple[int, int, int], mu: int, **options: int) -> Case:
    """Return a network of fredsim.zoo for images of a shape, on drawn numbers: no side looks for zeros."""
    make, module = {"lenet": (lenet, zoo.lenet), "resnet": (resnet, zoo.resnet), "vgg": (vgg, zoo.vgg)}[name]
    rng = np.random.default_rng(0)
    split = Split(rng.normal(size=(SAMPLES, *shape)).astype(np.float32), rng.integers(0, CLASSES, SAMPLES))
    label = f"{name}{''.join(f'-{size}' for size in options.values())}, {'×'.join(map(str, shape))}"
    dataset = Dataset(split, split, split, CLASSES)
    return Case(label, mu, make(CLASSES, shape, **options), partial(module, CLASSES, shape, **options), dataset)


MNIST, CIFAR, DIGITS = (1, 28, 28), (3, 32, 32), (1, 8, 8)
NETWORKS: tuple[Callable[[], Case], ...] = (
    partial(image_network, "lenet", MNIST, 4), partial(image_network, "lenet", MNIST, 32),
    partial(image_network, "resnet", DIGITS, 8, depth=8), partial(image_network, "resnet", DIGITS, 32, depth=8),
    partial(image_network, "resnet", CIFAR, 8, depth=8), partial(image_network, "resnet", CIFAR, 32, depth=8),
    partial(image_network, "resnet", CIFAR, 8, depth=20), partial(image_network, "resnet", CIFAR, 32, depth=20),
    partial(image_network, "vgg", CIFAR, 8), partial(image_network, "vgg", CIFAR, 32),
    partial(transformer, 2, 8), partial(transformer, 4, 8), partial(transformer, 2, 32),
)  # fmt: skip


def fastest_peer(case: Case) -> TorchSide:
    """Return PyTorch's side, for images in the memory format in which some iterations take it less time."""
    formats = [torch.contiguous_format]
    if case.dataset.train.x.ndim == 4:
        formats.append(torch.channels_last)
    sides = [TorchSide(case, form) for form in formats]
    for side in sides:
        side.run(CHECKED)
    best = min(range(len(sides)), key=lambda i: min(sides[i].run(CHECKED) for _ in range(3)))
    return TorchSide(case, formats[best])


def agreement(case: Case, threads: int) -> float:
    """Return max|Δθ| / max|θ| after CHECKED iterations from the same parameters. Exits if the sides disagree."""
    peer = TorchSide(case)
    own = FredsimSide(case, peer.params, threads)
    peer.run(CHECKED)
    own.run(CHECKED)
    difference = float(np.abs(own.params - peer.params).max() / np.abs(own.params).max())
    if not difference <= TOLERANCE:
        raise SystemExit(f"{case.name}: after {CHECKED} iterations max|Δθ|/max|θ| differs by {difference:.1e}")
    return difference


def networks(
    rounds: int, threads: int, makers: Sequence[Callable[[], Case]] = NETWORKS, title: str = "Networks"
) -> Table:
    """Time an iteration of each network on both sides."""
    rows = []
    for make in makers:
        case = make()
        difference = agreement(case, threads)
        peer = fastest_peer(case)
        own = FredsimSide(case, peer.params, threads)
        count = max(3, int(SECONDS * CHECKED / min(side.run(CHECKED) for side in (peer, own))))
        seconds = alternate([partial(side.run, count) for side in (own, peer)], rounds)
        each = [f"{1e3 * median(side) / count:,.2f}" for side in zip(*seconds, strict=True)]
        rows.append((case.name, f"{case.mu}", *each, *in_brief([b / a for a, b in seconds], seconds)))
        say(f"{case.name}, µ = {case.mu}: the sides differ by {difference:.1e}; {count} iterations a round")
    return Table(
        title,
        f"ms per iteration, gradient and ASGD's update: medians of {rounds} alternating rounds. Ratio: PyTorch / "
        "fredsim.",
        ("network", "µ", "fredsim", "PyTorch", "ratio", "range"),
        rows,
    )
