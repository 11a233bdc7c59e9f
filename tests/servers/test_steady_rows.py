"""Rows of the first layer that no update changes are skipped until they get a gradient: the bytes stay the same."""

import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.kernels.mlp.engine import NumbaEngine
from fredsim.kernels.mlp.fused_executor import NumbaFusedExecutor
from fredsim.kernels.mlp.hand_executor import NumbaHandExecutor
from fredsim.numerics.rules import Rule
from fredsim.numerics.steady import steady_coefficients
from fredsim.servers import ElementwiseServer
from fredsim.servers.fasgd import FASGD
from tests.servers.paths import Check

#: A state that halves until it is at a floor, which a schedule of its own lowers on the way.
MODULE = """
import numpy as np

from fredsim.numerics.rules import Rule, where
from fredsim.servers import ElementwiseServer
from fredsim.servers.base import Rated


def floored(theta, level, g, alpha, floor):
    level = where(0.5 * level > floor, 0.5 * level, floor)
    return theta - (alpha * g) / level, level + 0.0 * g


class Floored(ElementwiseServer):
    Hyper = Rated
    rule = Rule(floored, state=("level",), zero_keeps=True)

    def initial_state(self):
        return {"level": 4.0}

    def coefficients(self, t, staleness):
        return np.float32(self.rate(t)), np.where(np.asarray(t) < 555, np.float32(1.0), np.float32(0.25))
"""


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> list[NDArray[np.bool_]]:
    """Which rows of which thread's columns were steady after each call of the path `hand`."""
    found: list[NDArray[np.bool_]] = []
    advance = NumbaHandExecutor.advance

    def watched(executor: NumbaHandExecutor, *given: Any) -> Any:
        result = advance(executor, *given)
        found.append(executor._steady.flags != 0)
        return result

    monkeypatch.setattr(NumbaHandExecutor, "advance", watched)
    return found


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> list[tuple[NDArray[np.bool_], float, float]]:
    """Which rows were steady after each call of the path `fused`, the mean that it found, and the exact one."""
    found: list[tuple[NDArray[np.bool_], float, float]] = []
    make, apply = NumbaEngine.fused_executor, NumbaFusedExecutor.apply
    states: list[NDArray[np.float32]] = []

    def made(engine: NumbaEngine, *given: Any) -> NumbaFusedExecutor:
        states[:] = [given[1][-1]]  # v, the last of FASGD's averages
        return make(engine, *given)

    def watched(executor: NumbaFusedExecutor, b: int, end: int) -> list[int]:
        verdicts = apply(executor, b, end)
        mean = float(np.mean(states[0], dtype=np.float64))
        found.append((executor._steady.flags != 0, executor.mean(b + len(verdicts) - 1), mean))
        return verdicts

    monkeypatch.setattr(NumbaEngine, "fused_executor", made)
    monkeypatch.setattr(NumbaFusedExecutor, "apply", watched)
    return found


def experiment(server: dict[str, Any], threads: int) -> dict[str, Any]:
    return {
        "iterations": 1500,
        "model": {"hidden": [20]},
        "clients": {"count": 4, "batch_size": 1, "sampling": "iid"},
        "evaluation": {"every": 50},
        "server": server,
        "threads": threads,
    }


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_become_steady_and_change_again(check: Check, steady: list[NDArray[np.bool_]], threads: int) -> None:
    """Some of digits' pixels are never there, some seldom: their averages decay to 0, and v to √ε, in between."""
    check(experiment({"name": "fasgd", "lr": 0.005}, threads), ["hand"])
    counts = [int(one.sum()) for one in steady]
    assert counts[2] == 0  # v is on its way
    assert counts[-1] > 5 * threads
    assert min(counts[-8:]) > 5 * threads  # also after calls in which none were looked for
    changed = [bool((before & ~after).any()) for before, after in itertools.pairwise(steady)]
    assert any(changed)


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_are_steady_where_a_gate_asks_for_their_mean(
    check: Check, gated: list[tuple[NDArray[np.bool_], float, float]], threads: int
) -> None:
    dispatcher = {"name": "uniform", "fetch": {"bandwidth_aware": {"c": 0.1}}}
    run = check(experiment({"name": "fasgd", "lr": 0.005}, threads) | {"dispatcher": dispatcher}, ["fused"])
    assert 100 < run.summary["fetches"] < 1400
    counts = [int(steady.sum()) for steady, _, _ in gated]
    assert counts[2] == 0
    assert min(counts[-8:]) > 5
    assert any((before & ~after).any() for (before, _, _), (after, _, _) in itertools.pairwise(gated))
    for _, found, exact in gated:
        assert math.isclose(found, exact, rel_tol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("rates", "c"), [({"eps": 1e-4}, 0.03), ({"eps": 1.0}, 3.0)])
