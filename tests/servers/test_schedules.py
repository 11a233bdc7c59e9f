"""Learning-rate schedules: their values against closed forms, in YAML, a user's own, and bad ones."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fredsim
from fredsim.data.datasets import data_root, load_dataset
from fredsim.errors import ConfigError, SimulationError
from fredsim.networks.mlp import Mlp
from fredsim.numerics.streams import Streams
from fredsim.servers import ASGD, SERVERS, AveragedSGD
from fredsim.servers.schedules import SCHEDULES
from fredsim.simulation.paths.backends import make_engine

CASES: dict[str, tuple[dict[str, Any], Callable[[int], float]]] = {
    "constant": ({"base": 0.1}, lambda t: 0.1),
    "step": ({"base": 0.1, "every": 7, "factor": 0.5}, lambda t: 0.1 * 0.5 ** (t // 7)),
    "exponential": ({"base": 0.1, "factor": 0.9, "every": 5}, lambda t: 0.1 * 0.9 ** (t / 5)),
    "cosine": (
        {"base": 0.1, "steps": 40, "final": 0.01},
        lambda t: 0.01 + 0.045 * (1 + math.cos(math.pi * min(t, 40) / 40)),
    ),
    "inverse_power": ({"base": 0.1, "lambd": 0.3, "power": 0.75}, lambda t: 0.1 * (1 + 0.3 * 0.1 * t) ** -0.75),
    "warmup": (
        {"steps": 9, "then": {"name": "step", "base": 0.1, "every": 7, "factor": 0.5}},
        lambda t: 0.1 * (t + 1) / 9 if t < 9 else 0.1 * 0.5 ** ((t - 9) // 7),
    ),
}

OWN = """
def warm_up(t, base, steps):
    return base * min(1.0, (t + 1) / steps)

def late(t):
    return 0.0 if t < 5 else 0.1

def breaks_down(t):
    if t == 5:
        raise ArithmeticError("no more")
    return 0.1

def negative(t):
    return -1.0

def nothing(t):
    return float("nan")

def word(t):
    return "fast"

def digits(t):
    return "0.1"

def none(t):
    pass
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in {"", str(tmp_path)}])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_schedules.py").write_text(OWN, encoding="utf-8")


def test_all_are_here() -> None:
    assert CASES.keys() == SCHEDULES.keys()


@pytest.mark.parametrize("name", CASES)
def test_values_are_the_closed_form(name: str) -> None:
    hyper, form = CASES[name]
    server = ASGD(lr={"name": name, **hyper})
    server.init(np.zeros(1, np.float32), 1)
    for t in (*range(100), 1000, 10**6):
        server.timestamp = t
        assert server.rate() == pytest.approx(form(t), rel=1e-13, abs=0)
    server.timestamp = 0
    theta = 0.0
    for t in range(60):
        server.apply_update(np.ones(1, np.float32), 0, t)
        theta -= form(t)
    assert server.params[0] == pytest.approx(theta, rel=1e-6)


def test_defaults() -> None:
    cases: list[tuple[dict[str, Any], int, float]] = [
        ({"name": "inverse_power", "base": 0.1, "lambd": 0.5}, 8, 0.1 * 1.4**-0.75),
        ({"name": "cosine", "base": 0.1, "steps": 10}, 10, 0.0),
        ({"name": "cosine", "base": 0.1, "steps": 10}, 5, 0.05),
        ({"name": "exponential", "base": 0.1, "factor": 0.5}, 3, 0.0125),
        ({"name": "step", "base": 0.1, "every": 1, "factor": 0.5}, 3, 0.0125),
    ]
    for hyper, t, value in cases:
        server = ASGD(lr=hyper)
        server.timestamp = t
        assert server.rate() == pytest.approx(value, rel=1e-13, abs=0)


