"""What a kernel may decide for a bandwidth-aware gate: only what the exact v̄ would, and that is nearly all of it."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fredsim.compute.storage import Limits
from fredsim.data.datasets import Dataset, Split
from fredsim.dispatchers.gates import BandwidthAware, Budget, Every, Gate
from fredsim.kernels.mlp.engine import NumbaEngine
from fredsim.kernels.mlp.fused_executor import NumbaFusedExecutor
from fredsim.networks.mlp import Mlp
from fredsim.numerics.rules import Rule
from fredsim.numerics.streams import Stream, Streams
from fredsim.numerics.verdicts import ALLOWED, REFUSED, UNDECIDED
from fredsim.runs.folder.results import Result
from fredsim.simulation.plugins.guarded_plugins import GuardedGate

Simulate = Callable[..., Result]
FILES = ("metrics.csv", "staleness.csv", "params.safetensors")
CLIENTS = [3, 0, 7, 3, 1, 5, 2, 2]


class At:
    def __init__(self, v: float) -> None:
        self._v = v

    def mean(self) -> float:
        return self._v

    def means(self) -> list[float]:
        return [self._v]


def started(gate: Gate, seed: int) -> Gate:
    gate.init(8, [400], Streams(seed), Stream.FETCH_GATE)
    gate.look_ahead(10, CLIENTS)
    return gate


@given(
    c=st.one_of(st.just(0.0), st.floats(1e-12, 3.4028234663852886e38)),
    eps=st.floats(1e-12, 1e3),
    seed=st.integers(0, 2**32 - 1),
    beyond=st.floats(0, 1e6),
)
@example(c=1e-320, eps=5e-324, seed=0, beyond=0.0)  # where a millionth is less than the rounding
def test_beyond_the_bounds_the_gate_itself_decides_so(c: float, eps: float, seed: int, beyond: float) -> None:
    gate = started(BandwidthAware(c=c, eps=eps), seed)
    bounds = gate.bounds(10, CLIENTS)
    assert bounds is not None
    for i, (client, (low, high)) in enumerate(zip(CLIENTS, bounds.tolist(), strict=True)):
        assert low <= high
        if low > 0:
            for v in (np.nextafter(low, 0), low / (1 + beyond), 0.0):
                assert not gate.passes(10 + i, client, At(float(v)))
        if high < np.inf:
            for v in (np.nextafter(high, np.inf), high * (1 + beyond), np.inf):
                assert gate.passes(10 + i, client, At(float(v)))


def test_the_bounds_are_near_to_each_other() -> None:
    bounds = started(BandwidthAware(c=0.1), 1).bounds(10, CLIENTS)
    assert bounds is not None
    assert np.isfinite(bounds).all(axis=1).sum() >= 5  # but where r is next to 0
    low, high = bounds[np.isfinite(bounds).all(axis=1)].T
    assert (high - low < 1e-5 * (high + 1e-4)).all()


@pytest.mark.parametrize("gate", [BandwidthAware(c=0.1, per="tensor"), Budget(bytes=10.0), Every(k=2)])
def test_where_more_than_the_mean_decides_nothing_is_known(gate: Gate) -> None:
    assert started(gate, 0).bounds(10, CLIENTS) is None
    assert GuardedGate(gate, Stream.FETCH_GATE).bounds(10, CLIENTS).tolist() == [[-np.inf, np.inf]] * 8


@pytest.fixture
def means(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The exact means that a run asked for."""
    asked: list[float] = []
    mean = NumbaEngine.mean

    def noted(engine: NumbaEngine, array: NDArray[np.float32]) -> float:
        asked.append(mean(engine, array))
        return asked[-1]

    monkeypatch.setattr(NumbaEngine, "mean", noted)
    return asked


