"""The experiments of experiments/clients, on the portable MLP and on PyTorch's own, against tests/client_loops.py."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fredsim
from fredsim.config.experiment import Experiment
from fredsim.data.datasets import data_root
from fredsim.numerics.distributions import Distribution
from fredsim.numerics.streams import Streams
from fredsim.runs.folder.result import Result
from fredsim.runs.single.opening import open_expansion
from fredsim.runs.single.prepared import Prepared, prepare
from fredsim.simulation.paths.backends import make_engine
from tests.client_loops import Setting, diloco, rounds

Array = NDArray[np.float32]
FILES = Path(__file__).parents[1] / "experiments/clients"
NETWORKS = pytest.mark.parametrize("native", [False, True], ids=["portable", "native"])
MODULE = """
from torch import nn


def dense(classes, shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, classes))
"""


def torch_gradient(prepared: Prepared) -> Callable[[Array, NDArray[np.int64]], Array]:
    """Return a function of parameters and samples: the gradient by PyTorch's autograd."""
    import torch

    from fredsim.native.model import TorchModel

    model = prepared.model
    assert isinstance(model, TorchModel)
    x, y = (
        torch.from_numpy(prepared.dataset.train.x.copy()),
        torch.from_numpy(prepared.dataset.train.y.astype(np.int64)),
    )
    shapes = [shape for _, shape in model.layout.tensors]

    def gradient(theta: Array, samples: NDArray[np.int64]) -> Array:
        parts = torch.split(torch.from_numpy(theta.copy()), model.layout.sizes)
        tensors = [part.reshape(shape).clone().requires_grad_() for part, shape in zip(parts, shapes, strict=True)]
        w1, b1, w2, b2 = tensors
        hidden = torch.relu(torch.nn.functional.linear(x[samples].reshape(len(samples), -1), w1, b1))
        loss = torch.nn.functional.cross_entropy(torch.nn.functional.linear(hidden, w2, b2), y[samples])
        return np.concatenate([g.reshape(-1).numpy() for g in torch.autograd.grad(loss, tensors)])

    return gradient


def setting_of(experiment: Experiment, steps: list[int], **more: Any) -> Setting:
    """Return what the loops begin with: gradients by the oracle, or by PyTorch's autograd."""
    prepared = prepare(experiment, data_root(None))
    streams, clients = Streams(experiment.seed), experiment.clients
    sampler = prepared.dataset.sampler(clients.sampling, clients.batch_size, streams, prepared.shards)
    if experiment.model.native:
        native = torch_gradient(prepared)
    else:
        engine = make_engine("numpy", prepared.model, prepared.dataset, clients.batch_size, None)

        def native(theta: Array, samples: NDArray[np.int64]) -> Array:
            found: Array = engine.gradients([theta], samples[None])[0][0].copy()
            return found

    def gradient(theta: Array, client: int, number: int) -> Array:
        return native(theta, sampler.rows(np.array([number]), np.array([client]), np.array([number]))[0])

    start, layout = prepared.model.initial(streams), prepared.model.layout
    return Setting(start, clients.count, gradient, layout.digest, steps, streams=streams, **more)


@pytest.fixture
def run_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Result, Experiment]]:
    """Run one of the experiments, with a small network and fewer iterations."""
    (tmp_path / "client_module.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(name: str, native: bool, *changes: str) -> tuple[Result, Experiment]:
        model = "{hidden: [12]}"
        if native:
            pytest.importorskip("torch")
            model = "{name: 'torch:client_module:dense', numerics: native}"
        given = ["sweep=null", f"model={model}", "evaluation.every=1", "threads=1", *changes]
        result = fredsim.run(FILES / f"{name}.yaml", given, out=tmp_path / "out")
        (one,) = open_expansion(FILES / f"{name}.yaml", given).runs
        assert isinstance(result, Result)
        return result, one.experiment

    return run


def compare(result: Result, world: Setting) -> None:
    """Compare every row's digest, the bytes, and the staleness of all pushes."""
    assert result.metrics["digest"].tolist()[1:] == world.digests
    assert (result.summary["bytes_pushed"], result.metrics["staleness_max"].max()) == (
        world.pushed,
        max(world.staleness),
    )
    table = result.staleness
    assert dict(zip(table["staleness"], table["count"], strict=True)) == Counter(world.staleness)


@NETWORKS
def test_fedavg_with_a_fraction(run_shipped: Callable[..., Any], native: bool) -> None:
    """Eight rounds of the five clients that are drawn: θ is the mean of theirs."""
    result, experiment = run_shipped("fedavg", native, "iterations=40")
    world = setting_of(experiment, [5] * 50)
    rounds(world, 8, team=5, lr=0.1)
    compare(result, world)
    assert result.summary["bytes_fetched"] == world.fetched
    assert (result.summary["updates"], result.summary["pushes"]) == (8, 40)


@NETWORKS
def test_fedprox(run_shipped: Callable[..., Any], native: bool) -> None:
    """Clients of different speed, with local steps in proportion, and a proximal term."""
    result, experiment = run_shipped("fedprox", native, "iterations=30", "clients.prox=0.1")
    own = [float(np.sqrt(i + 1.0)) for i in range(30)]
    steps = [max(1, int(20 * (own[0] / one))) for one in own]
    assert (steps[0], steps[3], steps[29]) == (20, 10, 3)
    world = setting_of(experiment, steps, own=own, noise=Distribution("exponential"))
    rounds(world, 5, team=6, lr=0.1, prox=0.1)
    compare(result, world)


@NETWORKS
def test_scaffold(run_shipped: Callable[..., Any], native: bool) -> None:
    """Each copy has the parameters and a control variate, so that it takes twice the bytes."""
    result, experiment = run_shipped("scaffold", native, "iterations=24", "clients.control_variates=true")
    world = setting_of(experiment, [10] * 20)
    rounds(world, 6, team=4, lr=0.05, control=True)
    compare(result, world)
    assert world.pushed == 24 * 2 * 4 * len(world.start) == result.summary["bytes_fetched"]


@NETWORKS
@pytest.mark.parametrize("keep", [False, True], ids=["renewed", "kept"])
def test_asynchronous_diloco(run_shipped: Callable[..., Any], native: bool, keep: bool) -> None:
    """AdamW inside, as many steps as a client is fast, delayed Nesterov outside; staleness as in a plain event loop."""
    value = str(keep).lower()
    result, experiment = run_shipped("diloco", native, "iterations=40", f"clients.optimizer.keep_state={value}")
    own = [i + 1.0 for i in range(8)]
    noise = Distribution("gamma", (1 / (0.2 * 0.2), 0.2 * 0.2))
    world = setting_of(experiment, [max(1, int(20 * (1.0 / one))) for one in own], own=own, noise=noise)
    hyper = experiment.clients.optimizer.hyper
    diloco(
        world, 40, lr=hyper["lr"], decay=hyper["weight_decay"], keep=keep,
        server_lr=experiment.server.hyper["server_lr"], beta=experiment.server.hyper["momentum"], every=8,
    )  # fmt: skip
    compare(result, world)
    assert result.summary["bytes_pushed"] == 40 * 4 * len(world.start)  # one vector a task, however many steps it has
