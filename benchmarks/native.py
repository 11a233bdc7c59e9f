"""Whole runs of PyTorch modules, computed by PyTorch (native) and by fredsim (portable), against a plain PyTorch loop.

The loop is what one would write for speed on a processor: every client holds tensors, which are copied in place into
the module and back, all tensors at once; images are in the memory format in which that takes less time. All sides have
the same initial parameters, minibatches and order of clients; nothing is timed before they agree. The time of each
begins before it has memory for what clients hold. Every run of every side is in a process of its own, as fredsim's runs
of a user's module are: memory that a process has had before costs it nothing, and new memory a virtual machine a lot.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

import fredsim
from benchmarks.cells import SEED, plan
from benchmarks.rounds import alternate, in_brief
from benchmarks.tables import Table, say
from fredsim import zoo
from fredsim.errors import FredsimWarning
from fredsim.native.settings import seed_by
from fredsim.numerics.ops.draws import Draws
from fredsim.runs.folder.results import Result

__all__ = ["CASES", "Case", "PlainLoop", "agreement", "mlp", "native", "simulate"]

Array = NDArray[np.float32]

LEARNING_RATE = 0.01
CHECKED = 12  # iterations after which the parameters must agree
WARM = 4  # gradients before a loop is timed
TOLERANCE = 1e-3  # for max|Δθ| / max|θ|, as the order of summation differs
SECONDS = 1.5  # a side's round takes about as long
TRAIN, OTHERS = 512, 8  # samples to train on, and in each of the other parts
MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
TOKENS, BLOCK, WIDTH = 96, 64, 128


def mlp(classes: int, shape: tuple[int, ...], hidden: Sequence[int] = (2600, 2570)) -> nn.Module:
    """Return a dense network; of 8.7 million parameters for 28×28 inputs and ten classes."""
    sizes = (int(np.prod(shape)), *hidden)
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], classes))


def batch_normed(classes: int, shape: tuple[int, ...], depth: int = 8) -> nn.Module:
    """Return a residual network with BatchNorm, as published."""
    module = zoo.resnet(classes, shape, depth)
    for part in [*module.modules()]:
        for name, norm in part.named_children():
            if isinstance(norm, nn.GroupNorm):
                setattr(part, name, nn.BatchNorm2d(norm.num_channels))
    return module


@dataclass(frozen=True)
class Case:
    """A module and its minibatches; `factory` is that of `name`, `options` are its arguments, `keys` others of a model.

    If it draws, fredsim's draws depend on who computes it, and only PyTorch's can be those of the loop.
    """

    name: str
    factory: Callable[..., nn.Module]
    shape: tuple[int, ...]
    mu: int
    clients: int = 8
    options: dict[str, Any] = field(default_factory=dict)
    classes: int = 10
    keys: dict[str, Any] = field(default_factory=dict)

    @property
    def numerics(self) -> tuple[str, ...]:
        """Who computes it in the runs that are timed."""
        return ("native",) if "dropout" in self.options else ("native", "portable")

    @property
    def label(self) -> str:
        """What a row of the table calls it."""
        return "-".join([self.factory.__name__, *map(str, self.options.values())])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of an NPZ file: drawn numbers or tokens."""
        rng = np.random.default_rng(SEED)
        found: dict[str, NDArray[Any]] = {}
        for part, count in (("train", TRAIN + OTHERS), ("test", OTHERS)):
            if len(self.shape) == 1:  # tokens, and a label for each
                for name in (f"x_{part}", f"y_{part}"):
                    found[name] = rng.integers(0, self.classes, (count, *self.shape))
            else:
                found[f"x_{part}"] = rng.normal(size=(count, *self.shape)).astype(np.float32)
                found[f"y_{part}"] = rng.permutation(np.arange(count) % self.classes)
        return found

    def module(self) -> nn.Module:
        """Return the module with the parameters that fredsim's runs begin with."""
        torch.manual_seed(SEED)
        return self.factory(self.classes, self.shape, **self.options)