RUN: dict[str, Any] = {
    "iterations": 2000,
    "clients": {"count": 8, "batch_size": 2},
    "server": {"name": "fasgd", "lr": 0.005},
    "dispatcher": {"fetch": {"bandwidth_aware": {"c": 0.3}}},
    "evaluation": {"every": 500},
    "events": True,
}


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_hardly_a_mean_is_asked_for(simulate: Simulate, means: list[float], threads: int) -> None:
    run = simulate({**RUN, "threads": threads})
    assert run.summary["path"] == "fused"
    assert 200 < run.summary["fetches"] < 1800
    assert len(means) <= 5
    assert run.summary["digest"] == simulate({**RUN, "path": "snapshots"}).summary["digest"]


def same(one: Result, other: Result) -> None:
    for name in FILES:
        assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes(), name
    events, others = (pd.read_parquet(run.folder / "events.parquet") for run in (one, other))
    assert events["bytes_fetched"].nunique() >= 2  # of fetches that pass, and of those that do not
    pd.testing.assert_frame_equal(events, others)


@pytest.mark.parametrize("wide", [0.0, 0.01, 1.0])
def test_what_a_kernel_leaves_undecided(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch, means: list[float], wide: float
) -> None:
    """With wider bounds some, or all, fetches are decided by the exact mean; no byte moves."""
    run = {**RUN, "iterations": 500, "evaluation": {"every": 7}}
    expected = simulate({**run, "path": "snapshots"})
    before, bounds = len(means), BandwidthAware.bounds

    def wider(gate: BandwidthAware, begin: int, clients: list[int]) -> NDArray[np.float64]:
        found = bounds(gate, begin, clients)
        assert found is not None
        return np.stack([found[:, 0] - wide * 10, found[:, 1] * (1 + 100 * wide)], axis=1)

    monkeypatch.setattr(BandwidthAware, "bounds", wider)
    same(simulate(run), expected)
    if wide:
        assert len(means) > before + 20


OWN = """
import numpy as np

from fredsim.numerics.rules import Rule
from fredsim.servers import ElementwiseServer
from fredsim.servers.base import Rated


def signed(theta, v, g, alpha):
    v = 0.5 * v + g
    return theta - alpha * g, v


class Signed(ElementwiseServer):
    Hyper = Rated
    rule = Rule(signed, state=("v",), zero_keeps=True)

    @property
    def v(self):
        return self.arrays["v"]

    def coefficients(self, t, staleness):
        return (np.float32(self.hyper.lr),)


class Known(ElementwiseServer):
    Hyper = Rated
    rule = Signed.rule
    coefficients = Signed.coefficients
    deviation = "v"


class Beside(Known):
    @property
    def v(self):
        return np.abs(self.arrays["v"])


class Moves(Known):
    @property
    def v(self):
        return self.arrays["v"] if self.timestamp < 50 else self.params

"""


