"""Runs on a clock: rows and ends by simulated seconds, on every path, and when a clock changes nothing."""

import csv
import io
import json
import math
import random
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fredsim.runs.folder.result import Result
from fredsim.runs.single.opening import open_expansion
from fredsim.show.printing import print_results
from fredsim.show.progress import LineObserver
from fredsim.simulation.record.recorder import Row
from tests.random_experiments import experiment
from tests.test_random_experiments import beside, left_behind

BASE: dict[str, Any] = {
    "data": {"name": "digits", "train": 100, "validation": 20},
    "model": {"hidden": [5]},
    "clients": {"count": 4, "batch_size": 2},
    "server": {"name": "asgd", "lr": 0.1},
}
#: What does not tell of the rows before.
CUMULATIVE = (
    "iteration", "timestamp", "validation_loss", "validation_error", "potential_pushes", "pushes", "potential_fetches",
    "fetches", "bytes_pushed", "bytes_fetched", "digest",
)  # fmt: skip
Command = Callable[..., tuple[int, str, str]]
Files = dict[str, bytes]


def finished(data: dict[str, Any], way: Mapping[str, Any] = {}) -> tuple[list[dict[str, str]], Files, str]:
    """Run an experiment; return its rows, its files and its path."""
    files, ended, path = left_behind(data, dict(way))
    assert ended.startswith("finished"), ended
    return list(csv.DictReader(io.StringIO(files["metrics.csv"].decode()))), files, path


def clock(**keys: Any) -> dict[str, Any]:
    return {"name": "clock", **keys}


def on_every_path(data: dict[str, Any]) -> tuple[list[dict[str, str]], Files]:
    """Run an experiment on every path that it may take; return its rows and files, which are always the same.

    Some paths have a window, in turn, and in turn by the number of rows.
    """
    rows, files, path = finished(data)
    for number, other in enumerate(beside(data, path), start=len(rows)):
        way = {"window": 3} if number % 2 else {}
        assert finished(data, {"path": other, **way})[1:] == (files, other)
    assert finished(data, {"backend": "numpy"})[1] == files
    return rows, files


# Where a clock changes nothing

SERVERS: dict[str, dict[str, Any]] = {
    "asgd": {"name": "asgd", "lr": 0.1},
    "fasgd": {"name": "fasgd", "lr": 0.01},
    "sync": {"name": "sync", "lr": 0.3},
    "soft_sync": {"name": "soft_sync", "lr": 0.3, "n": 2},
    "dcasgd": {"name": "dcasgd", "lr": 0.1},
    "ringmaster": {"name": "ringmaster", "lr": 0.1, "threshold": 3, "stop": True},
    "bfasgd": {"name": "bfasgd", "lr": 0.01, "c_push": 0.3, "c_fetch": 0.3},
    "ternary_sync": {"name": "ternary_sync", "lr": 0.3},
}
EXCHANGES: dict[str, dict[str, Any]] = {
    "all": {},
    "gates": {"dispatcher": {"push": {"every": 2}, "fetch": {"every": 3}, "dropped_push": "accumulate"}},
    "random gate": {"dispatcher": {"push": {"bandwidth_aware": {"c": 0.1}}, "dropped_push": "reapply"}},
    "ternary": {"compress": {"name": "ternary"}},
    "top_k": {"compress": {"name": "top_k", "k": 0.2}},
}
TOGETHER = [
    (server, exchange)
    for server in SERVERS
    for exchange in EXCHANGES
    if not (server in {"bfasgd", "ternary_sync"} and exchange != "all")
    and not (exchange == "random gate" and server != "fasgd")
    and (server, exchange) != ("dcasgd", "top_k")  # which takes no sums
]


def exchanges(server: str, exchange: str) -> dict[str, Any]:
    changes = EXCHANGES[exchange]
    if exchange == "gates" and server in {"dcasgd", "ringmaster"}:  # which take no sums
        return {"dispatcher": {**changes["dispatcher"], "dropped_push": "skip"}}
    return changes


@pytest.mark.parametrize(("server", "exchange"), TOGETHER)
def test_copies_that_take_no_time(server: str, exchange: str) -> None:
    """Where link and server are 0 or null, or so fast that no copy takes half a nanosecond, all bytes are the same."""
    changes = exchanges(server, exchange)
    data = {
        **BASE,
        **changes,
        "server": SERVERS[server],
        "iterations": 60,
        "evaluation": {"every": 2.5, "unit": "seconds"},
    }
    compute = {"seconds": [1.0, 0.5, 1.0, 2.0], "noise": {"name": "bernoulli", "p": 0.3, "factor": 2.0}}

    def files(**keys: Any) -> Files:
        return finished(data | {"dispatcher": {**changes.get("dispatcher", {}), **clock(compute=compute, **keys)}})[1]

    alone = files()
    nothing = {"latency": 0.0, "up": None, "down": None}
    assert files(link=nothing, server={"seconds": 0, "up": None, "down": None}) == alone
    fast = {"up": 1e30, "down": [1e30] * 4}
    assert files(link={**fast, "latency": [0.0] * 4}, server={"seconds": 1e-10, "up": 1e30, "down": 1e30}) == alone


