"""Losses of a user's own, in NumPy, of networks that fredsim computes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.config.metrics import OneMetric
from fredsim.cuda.networks.registry import why_refused
from fredsim.errors import ConfigError
from fredsim.networks.mlp import Mlp
from fredsim.networks.own_loss import ArrayLoss
from fredsim.networks.saved import graph_of_text, text_of_graph
from fredsim.runs.folder.result import Result

Simulate = Callable[..., Result]
Command = Callable[..., tuple[int, str, str]]
RNG = np.random.default_rng(3)
X = RNG.normal(size=(90, 4)).astype(np.float32)
TARGETS: dict[str, Any] = {"numbers": np.stack([X[:, 0] - X[:, 1], X[:, 2] ** 2], axis=1), "kinds": (X[:, 0] > 0) * 2}
MODULE = """
import numpy as np

calls = []

def squared(z, y, scale=1.0):
    e = z - y
    losses = (e[:, 0] * e[:, 0] + e[:, 1] * e[:, 1]) / np.float32(2)
    return np.float32(scale) * losses, np.float32(scale) * (e * np.float32(2) / np.float32(2))

def listed(z, y):
    losses, gradient = squared(z, y)
    return losses.astype(np.float64).tolist(), np.asfortranarray(gradient)[:, :]

def margin(z, y):
    assert y.dtype == np.int64 and z.shape[1] == 3
    own = np.take_along_axis(z, y[:, None], 1)
    over = np.maximum(z - own + 1, 0)
    pushes = (over > 0).astype(np.float32)
    np.put_along_axis(pushes, y[:, None], 1 - pushes.sum(axis=1, keepdims=True), 1)
    return over.sum(axis=1) - 1, pushes

def overwriting(z, y):
    found = squared(z, y)
    z[:], y[:] = 0, 0
    return found

def halved(z, y):
    losses, gradient = squared(z, y)
    return losses, gradient / 2

def shared(z, y):
    losses, gradient = squared(z, y)
    return losses, gradient / len(y)

def still(z, y):
    losses, gradient = squared(z, y)
    return losses, gradient * 0

def level(z, y):  # rightly of no gradient where outputs are near
    losses, gradient = squared(z, y)
    near = losses < 1e3
    return np.where(near, np.float32(1e3), losses), gradient * ~near[:, None]

def alone(z, y):
    return squared(z, y)[0]

def mean(z, y):
    return squared(z, y)[0].mean(), squared(z, y)[1]

def flat(z, y):
    return squared(z, y)[0], squared(z, y)[1].ravel()

def centred(z, y):
    losses = squared(z, y)[0]
    return losses - losses.mean(), 0 * z

def fails(z, y):
    raise RuntimeError("on purpose")

def in_torch(z, y):
    return -z.log_softmax(dim=1)

def exits(z, y):
    raise SystemExit(0)

def infinite(z, y):
    return squared(z, y)[0] / 0, squared(z, y)[1]

def odd(z, y):
    return squared(z, y)[0], squared(z, y)[1] * np.nan

def text(z, y):
    return squared(z, y)[0], "gradient"

def other(z, y):
    calls.append(1)
    return squared(z, y)[0] + len(calls), squared(z, y)[1]

def strict(z, y):
    assert np.isfinite(z).all()
    return squared(z, y)
"""
SAME = """
from torch import nn

def net(classes, shape):
    return nn.Sequential(nn.Linear(shape[0], 8), nn.Tanh(), nn.Linear(8, classes))
