"""metrics.csv and staleness.csv, byte for byte, as a plain program forms them from what the plain loop saw."""

import time
from collections.abc import Callable, Iterable
from dataclasses import field, make_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fredsim.runs.folder.result import cells_of
from fredsim.runs.folder.results import Result
from fredsim.simulation.paths.loop import evaluate
from fredsim.simulation.record.recorder import METRICS, Row

Simulate = Callable[..., Result]
Due = Callable[[int, int, int], bool]  # of an iteration, the timestamp after it and before it

COLUMNS = [
    "iteration", "timestamp", "time", "train_loss", "validation_loss", "validation_error",
    "potential_pushes", "pushes", "potential_fetches", "fetches", "bytes_pushed", "bytes_fetched",
    "staleness_mean", "staleness_p50", "staleness_p95", "staleness_max", "digest",
]  # fmt: skip
COUNTS = COLUMNS[6:12]


def plain_sum(values: Iterable[float]) -> float:
    """Pairs, then pairs of pairs; an odd one passes up."""
    left = list(values)
    while len(left) > 1:
        pairs = [left[i] + left[i + 1] for i in range(0, len(left) - 1, 2)]
        left = pairs + left[len(left) - 1 :] if len(left) % 2 else pairs
    return left[0]


def plain_mean(values: list[float]) -> float:
    return plain_sum(values) / len(values)


def plain_rank(values: list[int], percent: int) -> int:
    """The smallest value that so many percent of all, at least, do not exceed."""
    enough = [value for value in values if 100 * sum(other <= value for other in values) >= percent * len(values)]
    return min(enough)


def plain_files(world: Any, events: pd.DataFrame, due: Due) -> tuple[str, str]:
    """What a run leaves that was as the plain loop says; a row where one is due, at the beginning and at the end."""

    def line(iteration: int, theta: Any, digest: str) -> None:
        seen = events.iloc[:iteration]
        loss, error = world.engine.evaluate(theta, "validation")
        now = seen.iloc[-1] if iteration else dict.fromkeys(["timestamp", *COUNTS], 0)
        row: list[object] = [iteration, now["timestamp"], float(iteration)]
        row.append(plain_mean(losses) if losses else "")
        row += [loss, error, *(now[count] for count in COUNTS)]
        if staleness:
            mean = sum(staleness) / len(staleness)
            row += [mean, plain_rank(staleness, 50), plain_rank(staleness, 95), max(staleness)]
        else:
            row += [""] * 4
        lines.append([*row, digest])
        losses.clear()
        staleness.clear()

    lines: list[list[object]] = [[*COLUMNS]]
    losses: list[float] = []
    staleness: list[int] = []
    line(0, world.start, world.digest(world.start))
    before, histogram = 0, dict[int, int]()
    for i in range(len(events)):
        event = events.iloc[i]
        losses.append(plain_mean([float(loss) for loss in world.losses[i]]))
        if not np.isnan(event["staleness_mean"]):
            tau = int(event["staleness_mean"])
            staleness.append(tau)
            histogram[tau] = histogram.get(tau, 0) + 1
        if due(i + 1, event["timestamp"], before) or i + 1 == len(events):
            line(i + 1, world.thetas[i], event["digest"])
        before = event["timestamp"]
    metrics = "".join(",".join(map(str, values)) + "\n" for values in lines)
    counts = "".join(f"{tau},{histogram[tau]}\n" for tau in sorted(histogram))
    return metrics, f"staleness,count\n{counts}"


def iterations(every: int) -> Due:
    return lambda iteration, timestamp, before: iteration % every == 0


def updates(every: int) -> Due:
    return lambda iteration, timestamp, before: timestamp != before and timestamp % every == 0


def whole(of: int, plus: int = 0) -> Callable[..., bool]:
    return lambda step, client, server: (7 * step + 3 * client + plus) % of == 0


def parts(of: int, plus: int = 0) -> Callable[..., list[bool]]:
    return lambda step, client, server: [(step * (i + 2) + client + plus) % of == 0 for i in range(4)]


GATES = """
class Whole:
    def __init__(self, of, plus=0):
        self.of, self.plus = of, plus

    def init(self, clients, tensors, streams, stream):
        self.tensors = len(tensors)

    def passes(self, step, client, statistics):
        return (7 * step + 3 * client + self.plus) % self.of == 0


class Parts(Whole):
    def passes(self, step, client, statistics):
        return [(step * (i + 2) + client + self.plus) % self.of == 0 for i in range(self.tensors)]
"""
SASGD, FASGD = {"name": "sasgd", "lr": 0.3}, {"name": "fasgd", "lr": 0.01}