def test_a_warm_up_is_that_of_pytorch() -> None:
    """LinearLR from 1/steps to 1, then a cosine from its beginning; of a number, the number."""
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedulers = torch.optim.lr_scheduler
    first = schedulers.LinearLR(optimizer, start_factor=1 / 8, total_iters=7)
    then = schedulers.CosineAnnealingLR(optimizer, 30, eta_min=0.01)
    scheduler = schedulers.SequentialLR(optimizer, [first, then], [8])
    cosine = ASGD(
        lr={"name": "warmup", "steps": 8, "then": {"name": "cosine", "base": 0.1, "steps": 30, "final": 0.01}}
    )
    number = ASGD(lr={"name": "warmup", "steps": 8, "then": 0.1})
    for t in range(38):
        cosine.timestamp = number.timestamp = t
        assert cosine.rate() == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        assert number.rate() == pytest.approx(min(1, (t + 1) / 8) * 0.1, rel=1e-15)
        optimizer.step()
        scheduler.step()


def test_a_factor_above_one_or_of_one_is_a_schedule_too() -> None:
    for factor, value in ((1.0, 0.1), (2.0, 0.8)):
        server = ASGD(lr={"name": "exponential", "base": 0.1, "factor": factor})
        server.timestamp = 3
        assert server.rate() == pytest.approx(value, rel=1e-13)


def by_hand(form: Callable[[int], float], iterations: int) -> str:
    """One client of plain SGD at these rates; return the digest of where it ends."""
    data = load_dataset("digits", None, None, data_root())
    model = Mlp((64, 16, 10))
    engine = make_engine("numpy", model, data, 1, None)
    theta = model.initial(Streams(0))
    for t in range(iterations):
        g = engine.gradients([theta], (t * 4 + np.arange(4))[None])[0][0]
        theta = theta - np.float32(form(t)) * g
    return model.layout.digest(theta)


YAML = """
iterations: 60
data: {{name: digits}}
model: {{hidden: [16]}}
clients: {{count: 1, batch_size: 4}}
server:
  name: asgd
  lr: {{{lr}}}
"""


def from_yaml(tmp_path: Path, lr: str) -> Any:
    path = tmp_path / "scheduled.yaml"
    path.write_text(YAML.format(lr=lr), encoding="utf-8")
    return fredsim.run(path, out=tmp_path / "out")


@pytest.mark.parametrize("name", CASES)
def test_from_yaml_a_run_follows_the_schedule(name: str, tmp_path: Path) -> None:
    hyper, form = CASES[name]
    result = from_yaml(tmp_path, ", ".join(f"{key}: {value}" for key, value in {"name": name, **hyper}.items()))
    assert result.summary["digest"] == by_hand(form, 60)
    again = fredsim.run(result.folder / "config.yaml", out=tmp_path / "again")
    assert isinstance(again, fredsim.Result)
    assert again.summary["digest"] == result.summary["digest"]


@pytest.mark.usefixtures("own_module")
def test_a_function_of_ones_own(tmp_path: Path) -> None:
    result = from_yaml(tmp_path, 'name: "own_schedules:warm_up", base: 0.1, steps: 20')
    assert result.summary["digest"] == by_hand(lambda t: 0.1 * min(1.0, (t + 1) / 20), 60)
    again = fredsim.run(result.folder / "config.yaml", out=tmp_path / "again")
    assert isinstance(again, fredsim.Result)
    assert again.summary["digest"] == result.summary["digest"]


@pytest.mark.usefixtures("own_module")
def test_a_rate_of_zero_is_one(tmp_path: Path) -> None:
    result = from_yaml(tmp_path, 'name: "own_schedules:late"')
    assert result.summary["digest"] == by_hand(lambda t: 0.0 if t < 5 else 0.1, 60)


