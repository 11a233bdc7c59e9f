"""`fredsim plan` says what a run will take, as the run then finds it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fredsim.config.expansion import expand, open_source
from fredsim.runs import estimates as module
from fredsim.runs.estimates import Estimate, estimate
from fredsim.runs.results import Result

Command = Callable[..., tuple[int, str, str]]
P = 1210  # the small experiment's parameters


def of(path: Path, *overrides: str) -> list[Estimate]:
    return list(estimate(expand(open_source(path), overrides).runs, None))


def ended(command: Command, path: Path, *overrides: str) -> Result:
    assert command("run", path, *overrides, "--quiet", "--out", "out")[0] == 0
    return Result(Path("out"))


@pytest.mark.parametrize("overrides", [
    (),
    ("server={name: sync, lr: 0.1}", "iterations=48"),
    ("server={name: sync, lr: 0.1}", "iterations=null", "updates=7"),
    ("server={name: soft_sync, lr: 0.1, n: 2}", "iterations=null", "updates=7"),
    ("iterations=null", "epochs=1", "data.train=60"),
    ("server={name: ternary_sync, lr: 0.1}", "iterations=48"),
    ("compress={name: top_k, k: 0.1}",),
    ("dispatcher={fetch: {every: 2}}",),
], ids=str)  # fmt: skip
def test_the_figures_are_the_runs(overrides: tuple[str, ...], small_yaml: Path, command: Command) -> None:
    (run,) = of(small_yaml, *overrides)
    summary = ended(command, small_yaml, *overrides).summary
    assert (run.path, run.why, run.iterations) == (summary["path"], summary["path_why"], summary["iterations"])
    assert run.pushed == summary["bytes_pushed"]
    assert run.fetched == summary["bytes_fetched"] or (run.gated and run.fetched > summary["bytes_fetched"])
    assert run.gated == ("dispatcher={fetch: {every: 2}}" in overrides)
    assert run.seconds > 0


@pytest.mark.parametrize(("overrides", "rows"), [
    (("iterations=30000", "evaluation.every=2500"), 13),
    (("iterations=30001", "evaluation.every=2500"), 14),
    (("iterations=null", "epochs=100", "data.train=60", "evaluation={every: 30, unit: epochs}"), 5),
    (("iterations=24000", "server={name: sync, lr: 0.1}", "evaluation={every: 50, unit: updates}"), 61),
], ids=str)  # fmt: skip
def test_time_is_that_of_all_iterations_and_rows(overrides: tuple[str, ...], rows: int, small_yaml: Path) -> None:
    """In the proportion of a stretch, whose measurement is kept."""
    measured: dict[str, dict[str, Any]] = {}
    (run,) = estimate(expand(open_source(small_yaml), overrides).runs, None, measured=measured)
    (stretch,) = measured.values()
    iterations = run.iterations * stretch["seconds"] / stretch["iterations"]
    assert run.seconds == pytest.approx(iterations + rows * stretch["seconds_evaluation"] / stretch["rows"], rel=1e-9)


def test_memory_grows_with_what_clients_hold(small_yaml: Path) -> None:
    snapshots = ("path=snapshots", "iterations=100000")
    few, many = (of(small_yaml, *snapshots, f"clients.count={count}")[0] for count in (8, 1008))
    assert many.memory - few.memory == 1000 * 4 * P
    assert (few.live, many.live) == (9, 1009)
    assert of(small_yaml, *snapshots, "clients.count=1008", "iterations=50")[0].live == 51
    (waiting,) = of(small_yaml, *snapshots, "dispatcher.wait=false")
    assert waiting.live == 17
    (rounds,) = of(small_yaml, "server={name: sync, lr: 0.1}")
    assert rounds.live == 2
    for n, live in ((1, 2), (4, 9)):  # of four batches, each is released by itself
        assert of(small_yaml, f"server={{name: soft_sync, lr: 0.1, n: {n}}}")[0].live == live
    assert of(small_yaml, "server={name: sync, lr: 0.1, aggregate: 4}")[0].live == 9
    (cached,) = of(small_yaml, *snapshots, "dispatcher.push={every: 2}")
    assert cached.memory - few.memory == 8 * 4 * P
    (stateful,) = of(small_yaml, *snapshots, "server={name: fasgd, lr: 0.1}")
    assert stateful.memory - few.memory == 3 * 4 * P
    (limited,) = of(small_yaml, *snapshots, "clients.count=1008", "memory=2MB")
    assert limited.memory < 3 * 2**20 < many.memory


def test_a_server_of_ones_own_is_started_by_the_run_alone(small_yaml: Path) -> None:
    small_yaml.with_name("own_layout.py").write_text(
        "from fredsim.servers.asgd import ASGD\n\n\nclass Own(ASGD):\n"
        "    def init(self, params, clients, layout):\n"
        "        super().init(params, clients, layout)\n"
        "        assert [name for name, _ in layout.tensors] == ['W1', 'b1', 'W2', 'b2']\n",
        encoding="utf-8",
    )
    (run,) = of(small_yaml, "server.name=own_layout:Own", "path=snapshots")
    assert run.live == 9


def test_runs_alike_share_a_measurement(small_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[object] = []
    measure = module._measure

    def counted(*arguments: Any) -> Any:
        measured.append(arguments)
        return measure(*arguments)

    monkeypatch.setattr(module, "_measure", counted)
    runs = of(small_yaml, "sweep={seed: [0, 1, 2], server.lr: [0.1, 0.2], clients.count: [4, 8]}")
    assert len(runs) == 12
    assert len(measured) == 2


def test_the_table(small_yaml: Path, command: Command) -> None:
    code, out, _ = command("plan", small_yaml, "sweep={seed: [0, 1]}")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == ["run", "path", "iterations", "live", "memory", "pushed", "fetched", "time"]
    assert lines[1].split()[:5] == ["seed=0", "hand", "50", "8", "works"]
    assert "hand: all that an event depends on is known ahead" in lines
    assert lines[-1].startswith("2 runs, ")
    assert "at most" not in out
    assert "at most, before gates" in command("plan", small_yaml, "server={name: bfasgd, lr: 0.1}")[1]
    assert not Path("results").exists()


def test_bad_input(small_yaml: Path, refused: Callable[..., None]) -> None:
    refused("plan", small_yaml, "clients.batch_size=9999", says=("batch_size is 9999",))
    refused("plan", small_yaml, "path=hand", "dispatcher.fetch={every: 2}", says=("path is hand",))