@pytest.mark.parametrize("server", ["Signed", "Known", "Beside", "Moves"])
def test_a_statistic_of_ones_own(
    simulate: Simulate, server: str, means: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its elements have both signs; it may be no array of the rule's, or not always the same."""
    (tmp_path / "own_statistics.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    gate = {"fetch": {"bandwidth_aware": {"c": 0.001}}}
    run = {**RUN, "iterations": 300, "server": {"name": f"own_statistics:{server}", "lr": 0.05}, "dispatcher": gate}
    fused = simulate(run)
    assert fused.summary["path"] == "fused"
    assert len(means) > 100
    same(fused, simulate({**run, "path": "snapshots"}))


@pytest.mark.parametrize("gate", [{"bandwidth_aware": {"c": 0.1, "per": "tensor"}}, {"budget": 2000.0}])
def test_tensors_that_pass_one_by_one(simulate: Simulate, gate: dict[str, Any]) -> None:
    run = {**RUN, "iterations": 200, "dispatcher": {"fetch": gate}}
    fused = simulate({**run, "path": "fused"})
    received = pd.read_parquet(fused.folder / "events.parquet")["bytes_fetched"]
    assert {*received} != {0, received.max()}
    same(fused, simulate({**run, "path": "snapshots"}))


@pytest.mark.parametrize("window", [1, 5, 10**6])
def test_windows_of_any_size(simulate: Simulate, monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    """No room is made for more than the 1,024 events that are known ahead."""
    run, make = {**RUN, "iterations": 300}, NumbaEngine.fused_executor

    def noted(engine: NumbaEngine, rule: Rule, arrays: Any, watched: str, room: int) -> NumbaFusedExecutor:
        assert room == min(window, 1024)
        return make(engine, rule, arrays, watched, room)

    monkeypatch.setattr(NumbaEngine, "fused_executor", noted)
    same(simulate({**run, "path": "fused", "window": window}), simulate({**run, "path": "snapshots"}))


OWN_GATE = """
from fredsim.dispatchers.gates import BandwidthAware


class Half(BandwidthAware):
    def passes(self, step, client, statistics):
        return super().passes(step, client, statistics) and step % 2 == 0
"""


def test_a_gate_derived_from_it_is_asked_itself(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_half.py").write_text(OWN_GATE)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = {**RUN, "iterations": 300, "dispatcher": {"fetch": {"own_half:Half": {"c": 0.1}}}}
    fused = simulate(run)
    assert fused.summary["path"] == "fused"
    assert 0 < fused.summary["fetches"] < 150
    same(fused, simulate({**run, "path": "snapshots"}))


def keep(theta: Any, v: Any, g: Any, alpha: Any) -> Any:
    """Change nothing."""
    return theta + 0.0 * (alpha * g), v


#: Arrays whose sums in float32 are good and bad: the last four have both signs, very different sizes, or subnormals.
STATES: list[Callable[[np.random.Generator, int], Any]] = [
    lambda rng, n: rng.random(n),
    lambda rng, n: np.full(n, 1 / 3),
    lambda rng, n: np.where(np.arange(n) % 97, 2.0**-24 * 0.999, 1),
    lambda rng, n: np.exp(rng.uniform(-20, 20, n)),
    lambda rng, n: rng.standard_normal(n) + 0.02,
    lambda rng, n: 1e-40 * rng.random(n),
]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("hidden", [(7,), (200, 33), (1000,)])
def test_no_verdict_is_against_the_exact_mean(threads: int, hidden: tuple[int, ...]) -> None:
    """However near to it the bounds are; and those that are not so near are decided."""
    rng, model = np.random.default_rng(threads), Mlp((100, *hidden, 10))
    x = np.where(rng.random((50, 100)) < 0.3, rng.random((50, 100)), 0).astype(np.float32)
    part, none = Split(x, rng.integers(0, 10, 50)), Split(x[:0], np.empty(0, np.int64))
    engine, size = NumbaEngine(model, Dataset(part, none, none, 10), 2, threads), model.layout.size
    try:
        theta, v, room = (engine.pool(size, Limits()).take() for _ in range(3))
        theta[:] = 0.1 * rng.standard_normal(size)
        for number, state in enumerate(STATES):
            v[:] = state(rng, size)
            exact = engine.mean(v)
            executor = engine.fused_executor(Rule(keep, state=("v",), zero_keeps=True), [theta, v], "v", 1)
            executor.run_passes([5], [theta], rng.integers(0, 50, (1, 2)))
            for apart in (0.0, 1e-15, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-2):
                for bound in (exact * (1 - apart), exact * (1 + apart)):
                    executor.prepare([5], np.zeros((1, 1), np.float32), np.array([[bound, bound]]), [room])
                    (verdict,) = executor.apply(0, 1)
                    assert verdict in {UNDECIDED, ALLOWED if exact > bound else REFUSED}, (number, apart)
                    if apart == 1e-2 and number < 4:
                        assert verdict != UNDECIDED
                        assert math.isclose(executor.mean(0), exact, rel_tol=1e-5)
    finally:
        engine.close()