def test_a_row_is_part_of_the_mean_when_it_becomes_steady(
    check: Check, gated: list[tuple[NDArray[np.bool_], float, float]], threads: int, rates: dict[str, float], c: float
) -> None:
    """The second v is steady from the first event on."""
    server = {"name": "fasgd", "lr": 0.005, "gamma": 0.3, "beta": 0.3} | rates
    dispatcher = {"name": "uniform", "fetch": {"bandwidth_aware": {"c": c}}}
    check(experiment(server, threads) | {"dispatcher": dispatcher, "window": 1}, ["fused"])
    fell = [before.sum() < after.sum() for (before, _, _), (after, _, _) in itertools.pairwise(gated)]
    assert sum(fell) > 2 or gated[0][0].any()
    for _, found, exact in gated:
        assert math.isclose(found, exact, rel_tol=1e-6)


def test_another_coefficient_makes_them_unsteady(
    check: Check, steady: list[NDArray[np.bool_]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "floored_server.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    check(experiment({"name": "floored_server:Floored", "lr": 0.01}, 1), ["hand"])
    counts = [int(one.sum()) for one in steady]
    assert counts[9] > 5  # of the calls that end at iterations 0, 50, 100 …
    assert min(counts[10:14]) == 0
    assert counts[-1] > 5


def test_another_coefficient_makes_them_unsteady_where_fetches_are_refused(
    check: Check,
    gated: list[tuple[NDArray[np.bool_], float, float]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "floored_gated.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    dispatcher = {"name": "uniform", "fetch": {"every": {"k": 2}}}
    check(experiment({"name": "floored_gated:Floored", "lr": 0.01}, 1) | {"dispatcher": dispatcher}, ["fused"])
    counts = [int(steady.sum()) for steady, _, _ in gated]
    none_steady = [at for at, count in enumerate(counts) if count == 0]
    assert max(counts[: none_steady[-1]]) > 5  # before the floor is another
    assert counts[-1] > 5


def dependent(rule: Rule, rng: np.random.Generator) -> set[int]:
    """Return the places of the coefficients that change what a rule writes at g = 0, found by changing each."""
    count = 200
    written = slice(1 if rule.zero_keeps else 0, None)
    found = set()
    for _ in range(20):
        arrays = [rng.uniform(0.1, 2, count).astype(np.float32) for _ in range(1 + len(rule.state))]
        numbers = rng.uniform(0.1, 2, len(rule.coefficients)).astype(np.float32)
        zeros = np.zeros(count, np.float32)
        before = np.array(rule.function(*arrays, zeros, *numbers)).reshape(1 + len(rule.state), count)[written]
        for place in range(len(numbers)):
            other = numbers.copy()
            other[place] *= np.float32(1.5)
            after = np.array(rule.function(*arrays, zeros, *other)).reshape(1 + len(rule.state), count)[written]
            if not np.array_equal(before, after):
                found.add(place)
    return found


def fits(server: object) -> bool:
    return isinstance(server, ElementwiseServer)


def test_the_coefficients_that_matter_are_known(spec: dict[str, Any], make: Callable[[Mapping[str, Any]], Any]) -> None:
    """Those that a change of tells are among them; more may be: 0·x is 0, whatever x."""
    rule = make(spec).rule
    assert dependent(rule, np.random.default_rng(0)) <= {*steady_coefficients(rule)} <= {*range(len(rule.coefficients))}


def test_coefficients_of_fasgd() -> None:
    """The rate and the staleness only move the parameter, which a zero keeps."""
    rule = FASGD(lr=0.005).rule
    names = [rule.coefficients[place] for place in steady_coefficients(rule)]
    assert names == ["gamma", "fresh_gamma", "beta", "fresh_beta", "eps"]
    assert len(steady_coefficients(FASGD(lr=0.005, variant="printed").rule)) == len(rule.coefficients)
