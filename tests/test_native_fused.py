"""A server's rule on the tensors that autograd returns (fredsim.native.updates): the bits of whole gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.compute.storage import Pool
from fredsim.config.resolution import resolve
from fredsim.errors import ConfigError
from fredsim.jit.team import Team
from fredsim.kernels.arrays.operations import NumbaOperations
from fredsim.numerics.operations import NumpyOperations
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
from fredsim.runs.folder.results import Result
from fredsim.runs.single.execution import execute
from fredsim.servers.adam import Adam
from fredsim.servers.asgd import ASGD
from fredsim.simulation.paths.fused import Copies
from tests.test_random_experiments import asked_often, contents

pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
Simulate = Callable[..., Result]
pytestmark = pytest.mark.usefixtures("modules")

#: Clients whose minibatches are never computed several at once, unless the experiment says so.
CLIENTS = {"count": 8, "batch_size": 24}
TAKE = Pool.take
FILES = ("metrics.csv", "staleness.csv", "params.safetensors")
GATED = {"server": {"name": "fasgd", "lr": 0.05}, "dispatcher": {"fetch": {"bandwidth_aware": {"c": 0.5}}}}
CASES: dict[str, dict[str, Any]] = {
    "asgd": {},
    "a rule with state": {"server": {"name": "adam", "lr": 0.01}},
    "filters of one channel": {"model": {"name": "torch:own_modules:images", "numerics": "native", "channels": 16}},
    "filters in another order": {"model": {"name": "torch:own_modules:filters", "numerics": "native"}},
    "three at once": {"window": 3},
    "three at once, filters": {"model": {"name": "torch:own_modules:filters", "numerics": "native"}, "window": 3},
    "no waiting": {"dispatcher": {"wait": False}},
    "a gate that needs a mean": GATED,
    "a clock": {"dispatcher": {"name": "clock"}},
    "no longer finite": {"server": {"name": "asgd", "lr": 1e30}},
    "in a file": {"memory": 1},
    "draws": {"model": {"name": "torch:own_modules:dropped", "numerics": "native"}},
    "a negated gradient": {"model": {"name": "torch:own_modules:Turned", "numerics": "native"}},
}
PATHS = {"a gate that needs a mean": ("fused",), "draws": ("queued",)}  # the first is the one that is taken


def experiment(case: str) -> dict[str, Any]:
    model = {"name": "torch:own_modules:dense", "numerics": "native"}
    return {"model": model, "clients": CLIENTS, "threads": 1, "iterations": 40} | CASES[case]


@pytest.mark.parametrize("case", CASES)
def test_the_bits_are_those_of_whole_gradients(case: str, simulate: Simulate) -> None:
    base, paths = experiment(case), PATHS.get(case, ("queued", "fused"))
    whole = simulate(base | {"path": "snapshots"})
    for path, wanted in zip(paths, ("auto", "fused"), strict=False):
        found = simulate(base | {"path": wanted})
        assert found.summary["path"] == path
        assert found.summary["iterations"] == whole.summary["iterations"]
        for name in FILES:
            assert (found.folder / name).read_bytes() == (whole.folder / name).read_bytes(), (path, name)


@pytest.mark.parametrize("changes", [{}, {"window": 3}, {"path": "snapshots"}], ids=str)
def test_a_parameter_may_have_no_axes(changes: dict[str, Any], simulate: Simulate) -> None:
    model = {"name": "torch:own_modules:Scaled", "numerics": "native"}
    none, one = (simulate(experiment("asgd") | {"model": model | {"axes": axes}} | changes) for axes in (0, 1))
    for column in ("validation_loss", "validation_error"):
        assert (none.metrics[column] == one.metrics[column]).all()
    assert none.params["factor"].shape == ()
    assert one.params["factor"].shape == (1,)


def test_what_a_pass_changes_of_parameters_holds_for_that_pass(simulate: Simulate) -> None:
    model = {"name": "torch:own_modules:Halves", "numerics": "native"}
    base = experiment("asgd") | {"data": {"name": "digits", "train": 600, "validation": 501}}  # evaluated in two blocks
    written, computed = (simulate(base | {"model": model | {"inplace": one}}) for one in (True, False))
    for name in FILES:
        assert (written.folder / name).read_bytes() == (computed.folder / name).read_bytes(), name


@pytest.mark.parametrize("window", [1, 3])
def test_what_clients_hold_in_a_file_is_paged_out(
    window: int, simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether one gradient is computed at a time, or several."""
    used, resident = set[int](), set[int]()

    def take(self: Pool) -> Any:
        array = TAKE(self)
        used.add(array.ctypes.data)
        resident.add(array.ctypes.data)
        return array

    monkeypatch.setattr(Pool, "take", take)
    monkeypatch.setattr(Pool, "page_out", lambda _, array: resident.discard(array.ctypes.data))
    summary = simulate(experiment("in a file") | {"window": window}).summary
    assert (summary["path"], summary["vmap"][0]) == ("queued", "o" if window == 1 else "3")
    assert len(used) > CLIENTS["count"]
    assert not resident


KEPT_FROM: dict[str, tuple[dict[str, Any], str, str]] = {
    "probe": ({"probe": {"every": 10}}, "fused", "the probe asks for the parameters that clients hold"),
    "draws": (CASES["draws"] | {"probe": {"every": 10}}, "snapshots", "the probe asks for the parameters that "),
    "gate": (GATED, "fused", "a fetch may be refused"),
    "compressed": ({"compress": {"name": "sign"}}, "snapshots", "pushes are compressed"),
}


