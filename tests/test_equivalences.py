"""Different ways to say the same experiment give the same parameters, byte for byte."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fredsim.data.datasets import data_root, load_dataset
from fredsim.networks.mlp import Mlp
from fredsim.numerics.streams import Streams
from fredsim.runs.folder.results import Result
from fredsim.simulation.paths.backends import make_engine
from tests.dense_networks import gradient

Simulate = Callable[..., Result]
SPLITS = [(1, 128), (2, 64), (4, 32), (8, 16), (32, 4), (128, 1)]


@pytest.mark.parametrize(("updates", "train"), [(20, 50_000), (110, 12_800)])
def test_synchronous_sgd_does_not_depend_on_how_the_batch_is_split(
    simulate: Simulate, mnist_root: str, updates: int, train: int
) -> None:
    """FRED's own check, on parameters instead of error rates. 128 divides 12,800: no split drops samples."""
    digests = {
        simulate(
            {
                "updates": updates,
                "data": {"name": "mnist", "train": train},
                "model": {"hidden": [200]},
                "clients": {"count": clients, "batch_size": size},
                "server": {"name": "sync", "lr": 0.1},
                "evaluation": {"every": 10**6},
            },
            root=mnist_root,
        ).summary["digest"]
        for clients, size in SPLITS
    }
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("model", "data", "digests"),
    [
        ({"name": "resnet", "width": 8}, {"name": "digits"}, 1),
        ({"name": "gpt", "width": 16, "layers": 1}, {"name": "modular", "p": 23}, 1),
        ({"name": "vgg", "widths": [4]}, {"name": "digits"}, 4),
    ],
)
def test_networks_do_not_depend_on_how_the_batch_is_split(
    simulate: Simulate, model: dict[str, Any], data: dict[str, Any], digests: int
) -> None:
    """But for batch norm, where a minibatch's samples meet."""
    runs = [
        simulate(
            {
                "updates": 5,
                "data": {**data, "train": 192, "validation": 10},
                "model": {"init": "he", **model},
                "clients": {"count": clients, "batch_size": 64 // clients},
                "server": {"name": "sync", "lr": 0.1},
                "evaluation": {"every": 10**6},
                "backend": "numba",
            }
        )
        for clients in (1, 4, 16, 64)
    ]
    assert {run.summary["status"] for run in runs} == {"finished"}
    assert len({run.summary["digest"] for run in runs}) == digests


def test_splits_part_where_fred_drops_samples(simulate: Simulate) -> None:
    """With n not a multiple of every µ the splits see different samples from the second pass on."""
    digests = []
    for clients, size in ((1, 32), (32, 1)):
        for updates in (37, 40):  # 1,200 rows are 37 minibatches of 32, and 16 rows more
            experiment: dict[str, Any] = {
                "updates": updates,
                "clients": {"count": clients, "batch_size": size},
                "server": {"name": "sync", "lr": 0.1},
            }
            digests.append(simulate(experiment).summary["digest"])
    assert digests[0] == digests[2]
    assert digests[1] != digests[3]


@pytest.mark.parametrize("sampling", ["sequential", "iid", "shuffled"])
@pytest.mark.parametrize("clients", [1, 5, 8])
def test_soft_sync_meets_its_limits(simulate: Simulate, clients: int, sampling: str) -> None:
    def digest(server: dict[str, Any]) -> str:
        own = {"count": clients, "batch_size": 3, "sampling": sampling}
        return str(simulate({"iterations": 80, "clients": own, "server": server}).summary["digest"])

    assert digest({"name": "soft_sync", "lr": 0.1, "n": 1}) == digest({"name": "sync", "lr": 0.1})
    asgd = digest({"name": "asgd", "lr": 0.1})
    assert digest({"name": "soft_sync", "lr": 0.1, "n": clients}) == asgd
    for divisor in ("max1", "plus1"):
        aware = {"name": "soft_sync", "lr": 0.1, "n": clients, "aware": True, "divisor": divisor}
        sasgd = digest({"name": "sasgd", "lr": 0.1, "divisor": divisor})
        assert digest(aware) == sasgd
        assert (sasgd == asgd) == (clients == 1)


def test_soft_sync_of_single_gradients_holds_nobody(simulate: Simulate) -> None:
    """So that its clients need not wait either."""
    servers: list[dict[str, Any]] = [{"name": "soft_sync", "lr": 0.1, "n": 8}, {"name": "asgd", "lr": 0.1}]
    runs = [simulate({"dispatcher": {"name": "uniform", "wait": False}, "server": server}) for server in servers]
    assert runs[0].summary["digest"] == runs[1].summary["digest"]


def test_scripted_in_turn_is_round_robin(simulate: Simulate) -> None:
    digests = {
        simulate({"iterations": 100, "dispatcher": dispatcher}).summary["digest"]
        for dispatcher in ({"name": "round_robin"}, {"name": "scripted", "order": list(range(8))})
    }
    assert len(digests) == 1


@pytest.mark.parametrize("variant", ["std", "printed", "released"])
def test_one_client_of_fasgd_is_its_rule_by_hand(simulate: Simulate, variant: str) -> None:
    """The oracle's gradients and the rule's equations, statement by statement in float32."""
    f = np.float32
    result = simulate(
        {
            "iterations": 60,
            "clients": {"count": 1, "batch_size": 4},
            "server": {"name": "fasgd", "lr": 0.005, "variant": variant},
        }
    )
    data = load_dataset("digits", None, None, data_root())
    model = Mlp((64, 16, 10))
    theta = model.initial(Streams(0))
    engine = make_engine("numpy", model, data, 1, None)
    n, b, v = np.zeros_like(theta), np.zeros_like(theta), np.full_like(theta, variant != "released")
    for iteration in range(60):
        rows = iteration % 300 * 4 + np.arange(4)
        g = engine.gradients([theta], rows[None])[0][0]
        if variant == "released":
            v = f(0.9) * v + f(0.1) * np.abs(g)
            theta = theta - (f(0.005) * g) / ((v + f(0.001)) * f(1))
        else:
            n = f(0.9) * n + f(1 - 0.9) * (g * g)
            b = f(0.9) * b + f(1 - 0.9) * g
            root = np.sqrt(np.maximum(n - b * b, f(0)) + f(1e-4))
            v = f(0.9) * v + (f(1 - 0.9) * root if variant == "std" else f(1 - 0.9) / root)
            theta = theta - (f(0.005) * g) / (v * f(1))
        n, b, v = (np.where(np.abs(x) < f(2.0**-62), f(0), x) for x in (n, b, v))
    assert model.layout.digest(theta) == result.summary["digest"]


def test_without_waiting_a_fetch_takes_effect_one_gradient_later(simulate: Simulate) -> None:
    """One client, by hand: gradient k + 1 is begun when k is pushed, from what was fetched after gradient k − 1."""
    result = simulate(
        {
            "iterations": 20,
            "clients": {"count": 1, "batch_size": 4},
            "dispatcher": {"name": "uniform", "wait": False},
            "server": {"name": "asgd", "lr": 0.1},
        }
    )
    data = load_dataset("digits", None, None, data_root())
    model = Mlp((64, 16, 10))
    engine = make_engine("numpy", model, data, 1, None)
    theta = model.initial(Streams(0))
    under_way = fetched = theta
    for iteration in range(20):
        rows = iteration * 4 + np.arange(4)
        g = engine.gradients([under_way], rows[None])[0][0]
        under_way = fetched
        theta = theta - np.float32(0.1) * g
        fetched = theta
    assert model.layout.digest(theta) == result.summary["digest"]
    assert result.metrics["staleness_max"].max() == 1
    assert result.staleness["staleness"].tolist() == [0, 1]


def test_the_oracle_alone_repeats_asgd(simulate: Simulate) -> None:
    """Two clients in turn, every step from the definitions: what a reader would do on paper."""
    result = simulate(
        {
            "iterations": 10,
            "clients": {"count": 2, "batch_size": 5},
            "dispatcher": {"name": "round_robin"},
            "server": {"name": "asgd", "lr": 0.1},
        }
    )
    data = load_dataset("digits", None, None, data_root())
    model = Mlp((64, 16, 10))
    start = model.layout.split(model.initial(Streams(0)))
    weights = [(start["W1"], start["b1"]), (start["W2"], start["b2"])]
    held = [weights, weights]
    for iteration in range(10):
        rows = slice(iteration * 5, iteration * 5 + 5)
        grads, _ = gradient(held[iteration % 2], data.train.x[rows], data.train.y[rows])
        lr = np.float32(0.1)
        weights = [(w - lr * gw, b - lr * gb) for (w, b), (gw, gb) in zip(weights, grads, strict=True)]
        held[iteration % 2] = weights
    for name, value in zip(("W1", "b1", "W2", "b2"), [x for layer in weights for x in layer], strict=True):
        np.testing.assert_array_equal(result.params[name], value)


def test_the_first_of_all_clients_are_all(simulate: Simulate) -> None:
    """m-synchronous SGD with m = λ is synchronous SGD."""
    dispatcher = {"name": "clock", "compute": {"noise": {"name": "exponential"}}}
    clients = {"count": 8, "batch_size": 3, "sampling": "shuffled"}
    first = {"name": "sync", "lr": 0.1, "aggregate": 8, "restart": True}
    sync, msync = (
        simulate({"dispatcher": dispatcher, "clients": clients, "server": server, "evaluation": {"every": 8}})
        for server in ({"name": "sync", "lr": 0.1}, first)
    )
    assert sync.summary["updates"] == 6
    assert sync.metrics.equals(msync.metrics)