@contextmanager
def saved(case: Case) -> Iterator[Path]:
    """Save the arrays of a case in a file, for a `with` block."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "arrays.npz"
        np.savez(file, **case.arrays())  # type: ignore[arg-type]  # NumPy's types take them for allow_pickle
        yield file


def simulate(case: Case, file: Path, numerics: str, iterations: int, threads: int) -> tuple[float, Array, str]:
    """Return the seconds of fredsim's run, its final parameters (P,), and what it says about vmap."""
    experiment = {
        "seed": SEED,
        "iterations": iterations,
        "data": {"name": f"npz:{file}", "validation": OTHERS},
        "model": {"name": f"torch:{case.name}", "numerics": numerics, **case.options, **case.keys},
        "clients": {"count": case.clients, "batch_size": case.mu, "sampling": "sequential"},
        "server": {"name": "asgd", "lr": LEARNING_RATE},
        "evaluation": {"every": iterations + 1},
        "threads": threads,
    }
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", FredsimWarning)  # drawn labels cannot be learned
        result = fredsim.run(experiment, out=folder)
        assert isinstance(result, Result)
        status = result.summary["status"]
        if status != "finished":  # its time would be that of fewer iterations
            raise SystemExit(f"{case.label}, µ = {case.mu}: the run of {iterations} iterations is {status}")
        names = [name for name, _ in case.module().named_parameters()]
        params = np.concatenate([result.params[name].reshape(-1) for name in names])
        return result.summary["seconds"], params, str(result.summary.get("vmap", ""))


