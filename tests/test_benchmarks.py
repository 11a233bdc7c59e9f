"""What the benchmarks compare is the same simulation on every side; no figure of theirs is tested."""

import importlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def benchmark_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the benchmarks, which stand in no installed package, once their peers are there."""
    for peer in ("torch", "jax"):
        pytest.importorskip(peer, reason=f"the benchmarks need {peer}: pip install .[bench]")
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


@pytest.mark.parametrize("server", ["asgd", "sasgd", "fasgd"])
@pytest.mark.parametrize(("clients", "batch_size"), [(4, 3), (2, 128)])  # 128: the pointer begins anew
def test_the_three_sides_agree(benchmark_module: Any, server: str, clients: int, batch_size: int) -> None:
    contest = benchmark_module("contest")
    cell = benchmark_module("cells").Cell(server, clients, batch_size, data="digits")
    sides = (contest.fredsim_side(cell, 2), contest.torch_side(cell), contest.jax_side(cell))
    own, *peers = (make(20)()[1] for make in sides)
    for peer in peers:
        assert np.abs(own - peer).max() <= 1e-5 * np.abs(own).max()
    start = np.concatenate([part.reshape(-1) for part in cell.start().values()])
    assert np.abs(own - start).max() > 1e-3


def test_sides_that_disagree_are_not_timed(benchmark_module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    contest, cells = benchmark_module("contest"), benchmark_module("cells")
    one, other = (cells.Cell(server, 4, 3, data="digits") for server in ("asgd", "fasgd"))
    with pytest.raises(SystemExit, match="do not simulate the same thing"):
        contest.agreement(one, contest.fredsim_side(one, 1), {"torch": contest.torch_side(other)})
    assert "after 40 iterations" in capsys.readouterr().out


def test_the_plain_server_is_asgd(benchmark_module: Any) -> None:
    cells = benchmark_module("cells")
    cell = cells.Cell("asgd", 4, 3, data="digits")
    plain = {"name": "benchmarks.plain:PlainASGD", **cell.hyper}
    (_, ours), (_, theirs) = (
        cells.simulate(cell, 20, 1, server=server) for server in ({"name": "asgd", **cell.hyper}, plain)
    )
    assert np.array_equal(ours, theirs)


def test_a_floor_is_the_longest_of_its_times(benchmark_module: Any) -> None:
    floor, rates = benchmark_module("floor"), benchmark_module("rates")
    cell = benchmark_module("cells").Cell("fasgd", 4, 3, data="digits")
    need = floor.work(cell, 20)
    size = cell.model().layout.size
    assert (need.roots, need.swept) == (size, 16 * size)
    assert 0 < need.quotients < size
    fast = {
        "threads": 1,
        "multiply_adds": 1e30,
        "roots": 1e30,
        "quotients": 1e30,
        "near": {16 * size: 1e30},
        "far": 1e30,
    }
    slow_roots = floor.floor(need, rates.Rates(**fast | {"roots": 1e9}))
    assert (slow_roots.bound, slow_roots.seconds) == ("√÷", pytest.approx(size / 1e9))
    assert floor.floor(need, rates.Rates(**fast | {"far": 1e9})).bound == "bytes"


def test_a_table_reads_as_markdown(benchmark_module: Any) -> None:
    tables = benchmark_module("tables")
    table = tables.Table("Title", "Note.", ("server", "max|Δθ|"), [("asgd", "1e-07")])
    text = "head\n\n## Title\n\nNote.\n\n| server | max\\|Δθ\\| |\n| --- | ---: |\n| asgd | 1e-07 |\n"
    assert tables.markdown(["head"], [table]) == text


def test_who_runs_in_which_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    rounds = importlib.import_module("benchmarks.rounds")
    monkeypatch.setattr(rounds, "PAUSE", 0)
    calls: list[str] = []

    def run(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    assert rounds.alternate([partial(run, name) for name in "abc"], 3, once=[1]) == [(1, 2, 3), (5, 2, 4), (7, 2, 6)]
    assert "".join(calls) == "abccaca"