@pytest.mark.parametrize("server", [name for name in SERVERS if name != "ringmaster"])
@pytest.mark.parametrize("exchange", ["all", "gates"])
def test_equal_times_are_round_robin(server: str, exchange: str) -> None:
    if (server, exchange) not in TOGETHER:
        return
    changes = exchanges(server, exchange)
    data = {**BASE, "server": SERVERS[server], "iterations": 45}

    def digests(dispatcher: dict[str, Any]) -> list[str]:
        rows = finished(
            data | {"evaluation": {"every": 9}, "dispatcher": {**changes.get("dispatcher", {}), **dispatcher}}
        )[0]
        return [row["digest"] for row in rows]

    expected = digests({"name": "round_robin"})
    for keys in (
        {},
        {"compute": {"seconds": 0.123456789}},
        {"server": {"seconds": 0.0}, "compute": {"seconds": [2.0] * 4}},
    ):
        assert digests(clock(**keys)) == expected


# Rows on the clock


@pytest.mark.parametrize("fetch", [None, {"every": 2}])
@pytest.mark.parametrize(
    ("seconds", "every", "times"),
    [
        (6.0, 0.5, [0.5 * i for i in range(13)]),  # rows at the times of events, the last at the end
        (5.2, 0.2, [round(0.2 * i, 1) for i in range(27)]),  # several within one gap, the last at the end
        (5.25, 2.0, [0.0, 2.0, 4.0, 5.25]),
        (4.0, 100.0, [0.0, 4.0]),
        (0.3, 0.2, [0.0, 0.2, 0.3]),  # before the first arrival
        (0.5, 1.0, [0.0, 0.5]),  # at the first arrival
    ],
)
def test_rows_hold_the_events_until_their_time(
    seconds: float, every: float, times: list[float], fetch: dict[str, int] | None
) -> None:
    own = [1.0, 1.5, 0.5, 0.7]
    dispatcher = clock(compute={"seconds": own}, **({"fetch": fetch} if fetch else {}))
    data = {**BASE, "dispatcher": dispatcher, "seconds": seconds, "evaluation": {"every": every, "unit": "seconds"}}
    rows, _ = on_every_path(data)
    assert [float(row["time"]) for row in rows] == times

    def events(until: float) -> int:
        return sum(round(until * 10) // round(time * 10) for time in own)

    assert [int(row["iteration"]) for row in rows] == [events(time) for time in times]
    assert [int(row["pushes"]) for row in rows] == [events(time) for time in times]


#: The first random experiments that are on a clock; the last of them take --slow.
CLOCKED = [12, 17, 25, 28, 47, 51, 53, 55, 61, 71, 84, 86, 104, 108]
LATER = [pytest.param(number, marks=pytest.mark.slow) for number in CLOCKED[8:]]


def test_these_are_the_first_on_a_clock() -> None:
    found = [number for number in range(109) if experiment(number)["dispatcher"]["name"] == "clock"]
    assert found == CLOCKED


@pytest.mark.parametrize("number", [*CLOCKED[:8], *LATER])
def test_a_row_is_what_an_event_left(number: int) -> None:
    """A run with a row after each event tells what rows on the clock must hold, and a run that ends by the clock."""
    data, rng = experiment(number) | {"iterations": 40}, random.Random(number)
    data.pop("probe", None)
    each, ended, _ = left_behind(data | {"evaluation": {"every": 1}}, {})
    if not ended.startswith("finished"):
        return
    events = list(csv.DictReader(io.StringIO(each["metrics.csv"].decode())))
    last = float(events[-1]["time"])
    found = sorted({float(row["time"]) for row in events})
    seconds = rng.choice([last * 0.9, found[len(found) // 2], found[1] / 3])
    seconds = max(1e-9, math.floor(seconds * 1e9) / 1e9)
    every = rng.choice([seconds / 3.7, seconds / 2, found[1], found[-1] / 11, 2 * seconds])
    every = round(every * 1e9) / 1e9
    wanted = {key: value for key, value in data.items() if key != "iterations"}
    wanted |= {"seconds": seconds, "evaluation": {"every": every, "unit": "seconds"}}
    rows, files, path = finished(wanted)
    for way in [{"path": other} for other in beside(wanted, path)] + [{"backend": "numpy"}]:
        assert finished(wanted, way)[1] == files
    end, step = round(seconds * 1e9), round(every * 1e9)
    times = sorted({*range(0, end + 1, step), end})
    assert [round(float(row["time"]) * 1e9) for row in rows] == times
    for row, time in zip(rows, times, strict=True):
        event = [event for event in events if round(float(event["time"]) * 1e9) <= time][-1]
        assert {key: row[key] for key in CUMULATIVE} == {key: event[key] for key in CUMULATIVE}
    by_iterations, _, _ = left_behind(data | {"evaluation": wanted["evaluation"]}, {})
    rows_too = list(csv.DictReader(io.StringIO(by_iterations["metrics.csv"].decode())))
    whole = [row for row in rows if float(row["time"]) != seconds or end % step == 0]
    assert rows_too[: len(whole)] == whole


# How runs end


def test_nobody_will_ever_arrive_in_a_run_by_seconds() -> None:
    """It just ends, with its last row; so it does where every client that comes is held for ever."""
    noise = {"name": "bernoulli", "p": 1.0, "factor": math.inf}
    lost = {"up": 0.4, "down": 0.1}
    for dispatcher in (
        clock(compute={"noise": noise}),
        clock(compute={"noise": noise}, link={"latency": 1.0}),
        clock(outages=lost),
        clock(outages={**lost, "task": "paused"}, compute={"noise": noise}),
        clock(link={"up": 1e-300}),
    ):
        data = {**BASE, "dispatcher": dispatcher, "seconds": 40.0, "evaluation": {"every": 16, "unit": "seconds"}}
        rows, _ = on_every_path(data)
        assert [(row["time"], row["iteration"]) for row in rows] == [
            ("0.0", "0"),
            ("16.0", "0"),
            ("32.0", "0"),
            ("40.0", "0"),
        ]
    some = clock(compute={"seconds": [1.0, 1.0, 2.0, 4e9]})
    data = {**BASE, "dispatcher": some, "server": SERVERS["sync"], "seconds": 5.0}
    rows, _ = on_every_path(data)
    assert [(row["time"], row["iteration"], row["timestamp"]) for row in rows] == [("0.0", "0", "0"), ("5.0", "3", "0")]


@pytest.mark.parametrize("dispatcher", [clock(), clock(fetch={"every": 2}), clock(link={"latency": 0.1})])
def test_a_run_by_seconds_that_diverges(dispatcher: dict[str, Any]) -> None:
    rate = {"name": "exponential", "base": 1e-3, "factor": 3.0, "every": 1}
    data = {**BASE, "dispatcher": dispatcher, "server": {"name": "asgd", "lr": rate}, "seconds": 100.0}
    data["evaluation"] = {"every": 0.75, "unit": "seconds"}
    data["model"] = {"hidden": [5], "init": "normal"}
    files, ended, path = left_behind(data, {})
    assert ended.startswith("diverged")
    ways: list[dict[str, Any]] = [
        *({"path": other} for other in beside(data, path)),
        {"backend": "numpy"},
        {"window": 2},
    ]
    for way in ways:
        assert left_behind(data, way)[:2] == (files, ended)
    rows = list(csv.DictReader(io.StringIO(files["metrics.csv"].decode())))
    iterations = int(rows[-1]["iteration"])
    assert ended.split()[1] == str(iterations)
    by_iterations = {key: value for key, value in data.items() if key != "seconds"} | {"iterations": iterations}
    assert finished(by_iterations)[0] == rows


@pytest.mark.parametrize("path", ["hand", "fused", "snapshots"])
def test_an_interrupt(
    path: str, small_yaml: Path, command: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of an interrupted run are those until its last event, and it can be verified."""
    seen: list[Row] = []

    def row(self: LineObserver, row: Row) -> None:
        del self
        seen.append(row)
        if row.time == 4.5:
            signal.raise_signal(signal.SIGINT)

    words = [f"path={path}", "dispatcher={name: clock, compute: {seconds: {name: power}}}", "seconds=50"]
    words += ["iterations=null", "evaluation={every: 1.5, unit: seconds}"]
    assert command("run", small_yaml, *words, "--out", "whole")[0] == 0
    with monkeypatch.context() as interrupted:
        interrupted.setattr(LineObserver, "row", row)
        assert command("run", small_yaml, *words, "--out", "part")[0] == 130
    summary = json.loads(Path("part/summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "interrupted"
    assert summary["time"] < 50
    with Path("whole/metrics.csv").open() as whole, Path("part/metrics.csv").open() as part:
        before, rows = list(csv.DictReader(whole)), list(csv.DictReader(part))
    assert rows[:-1] == before[: len(rows) - 1]
    assert float(rows[-2]["time"]) <= float(rows[-1]["time"]) == summary["time"]
    assert command("verify", "part")[:2] == (0, "part: same bits\n")


def test_a_run_whose_clock_ends_before_any_gradient_says_so(
    small_yaml: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["iterations=null", "dispatcher={name: clock, compute: {seconds: 5}}"]
    code, output, _ = command("run", small_yaml, *words, "seconds=4", "--out", "short")
    assert (code, output.count("ended before any gradient arrived; give more seconds")) == (0, 1)
    code, output, _ = command("run", small_yaml, *words, "seconds=6", "--out", "long")
    assert (code, "ended before any" in output) == (0, False)
    for goal_words in (["until={validation_loss: 99}"], [*words, "seconds=6", "until={validation_loss: 99}"]):
        code, output, _ = command("run", small_yaml, *goal_words, "--out", f"goal{len(goal_words)}")
        assert (code, output.count("until holds at the beginning"), "more seconds" in output) == (0, 1, False)
    interrupted = Result(Path("short"))
    interrupted.summary["status"] = "interrupted"
    print_results(open_expansion(small_yaml, [*words, "seconds=4"]), interrupted)
    output = capsys.readouterr().out
    assert ("interrupted" in output, "ended before any" in output) == (True, False)
