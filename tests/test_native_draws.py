"""Native modules that draw random numbers: each gradient has a generator of its own, keyed as portable dropout is."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")

from fredsim.data.datasets import data_root, load_dataset
from fredsim.native.engine import TorchEngine
from fredsim.native.model import TorchModel
from fredsim.numerics.ops.draws import Keys
from fredsim.runs.folder.results import Result
from fredsim.simulation.paths.backends import make_operations
from tests.conftest import checkpoints_every
from tests.test_live import DATA, FakeWorkers, lived
from tests.vectors.contract import philox

Simulate = Callable[..., Result]
Command = Callable[..., tuple[int, str, str]]


pytestmark = pytest.mark.usefixtures("modules")


def model(name: str = "dropped", **more: Any) -> dict[str, Any]:
    return {"name": f"torch:own_modules:{name}", "numerics": "native", **more}


def test_a_gradient_is_that_of_its_key() -> None:
    """Against a plain loop that seeds PyTorch by Philox written out."""
    digits = load_dataset("digits", None, None, data_root())
    found = TorchModel("torch:own_modules:dropped", {}, "cpu", digits.shape, digits.classes, 0)
    engine = TorchEngine(found, digits, 4, 1, make_operations("numpy", 1))
    engine.fix_window(3, 3)
    held, rows = [found.initial_params] * 3, np.arange(12).reshape(3, 4)
    keys = Keys(7, np.array([5, 1, 5]), np.array([0, 2, 1]))
    before = random.getstate(), torch.get_rng_state().tolist()
    grads, losses = (array.copy() for array in engine.gradients(held, rows, keys))
    assert (random.getstate(), torch.get_rng_state().tolist()) == before
    for b, (client, number) in enumerate(zip(keys.clients, keys.numbers, strict=True)):
        first, second, *_ = philox((0, int(number), int(client), 0), (7, 14))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(first << 32 | second)
            x, y = torch.from_numpy(digits.train.x[rows[b]]), torch.from_numpy(digits.train.y[rows[b]]).long()
            loss = torch.nn.functional.cross_entropy(found.module(x), y)
        expected = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(found.module.parameters()))])
        assert grads[b].tobytes() == expected.numpy().tobytes()
        assert losses[b].mean() == pytest.approx(loss.item())
    again = engine.gradients(held[1:2], rows[1:2], Keys(7, np.array([1]), np.array([2])))[0]
    assert again.tobytes() == grads[1].tobytes()
    assert "it draws random numbers" in engine.facts()["vmap"]
    engine.close()


@pytest.mark.parametrize("name", ["dropped", "jittered"])
def test_nothing_else_moves_a_bit(name: str, simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    base = {"model": model(name), "iterations": 20, "threads": 1}
    whole = simulate(base).summary["digest"]
    for other in ({"window": 1}, {"window": 5}, {"evaluation": {"every": 5, "gradient_norm": True}}):
        assert simulate(base | other).summary["digest"] == whole
    assert simulate(base | {"seed": 1}).summary["digest"] != whole
    checkpoints_every(0.0, monkeypatch)
    assert simulate(base).summary["digest"] == whole


@pytest.mark.parametrize("name", ["dropped", "dense"])
def test_a_live_run_is_replayed(name: str, tmp_path: Path, command: Command) -> None:
    """Workers compute one gradient at a time, and so does the simulator then."""
    data = DATA | {"model": model(name), "threads": 1, "iterations": 30}
    result = lived(data, tmp_path / "run", FakeWorkers(data))
    assert command("verify", result.folder)[:2] == (0, f"{result.folder}: same bits\n")