@pytest.fixture
def gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """What YAML says of two gates of a user's own, and of pushes that one of them drops."""
    (tmp_path / "recorded_gates.py").write_text(GATES, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    def choice(kind: str, push: int, fetch: int, dropped: str) -> dict[str, Any]:
        name = f"recorded_gates:{kind}"
        return {"push": {name: {"of": push}}, "fetch": {name: {"of": fetch, "plus": 1}}, "dropped_push": dropped}

    return choice


def check(result: Result, expected: tuple[str, str]) -> None:
    for name, text in zip(("metrics.csv", "staleness.csv"), expected, strict=True):
        assert (result.folder / name).read_text(encoding="utf-8").splitlines() == text.splitlines()
        assert (result.folder / name).read_bytes() == text.encode()


def test_pushes_and_fetches_that_are_dropped(simulate: Simulate, plain: ModuleType, gates: Any) -> None:
    world = plain.World(batch_size=5)
    server = plain.PlainSASGD(world.start, 0.3)
    events = world.run(95, server, push=whole(3), fetch=whole(2, 1), dropped="skip")
    expected = plain_files(world, events, iterations(9))
    changes = {"iterations": 95, "server": SASGD, "dispatcher": gates("Whole", 3, 2, "skip")}
    changes |= {"clients": {"count": 8, "batch_size": 5}, "evaluation": {"every": 9}}
    for window in (1, 5):
        check(simulate({**changes, "window": window}), expected)
    assert events["timestamp"].iloc[-1] < 50


def test_tensors_that_are_dropped_and_rows_by_updates(simulate: Simulate, plain: ModuleType, gates: Any) -> None:
    world = plain.World()
    server = plain.PlainFASGD(world.start, 0.01)
    events = world.run(60, server, push=parts(3), fetch=parts(2, 1), dropped="average")
    expected = plain_files(world, events, updates(7))
    changes = {"iterations": 60, "server": FASGD, "dispatcher": gates("Parts", 3, 2, "average")}
    check(simulate({**changes, "evaluation": {"every": 7, "unit": "updates"}}), expected)


def test_a_server_that_holds_and_rows_by_updates(simulate: Simulate, plain: ModuleType, gates: Any) -> None:
    """Most arrivals are no update: no row is due at them, though the timestamp is still one that was."""
    world = plain.World()
    events = world.run(90, plain.PlainBatches(world.start, 0.3, needed=4), push=whole(3), dropped="skip")
    expected = plain_files(world, events, updates(2))
    dispatcher = gates("Whole", 3, 1, "skip") | {"fetch": "always"}
    changes = {"iterations": 90, "server": {"name": "soft_sync", "lr": 0.3, "n": 2}, "dispatcher": dispatcher}
    check(simulate({**changes, "evaluation": {"every": 2, "unit": "updates"}}), expected)


@pytest.mark.parametrize("path", ["hand", "fused", "snapshots"])
def test_rows_by_epochs(path: str, simulate: Simulate, plain: ModuleType) -> None:
    world = plain.World(train=70)  # 23 minibatches of 3
    events = world.run(23 * 5, plain.PlainSASGD(world.start, 0.3))
    expected = plain_files(world, events, iterations(23 * 2))
    changes = {"epochs": 5, "data": {"name": "digits", "train": 70}, "server": SASGD, "path": path}
    check(simulate({**changes, "evaluation": {"every": 2, "unit": "epochs"}}), expected)


CLOCKED = """
import time


class Clocked:
    def __init__(self, lr):
        pass

    def init(self, params, clients):
        self.params = params.copy()

    def apply_update(self, grad, client_id, timestamp):
        time.advance(1.0)

    @property
    def averaged_params(self):
        time.advance(1000.0)
        return self.params

    def proxies(self, client_id, timestamp):
        time.advance(100000.0)
        return {}
"""


def test_seconds_are_those_of_iterations(simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that updates, evaluations and the probe alone move on: 50 of them, four and five."""
    now = [0.0]

    def advance(seconds: float) -> None:
        now[0] += seconds

    (tmp_path / "clocked.py").write_text(CLOCKED, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "advance", advance, raising=False)
    changes = {"server": {"name": "clocked:Clocked", "lr": 0.1}, "probe": {"every": 10}, "evaluation": {"every": 20}}
    summary = simulate(changes).summary
    assert (summary["seconds"], summary["seconds_evaluation"], summary["seconds_probe"]) == (50.0, 4000.0, 500000.0)
    assert summary["iterations_per_second"] == 1.0


def test_evaluations_are_no_seconds_of_the_kernels(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(engine: Any, params: Any, part: Any) -> tuple[float, float]:
        engine._team.seconds += 1000
        return evaluate(engine, params, part)

    monkeypatch.setattr("fredsim.simulation.paths.loop.evaluate", slow)
    assert 0 < simulate({"backend": "numba"}).summary["seconds_kernels"] < 1000


def test_a_column_that_came_later_may_be_missing() -> None:
    later = make_dataclass("Later", [("dropped", "int", field(default=0))], bases=(Row,), frozen=True)
    assert cells_of(later) == cells_of(Row)
    assert [*cells_of(Row)] == [*METRICS]


def test_config_yaml_has_the_rows_that_there_are(simulate: Simulate) -> None:
    """What null stands for is resolved, so that the record says it: 1,200 and 297 of digits (docs/experiment.md)."""
    data = simulate({"iterations": 2}).config["data"]
    assert (data["train"], data["validation"]) == (1200, 297)