@pytest.mark.usefixtures("own_module")
def test_a_function_that_breaks_down_on_the_way_is_named(tmp_path: Path) -> None:
    with pytest.raises(SimulationError) as caught:
        from_yaml(tmp_path, 'name: "own_schedules:breaks_down"')
    for word in ("own_schedules:breaks_down failed at t = 5: ArithmeticError: no more (own_schedules.py:",):
        assert word in str(caught.value)


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("lr", "words"),
    [
        ("name: linear, base: 0.1", ["server.lr", "linear", "inverse_power", "module:function"]),
        ("base: 0.1", ["server.lr", "inverse_power"]),
        ("name: step, base: 0.1, every: 3", ["server.lr.factor", "required"]),
        ("name: step, base: 0.1, every: 0, factor: 0.5", ["server.lr.every", "0", "greater than 0"]),
        ("name: step, base: -0.1, every: 3, factor: 0.5", ["server.lr.base", "-0.1"]),
        ("name: cosine, base: 0.1, step: 10", ["server.lr.step", "unknown key"]),
        ("name: exponential, base: .inf, factor: 0.5", ["server.lr.base", "inf"]),
        ("name: warmup, steps: 10", ["server.lr.then", "is required"]),
        ("name: warmup, steps: 0, then: 0.1", ["server.lr.steps", "greater than 0"]),
        ("name: warmup, steps: 1, then: {name: cosine, base: 0.1}", ["server.lr.then.steps", "is required"]),
        ("name: warmup, steps: 1, then: {name: warmup, steps: 1, then: 0.1}", ["server.lr.then", "inverse_power"]),
        ('name: warmup, steps: 1, then: {name: "own_schedules:warm_up"}', ["server.lr.then", "inverse_power"]),
        ('name: "own_schedules:missing"', ["server.lr", "own_schedules:missing", "has no 'missing'"]),
        ('name: "no_such_module:warm_up"', ["server.lr", "no_such_module", "ModuleNotFoundError"]),
        ('name: "own_schedules:warm_up", base: 0.1', ["server.lr", "warm_up", "steps"]),
        ('name: "own_schedules:negative"', ["server.lr", "gives -1.0", "≥ 0"]),
        ('name: "own_schedules:nothing"', ["server.lr", "gives nan", "≥ 0"]),
        ('name: "own_schedules:word"', ["own_schedules:word gives 'fast' at t = 0; a learning rate is a number ≥ 0"]),
        (
            'name: "own_schedules:digits"',
            ["own_schedules:digits gives '0.1' at t = 0; a learning rate is a number ≥ 0"],
        ),
        ('name: "own_schedules:none"', ["own_schedules:none gives None at t = 0; a learning rate is a number ≥ 0"]),
    ],
)
def test_bad_ones_are_refused_before_the_run(lr: str, words: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        from_yaml(tmp_path, lr)
    for word in (*words, "scheduled.yaml:8"):
        assert word in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("lr", [0, -0.1, float("nan"), float("inf"), "fast", None, True, [0.1]])
def test_a_rate_that_is_no_rate_is_refused(lr: Any) -> None:
    with pytest.raises(ConfigError, match="lr"):
        ASGD(lr=lr)


def test_torch_mode_has_a_schedule_of_its_own() -> None:
    with pytest.raises(ConfigError, match="no schedule"):
        AveragedSGD(lr={"name": "constant", "base": 0.1}, mode="torch")
    with pytest.raises(ConfigError, match="no l1"):
        AveragedSGD(lr=0.1, mode="torch", l1=0.1)
    with pytest.raises(ConfigError, match="one of l1 and l2"):
        AveragedSGD(lr=0.1, l1=0.1, l2=0.1)


def test_every_server_takes_a_schedule() -> None:
    own: dict[str, dict[str, Any]] = {
        "average_staleness": {"staleness": 3.0}, "exponential": {"kappa": 0.1}, "soft_sync": {"n": 1},
        "rennala": {"batch": 2}, "ringmaster": {"threshold": 9}, "throttle": {"q": 2.0},
    }  # fmt: skip
    for name, server in SERVERS.items():
        made = server(lr={"name": "step", "base": 0.5, "every": 10, "factor": 0.5}, **own.get(name, {}))
        made.init(np.ones(3, np.float32), 2)
        made.timestamp = 20
        assert made.rate() == 0.125, name
