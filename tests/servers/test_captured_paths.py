"""Dense networks of PyTorch take the path `hand`, whose kernels have parameters in an order of their own: same bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.config.resolution import resolve
from fredsim.errors import ConfigError
from fredsim.networks.graph import Graph, Node
from fredsim.networks.layout import Layout
from fredsim.networks.mlp import dense_layers
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.views import Reshape
from fredsim.runs.folder.results import Result
from fredsim.runs.single.execution import execute
from tests.servers.paths import SETTINGS, Check, check_same

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # whatever importing it says
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")

MODULES = """
from torch import nn


def dense(hidden):
    widths, layers = (64, *hidden, 10), [nn.Flatten()]
    for i, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
        layers += [nn.ReLU()] * (i > 0) + [nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers)


class Backwards(nn.Module):
    'Its last layer is the first that it has, and each bias stands before its weight.'

    def __init__(self):
        super().__init__()
        self.head, self.body = nn.Linear(24, 10), nn.Linear(64, 24)
        for layer in self.head, self.body:
            layer._parameters = dict(reversed(layer._parameters.items()))

    def forward(self, x):
        return self.head(self.body(x.flatten(1)).relu())


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.again, self.head = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.again(self.again(self.first(x.flatten(1)).relu()).relu()).relu())


class Beside(nn.Module):
    'With a way past its hidden layer.'

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 10)

    def forward(self, x):
        x = self.a(x.flatten(1)).relu()
        return self.c(self.b(x).relu() + x)


class Spare(nn.Module):
    'With a layer that it does not use, which a rule changes all the same.'

    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(64, 10), nn.Linear(64, 10)

    def forward(self, x):
        return self.used(x.flatten(1))


def unlike(what):
    middle = {"bias": nn.Linear(64, 16, bias=False), "gelu": nn.Linear(64, 16), "two": nn.Linear(64, 16)}[what]
    between = {"bias": [nn.ReLU()], "gelu": [nn.GELU()], "two": [nn.ReLU(), nn.ReLU()]}[what]
    return nn.Sequential(nn.Flatten(), middle, *between, nn.Linear(16, 10))
"""


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "their_dense.py").write_text(MODULES, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


def module(name: str, **arguments: Any) -> dict[str, Any]:
    return {"model": {"name": f"torch:their_dense:{name}", "numerics": "portable", **arguments}}


SERVERS: list[dict[str, Any]] = [
    {"name": "asgd", "lr": 0.1},
    {"name": "fasgd", "lr": 0.005},
    {"name": "momentum", "lr": 0.02},
]


@pytest.mark.parametrize("number", range(0, len(SETTINGS), 5))
def test_every_setting(number: int, check: Check) -> None:
    changes = SETTINGS[number] | {"threads": 1 + number % 3, "server": SERVERS[number // 5 % 3]}
    hidden = changes.pop("model")["hidden"]
    check(changes | (module("Backwards") if number % 2 else module("dense", hidden=hidden)), ["hand"])


@pytest.mark.parametrize("knobs", [{"backend": "numpy"}, {"window": 1}, {"memory": 20_000}], ids=str)
def test_no_knob_moves_a_bit(knobs: dict[str, Any], simulate: Callable[..., Result]) -> None:
    changes = module("Backwards") | {"server": SERVERS[1], "clients": {"count": 6, "batch_size": 9}}
    one, other = simulate(changes), simulate(changes | knobs)
    assert (one.summary["path"], one.summary["path_why"]) == ("hand", "all that an event depends on is known ahead")
    check_same(one, other)


def test_what_was_computed_so_far(tmp_path: Path, digits_experiment: dict[str, Any]) -> None:
    changes = digits_experiment | module("Backwards") | {"server": SERVERS[2], "evaluation": {"every": 10}}
    for path in ("hand", "snapshots"):
        execute(resolve(changes | {"path": path}), tmp_path / path, most_iterations=23)
    check_same(*(Result(tmp_path / path) for path in ("hand", "snapshots")))


WHOLE = "the engine forms whole gradients"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (module("Twice"), WHOLE),
        (module("Beside"), WHOLE),
        (module("Spare"), WHOLE),
        *((module("unlike", what=what), WHOLE) for what in ("bias", "gelu", "two")),
        (module("dense", hidden=[]) | {"loss": {"name": "cross_entropy", "label_smoothing": 0.1}}, WHOLE),
        (module("dense", hidden=[16], trainable="1.*"), "some tensors are not trained"),
        (module("dense", hidden=[16]) | {"server": {"name": "dcasgd", "lr": 0.1, "lambda0": 1.0}}, "DCASGD does more"),
        (module("dense", hidden=[16]) | {"dispatcher": {"fetch": {"every": 2}}}, "a fetch may be refused"),
    ],
)  # fmt: skip
def test_others_take_snapshots(changes: dict[str, Any], why: str, simulate: Callable[..., Result]) -> None:
    summary = simulate(changes | {"iterations": 5}).summary
    assert summary["path"] == "snapshots"
    assert why in summary["path_why"]


def test_fused_is_refused(simulate: Callable[..., Result]) -> None:
    with pytest.raises(ConfigError, match="path is fused; its kernels read an Mlp's parameters in place"):
        simulate(module("Backwards") | {"path": "fused"})


def test_a_weight_is_split_as_pytorch_has_it() -> None:
    layout = Layout((("bias", (2,)), ("weight", (2, 3))))
    tensors = (("weight", "weight"), ("bias", "bias"))
    nodes = Node(Reshape((-1,)), (0,)), Node(Linear(2, layout="out_in"), (1,), tensors)
    graph = Graph((1, 3), (), nodes, CrossEntropy(), layout)
    found = dense_layers(graph)
    assert found is not None
    ((weight, bias),) = found.split(np.arange(8, dtype=np.float32))
    assert (found.sizes, weight.tolist(), bias.tolist()) == ((3, 2), [[2, 5], [3, 6], [4, 7]], [0, 1])