class PlainLoop:
    """The loop in PyTorch."""

    def __init__(self, case: Case, memory_format: torch.memory_format = torch.contiguous_format) -> None:
        self._case, arrays = case, case.arrays()
        self.channels_last = memory_format == torch.channels_last
        self._format, self._model = memory_format, case.module().to(memory_format=memory_format)
        self._start = [value.detach().clone() for value in self._model.parameters()]
        x = torch.from_numpy(arrays["x_train"][:TRAIN])
        self._x = x.to(memory_format=memory_format) if x.is_floating_point() else x.long()
        self._y = torch.from_numpy(arrays["y_train"][:TRAIN])

    def warm_up(self) -> None:
        """Compute a few gradients, as fredsim does when it tries a module, without what clients hold."""
        for _ in range(WARM):
            self._backward(slice(0, self._case.mu))
        for part in self._model.parameters():
            part.grad = None

    def _backward(self, rows: slice) -> None:
        output, y = self._model(self._x[rows]), self._y[rows]
        cross_entropy(output.reshape(-1, output.shape[-1]), y.reshape(-1)).backward()

    def run(self, iterations: int, *, seeded: bool = False) -> tuple[float, Array]:
        """Return the seconds of so many iterations from the beginning, and the final parameters (P,).

        `seeded`: each gradient draws what it draws in fredsim's run.
        """
        computed = [0] * self._case.clients
        mu, order = self._case.mu, plan(self._case.clients, iterations)
        own = list(self._model.parameters())
        begin = time.perf_counter()
        theta = [part.clone() for part in self._start]
        held = [[part.clone() for part in theta] for _ in range(self._case.clients)]
        for number, client in enumerate(order):
            rows = slice(number % (TRAIN // mu) * mu, (number % (TRAIN // mu) + 1) * mu)
            with torch.no_grad():
                torch._foreach_copy_(own, held[client])
            for part in own:
                part.grad = None
            if seeded:
                seed_by(Draws(SEED, client, computed[client]))
                computed[client] += 1
            self._backward(rows)
            with torch.no_grad():
                torch._foreach_add_(theta, [part.grad for part in own], alpha=-LEARNING_RATE)
                torch._foreach_copy_(held[client], theta)
        seconds = time.perf_counter() - begin
        return seconds, torch.cat([part.reshape(-1) for part in theta]).numpy()


def in_own_process(function: Callable[..., float], *arguments: Any) -> float:
    """Return what a function returns in a process of its own, which has imported PyTorch but not used it."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["benchmarks.native"])
    with ProcessPoolExecutor(1, processes) as pool:
        return pool.submit(function, *arguments).result()


def time_run(case: Case, file: Path, numerics: str, iterations: int, threads: int) -> float:
    """Return the seconds of fredsim's run."""
    return simulate(case, file, numerics, iterations, threads)[0]


def time_loop(case: Case, channels_last: bool, iterations: int, threads: int) -> float:
    """Return the seconds of the plain loop, after a few gradients."""
    torch.set_num_threads(threads)
    loop = PlainLoop(case, torch.channels_last if channels_last else torch.contiguous_format)
    loop.warm_up()
    return loop.run(iterations)[0]


def fastest_loop(case: Case) -> PlainLoop:
    """Return the loop, for images in the memory format in which some iterations take it less time."""
    formats = [torch.contiguous_format, *[torch.channels_last] * (len(case.shape) == 3 and case.factory is not mlp)]
    loops = [PlainLoop(case, form) for form in formats]
    for loop in loops:
        loop.run(CHECKED)
    return min(loops, key=lambda loop: min(loop.run(CHECKED)[0] for _ in range(3)))


def agreement(case: Case, file: Path, numerics: str, threads: int) -> float:
    """Return max|Δθ| / max|θ| after CHECKED iterations. Exits if fredsim's run and the loop disagree."""
    _, own, _ = simulate(case, file, numerics, CHECKED, threads)
    _, theirs = PlainLoop(case).run(CHECKED, seeded=True)
    difference = float(np.abs(own - theirs).max() / np.abs(own).max())
    if not difference <= TOLERANCE:
        raise SystemExit(f"{case.label}, {numerics}: after {CHECKED} iterations max|Δθ|/max|θ| is {difference:.1e}")
    return difference


ZOO, STATISTICS = "fredsim.zoo:", {"buffers": "averaged"}
CASES = (
    Case(f"{ZOO}lenet", zoo.lenet, MNIST, 4), Case(f"{ZOO}lenet", zoo.lenet, MNIST, 8),
    Case(f"{ZOO}lenet", zoo.lenet, MNIST, 32),
    Case(f"{ZOO}resnet", zoo.resnet, CIFAR, 8, options={"depth": 8}),
    Case(f"{ZOO}resnet", zoo.resnet, CIFAR, 32, options={"depth": 8}),
    Case(f"{ZOO}resnet", zoo.resnet, CIFAR, 8, options={"depth": 20}),
    Case(f"{ZOO}resnet", zoo.resnet, CIFAR, 32, options={"depth": 20}),
    Case(f"{ZOO}gpt", zoo.gpt, (BLOCK,), 8, options={"width": WIDTH, "layers": 2}, classes=TOKENS),
    *(Case("benchmarks.native:mlp", mlp, MNIST, mu, options={"hidden": [200]}) for mu in (1, 8, 32)),
    Case("benchmarks.native:mlp", mlp, MNIST, 8),
    *(
        Case("benchmarks.native:batch_normed", batch_normed, CIFAR, 8, options={"depth": depth}, keys=STATISTICS)
        for depth in (8, 20)
    ),
    Case(f"{ZOO}vgg", zoo.vgg, CIFAR, 8, options={"dropout": 0.25}),
    Case(f"{ZOO}gpt", zoo.gpt, (BLOCK,), 8, options={"width": WIDTH, "layers": 2, "dropout": 0.1}, classes=TOKENS),
)  # fmt: skip


def native(rounds: int, threads: int) -> Table:
    """Time whole runs of each module on all sides."""
    rows = []
    for case in CASES:
        with saved(case) as file:
            differences = [agreement(case, file, numerics, threads) for numerics in case.numerics]
            loop = fastest_loop(case)
            count = max(10 * case.clients, int(SECONDS * CHECKED / loop.run(CHECKED)[0]))
            sides = [
                partial(in_own_process, time_run, case, file, numerics, count, threads) for numerics in case.numerics
            ]
            theirs = partial(in_own_process, time_loop, case, loop.channels_last, count, torch.get_num_threads())
            seconds = alternate([*sides, theirs], rounds)
            vmap = simulate(case, file, "native", CHECKED, threads)[2]
        each = [f"{1e3 * median(side) / count:,.2f}" for side in zip(*seconds, strict=True)]
        ratios = [x for i in range(len(sides)) for x in in_brief([took[-1] / took[i] for took in seconds], seconds)]
        if len(sides) == 1:
            each, ratios = [each[0], "", each[1]], [*ratios, "", ""]
        rows.append((case.label, f"{case.mu}", *each, *ratios))
        apart = " and ".join(f"{one:.1e}" for one in differences)
        say(f"{case.label}, µ = {case.mu}: the sides differ by {apart}; {count} iterations a round; vmap: {vmap}")
    return Table(
        "Native modules",
        f"ms per iteration of whole runs of ASGD with {CASES[0].clients} clients: medians of {rounds} alternating "
        "rounds. Ratios: plain loop / fredsim, for native and for portable.",
        ("module", "µ", "native", "portable", "loop", "native ratio", "range", "portable ratio", "range"),
        rows,
    )