"""


@pytest.fixture(autouse=True)
def files(small_yaml: Path) -> None:
    """Write the arrays, each as NAME.npz, and the modules into a new current folder."""
    del small_yaml
    for name, y in TARGETS.items():
        np.savez(f"{name}.npz", x_train=X[:70], y_train=y[:70], x_test=X[70:], y_test=y[70:])
    Path("scores.py").write_text(MODULE, encoding="utf-8")
    Path("nets.py").write_text(SAME, encoding="utf-8")


def changed(loss: Any, name: str = "numbers", **changes: Any) -> dict[str, Any]:
    server = {"name": "asgd", "lr": 0.02}
    return {"data": {"name": f"npz:{name}.npz"}, "loss": loss, "iterations": 20, "server": server, **changes}


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("name", ["squared", "listed", "overwriting"])
def test_an_own_loss_is_the_same_as_ours(name: str, backend: str, simulate: Simulate) -> None:
    ours = simulate(changed("mse", backend=backend))
    own = simulate(changed(f"scores:{name}", backend=backend))
    assert own.metrics["validation_loss"].tolist() == ours.metrics["validation_loss"].tolist()
    assert own.summary["digest"] == ours.summary["digest"]
    assert own.summary["numerics"] == "portable"
    assert "scores" in own.summary["code"]


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_one_that_takes_finite_outputs_alone_ends_no_run(backend: str, simulate: Simulate) -> None:
    """The run diverges, at the event at which it does so by a loss that takes any outputs."""
    more: dict[str, Any] = {"backend": backend, "server": {"name": "asgd", "lr": 1e20}, "evaluation": {"every": 1}}
    found, expected = (simulate(changed(f"scores:{name}", **more)) for name in ("strict", "squared"))
    assert found.has_diverged
    assert found.summary["digest"] == expected.summary["digest"]
    assert found.summary["iterations"] == expected.summary["iterations"] > 0


@pytest.mark.parametrize(("name", "noted"), [("centred", True), ("squared", False)])
def test_samples_that_meet_in_a_loss(name: str, noted: bool, simulate: Simulate) -> None:
    """Where each is computed alone, that is said of the first one which has another loss then."""
    clients = {"count": 2, "batch_size": 4, "clip_each_sample": 1.0}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        simulate(changed(f"scores:{name}", clients=clients))
    meet = [text for text in map(str, (one.message for one in found)) if "let no samples meet" in text]
    assert [re.search("sample 0 has the loss 0 then, and .* beside 3 others", text) is not None for text in meet] == (
        [True] * noted
    )


def test_its_arguments(simulate: Simulate) -> None:
    once, twice = (simulate(changed({"name": "scores:squared", "scale": scale})) for scale in (1.0, 2.0))
    assert once.summary["digest"] != twice.summary["digest"]


def test_a_loss_of_classes_and_its_backends(simulate: Simulate) -> None:
    model = {"hidden": [5]}
    found = [simulate(changed("scores:margin", "kinds", model=model, backend=one)) for one in ("numpy", "numba")]
    assert found[0].metrics.to_csv() == found[1].metrics.to_csv()
    assert found[0].summary["validation_loss"] < found[0].metrics["validation_loss"][0]
    params = {name: value.astype(np.float64) for name, value in found[0].params.items()}
    z = np.maximum(X[59:70] @ params["W1"] + params["b1"], 0) @ params["W2"] + params["b2"]
    over = np.maximum(z - np.take_along_axis(z, TARGETS["kinds"][59:70, None], 1) + 1, 0)
    assert found[0].summary["validation_loss"] == pytest.approx((over.sum(axis=1) - 1).mean(), rel=1e-5)


@pytest.mark.parametrize("integers", [np.int32, np.uint8])
def test_labels_of_tokens_are_int64_like_all_others(integers: Any) -> None:
    """With int32, what a function multiplies them by, such as places in a large table, wrapped around."""
    y, z = np.array([[0, 2]], integers), np.zeros((1, 2, 3), np.float32)
    Path("wide.py").write_text(
        "def product(z, y):\n    return (y * 2**31).sum(axis=1) / 2**31, z\n\n"
        "def largest(z, y):\n    return (y * 2**31).max()\n",
        encoding="utf-8",
    )
    assert ArrayLoss.of("wide:product", {}).losses(z, y).each.tolist() == [2.0]
    metric = OneMetric(name="wide:largest").metric()
    assert metric.values(z, y) == [2.0**32]


def test_a_captured_module(simulate: Simulate, command: Command) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    model = {"name": "torch:nets:net", "numerics": "portable"}
    ours, own = (simulate(changed(loss, model=model)) for loss in ("mse", "scores:squared"))
    assert own.summary["digest"] == ours.summary["digest"]
    graph = graph_of_text((own.folder / "graph.json").read_bytes())
    assert graph.loss == ArrayLoss.of("scores:squared", {})
    Path("nets.py").unlink()
    assert command("verify", str(own.folder))[0] == 0


def test_a_graph_is_read_without_importing_its_loss() -> None:
    graph = Mlp((4, 3)).graph
    odd = replace(graph, loss=ArrayLoss.of("gone:fn", {"b": [1.5], "a": "x"}))
    text = text_of_graph(odd)
    assert graph_of_text(text.encode()) == odd
    with pytest.raises(ConfigError, match="cannot import 'gone'"):
        odd.gradient(np.zeros(15, np.float32), X[:2], np.zeros(2, np.int64))


BAD = {
    "alone": "returned one result; of a network that fredsim computes it must return each sample's loss",
    "mean": "returned losses of the shape (), not (4,)",
    "flat": "returned derivatives of the shape (8,), not (4, 2)",
    "fails": "failed on outputs (4, 2) and targets (4, 2), arrays of NumPy: RuntimeError: on purpose (scores.py:",
    "in_torch": "; a loss in PyTorch needs a PyTorch module with numerics: native",
    "exits": "SystemExit: 0 (scores.py:",
    "infinite": "is inf for sample 0 of the first ones, whose outputs are finite",
    "odd": "has a gradient that is nan for sample 0",
    "text": "returned what is no array of numbers: the array of its derivatives is an array of <U8",
    "other": "returns other numbers for the same outputs",
}


@pytest.mark.parametrize(("name", "says"), BAD.items())
def test_what_is_refused(name: str, says: str, simulate: Simulate) -> None:
    with pytest.raises(ConfigError) as caught:
        simulate(changed(f"scores:{name}"))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def told_of(name: str, command: Command) -> str:
    """Return the messages of a run with a loss."""
    Path("other.yaml").write_text(
        f"iterations: 4\ndata: {{name: 'npz:numbers.npz'}}\nloss: 'scores:{name}'\n"
        "clients: {count: 2, batch_size: 2}\n"
        "server: {name: asgd, lr: 0.01}\nevaluation: {every: 4}\n", encoding="utf-8",
    )  # fmt: skip
    code, _, messages = command("run", "other.yaml")
    assert code == 0
    return str(messages)


@pytest.mark.parametrize(("name", "notes"), [("still", 1), ("level", 0)])
def test_a_gradient_of_nothing(name: str, notes: int, command: Command) -> None:
    """A loss that changes has one."""
    messages = told_of(name, command)
    assert len(re.findall(rf"scores:{name}: losses change by [\d.]+ where its gradient is 0\n", messages)) == notes


def test_no_device_computes_it() -> None:
    graph = replace(Mlp((4, 3)).graph, loss=ArrayLoss.of("scores:margin", {}))
    assert why_refused(graph) == "your own loss, a function of NumPy arrays"


@pytest.mark.parametrize(
    ("name", "hint"), [("halved", ""), ("shared", "; it is that of each sample's own loss, not of their mean")]
)
def test_a_gradient_that_is_another(name: str, hint: str, command: Command) -> None:
    messages = told_of(name, command)
    (found,) = re.findall(
        rf"scores:{name}: losses change by [\d.]+ along its gradient, which says [\d.]+(.*)", messages
    )
    assert found == hint
