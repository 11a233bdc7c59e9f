"""Numbers beyond float32: the same end on every path and backend, whatever a zero meets on the way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.data.datasets import Dataset, Split
from fredsim.networks.mlp import Mlp
from fredsim.runs.folder.results import Result
from fredsim.simulation.paths.backends import make_engine
from tests.servers.paths import check_same

OWN = """
import numpy as np

from fredsim.numerics.rules import Rule, sign, where
from fredsim.servers import ElementwiseServer
from fredsim.servers.base import Rated


def bounded(theta, g, alpha):
    return theta - alpha * where(g == g, sign(g), 2.0)


class Bounded(ElementwiseServer):
    '''Goes on, whatever a gradient holds.'''

    Hyper = Rated
    rule = Rule(bounded)

    def coefficients(self, t, staleness):
        return (np.float32(self.rate(t)),)
"""

EVERYWHERE: list[dict[str, Any]] = [
    {"backend": "numba", "path": "hand"},
    {"backend": "numba", "path": "fused"},
    {"backend": "numba", "path": "snapshots"},
    {"backend": "numpy"},
]


def same_everywhere(simulate: Callable[..., Result], changes: dict[str, Any], ways: list[dict[str, Any]]) -> Result:
    first, *others = (simulate({**changes, **way}) for way in ways)
    for other in others:
        check_same(first, other)
    return first


@pytest.mark.parametrize("hidden", [[], [9], [16, 7]])
@pytest.mark.parametrize("mu", [1, 7, 70])
def test_gradients_of_huge_weights(hidden: list[int], mu: int) -> None:
    """Activations and errors overflow; many inputs are never lit, and many units dead."""
    rng = np.random.default_rng(mu)
    x = (rng.random((150, 40)) * (rng.random((150, 40)) < 0.1)).astype(np.float32)
    x[:, ::3] = 0
    split = Split(x, rng.integers(0, 4, 150))
    model, dataset = Mlp((40, *hidden, 4)), Dataset(split, split, split, classes=4)
    oracle = make_engine("numpy", model, dataset, mu, None)
    kernels = [make_engine("numba", model, dataset, mu, threads) for threads in (1, 2)]
    odd = 0
    for power in (8, 14, 19, 26, 33, 38):
        scales = rng.choice([1.0, 10.0**power], model.layout.size)
        params = np.clip(rng.standard_normal(model.layout.size) * scales, -3e38, 3e38).astype(np.float32)
        rows = rng.integers(0, 150, (3, mu))
        held = [np.concatenate([params, np.zeros(16, np.float32)])[: len(params)] for _ in rows]
        expected, losses = oracle.gradients(held, rows)
        odd += int(np.count_nonzero(~np.isfinite(expected)))
        for engine in kernels:
            found, its_losses = engine.gradients(held, rows)
            np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(its_losses, losses)
    assert odd or not hidden
    for engine in kernels:
        engine.close()


def test_an_activation_that_overflows_behind_dead_units(simulate: Callable[..., Result]) -> None:
    result = same_everywhere(
        simulate,
        {
            "iterations": 100,
            "model": {"hidden": [16, 16, 16], "init": "normal"},
            "clients": {"count": 4, "batch_size": 4},
            "server": {"name": "asgd", "lr": 2.0},
            "seed": 0,
        },
        EVERYWHERE,
    )
    assert (result.summary["status"], result.summary["iterations"]) == ("diverged", 25)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_bounded.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("mu", [1, 5, 20])
def test_a_rule_that_survives_what_is_no_number(mu: int, simulate: Callable[..., Result]) -> None:
    """Rows of quiet pixels, too, must see that a zero has met an infinite error."""
    changes = {
        "iterations": 40,
        "model": {"hidden": [12, 6], "init": {"name": "normal", "std": 1e18}},
        "clients": {"count": 5, "batch_size": mu},
        "server": {"name": "own_bounded:Bounded", "lr": 1e17},
    }
    assert same_everywhere(simulate, changes, EVERYWHERE).summary["status"] == "finished"


OVERFLOWS: dict[str, dict[str, Any]] = {
    "local steps": {"server": {"name": "fedbuff", "lr": 1e38, "buffer": 2}, "local_steps": 3},
    "parameters that are pushed": {"server": {"name": "easgd", "lr": 1e38, "period": 3}},
    "a replica": {"server": {"name": "downpour", "lr": 3e37, "n_push": 50, "n_fetch": 50}},
    "what the server hands out": {"server": {"name": "dana", "lr": 3e37, "gamma": 0.99}},
}


@pytest.mark.parametrize("kind", OVERFLOWS)
def test_clients_hold_finite_parameters_or_the_run_has_diverged(kind: str, simulate: Callable[..., Result]) -> None:
    local_steps = OVERFLOWS[kind].get("local_steps", 1)
    changes = {
        "iterations": 60,
        "model": {"hidden": [8], "init": "he"},
        "clients": {"count": 4, "batch_size": 4, "local_steps": local_steps},
        "server": OVERFLOWS[kind]["server"],
    }
    ways: list[dict[str, Any]] = [{"backend": "numba"}, {"backend": "numba", "window": 1}, {"backend": "numpy"}]
    assert same_everywhere(simulate, changes, ways).summary["status"] == "diverged"


@pytest.mark.usefixtures("own")
def test_an_average_that_overflows_is_evaluated_as_no_number(simulate: Callable[..., Result]) -> None:
    changes = {
        "iterations": 100,
        "model": {"hidden": [8], "init": {"name": "normal", "std": 2e37}},
        "server": {"name": "own_bounded:Bounded", "lr": 0.1},
        "average": {"name": "window", "min_window": 50, "max_window": 50},
        "evaluation": {"every": 50, "per_client": True},
    }
    result = same_everywhere(simulate, changes, [{"backend": "numba"}, {"backend": "numpy"}])
    assert result.clients[["loss", "error"]].isna().all(axis=None)
    assert result.metrics["validation_error"].isna().tolist()[0] is False
    assert result.metrics["validation_error"].isna().tolist()[-1] is True
    assert result.summary["test_error"] is None


TURNING = """
class Turning:
    def init(self, params, clients):
        self.params, self.timestamp = params, 0

    def apply_update(self, grad, client_id, timestamp):
        self.params = self.params * 0 + (3e38 if self.timestamp < 3 else -3e38)
        self.timestamp += 1
"""


@pytest.mark.parametrize(("updates", "bits"), [(2, 0x7F800000), (5, 0x7FC00000)])
def test_an_average_that_is_no_number_has_the_same_bits_on_every_processor(
    updates: int, bits: int, simulate: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of a window is +∞, that of the next is −∞: for their sum, processors give NaNs of either sign."""
    (tmp_path / "own_turning.py").write_text(TURNING, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    average = {"name": "window", "min_window": 3, "max_window": 3}
    result = simulate({"iterations": updates, "server": {"name": "own_turning:Turning"}, "average": average})
    assert result.summary["status"] == "finished"
    for values in result.params.values():
        assert set(values.view(np.uint32).ravel().tolist()) == {bits}