@pytest.mark.parametrize(("changes", "path", "why"), KEPT_FROM.values(), ids=KEPT_FROM)
def test_the_summary_says_what_keeps_a_run_from_a_faster_path(
    changes: dict[str, Any], path: str, why: str, simulate: Simulate
) -> None:
    summary = simulate(experiment("asgd") | {"iterations": 2} | changes).summary
    assert summary["path"] == path
    assert summary["path_why"].startswith(why)


def test_what_a_factory_has_left_in_gradients_is_not_added_to(simulate: Simulate) -> None:
    base = experiment("asgd")
    other = base | {"model": {"name": "torch:own_modules:tried", "numerics": "native"}}
    assert simulate(other).summary["digest"] == simulate(base).summary["digest"]


@pytest.mark.parametrize("case", ["a rule with state", "filters in another order", "in a file", "draws", "no waiting"])
def test_a_run_that_was_stopped_goes_on(case: str, tmp_path: Path) -> None:
    compare_stopped(experiment(case), tmp_path)


def compare_stopped(data: dict[str, Any], tmp_path: Path) -> None:
    """Compare a run of 40 events that is stopped twice with one that is not."""
    found = resolve(data | {"data": {"name": "digits"}, "server": {"name": "adam", "lr": 0.01}})
    execute(found, tmp_path / "whole")
    for least in (3, 5, 10**9):
        execute(found, tmp_path / "run", stop=partial(asked_often, count(), least), policy=CheckpointPolicy(1e9))
        if least < 10**9:
            assert 0 < Result(tmp_path / "run").summary["iterations"] < 40
    assert contents(Result(tmp_path / "run")) == contents(Result(tmp_path / "whole"))


def test_what_clients_hold_may_exceed_the_memory(simulate: Simulate) -> None:
    many = {"count": 1_000_000, "batch_size": 24}
    base = experiment("asgd") | {"clients": many, "iterations": 2_000_000}
    assert simulate(base | {"iterations": 3}).summary["path"] == "queued"
    with pytest.raises(ConfigError, match=r"clients.count is 1000000; the 1,000,001 copies .* give `memory`"):
        simulate(base | {"model": base["model"] | {"hidden": 1000}})


@pytest.fixture(params=["1", "3", "3 of PyTorch"])
def operations(request: pytest.FixtureRequest) -> Iterator[NumbaOperations]:
    from fredsim.native.threads import pytorch_team

    threads = int(request.param[0])
    found = NumbaOperations(threads, pytorch_team(threads) if "PyTorch" in request.param else None)
    yield found
    found.close()


@pytest.mark.parametrize("rule", [ASGD.rule, Adam.rule])
def test_a_gradient_in_parts(rule: Any, operations: NumbaOperations, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, sizes = np.random.default_rng(0), (1, 0, 30_000, 17, 4096)  # enough for several threads
    size = sum(sizes)
    arrays = [np.abs(rng.normal(size=size)).astype(np.float32) for _ in range(1 + len(rule.state))]
    parts = [rng.normal(size=n).astype(np.float32) for n in sizes]
    coefficients = np.full(len(rule.coefficients), 0.1, np.float32)
    expected = [array.copy() for array in arrays]
    NumpyOperations().compile_rule(rule)(*expected, np.concatenate(parts), 0, size, *coefficients)
    update, out = operations.rule_in_parts(rule, arrays, sizes), np.zeros(size + 16, np.float32)
    assert update([part.ctypes.data for part in parts], coefficients, out[:size])
    for one, other in zip(arrays, expected, strict=True):
        assert one.tobytes() == other.tobytes()
    assert out[:size].tobytes() == expected[0].tobytes()
    assert not out[size:].any()
    before = [array.copy() for array in arrays]
    parts[3][16] = np.inf
    assert not update([part.ctypes.data for part in parts], coefficients, None)
    parts[3][16], parts[4][4095] = 0, np.inf  # in the last thread's share
    for array, old in zip(arrays, before, strict=True):
        array[:] = old
    assert not update([part.ctypes.data for part in parts], coefficients, None)
    parts[4][4095] = 0
    for array, old in zip(arrays, before, strict=True):
        array[:] = old
    team = operations._team
    monkeypatch.setattr(team, "run", lambda kernel, given, work: team.run_alone(kernel, given))
    assert update([part.ctypes.data for part in parts], coefficients, None)  # what the others found before is past


def test_a_rule_is_applied_by_pytorchs_threads(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    from fredsim.native import threads

    teams: list[Team] = []
    sizes: list[int] = []
    make = threads.pytorch_team

    def made(size: int) -> Team:
        sizes.append(size)
        teams.append(make(size))
        return teams[-1]

    monkeypatch.setattr(threads, "pytorch_team", made)
    found = [simulate(experiment("a rule with state") | {"threads": size}) for size in (1, 2)]
    assert sizes == [1, 2]
    assert all(team.seconds > 0 for team in teams)
    assert [one.summary["path"] for one in found] == ["queued"] * 2


def test_arrays_are_taken_when_they_are_read() -> None:
    taken: list[Any] = []

    def take() -> Any:
        taken.append(np.zeros(1, np.float32))
        return taken[-1]

    copies = Copies([True, False, True, True], take)
    assert copies[1] is None
    assert not taken
    assert copies[2] is copies[2]
    assert copies[0] is taken[1]
    assert [len(copies), len(taken), len(copies.taken_from(1))] == [4, 2, 1]
    assert [one is None for one in copies] == [False, True, False, False]
