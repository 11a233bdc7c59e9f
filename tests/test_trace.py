"""Traces: a recorded run, replayed, leaves the same bytes; a table by hand is an order, or a clock."""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fredsim
from fredsim.config.document import Document
from fredsim.config.registry import KNOWN
from fredsim.dispatchers import Trace
from fredsim.dispatchers.trace_file import survey
from fredsim.errors import ConfigError, FredsimError, FredsimWarning, SimulationError
from fredsim.numerics.streams import Streams
from fredsim.runs.folder.results import Result
from fredsim.runs.single.opening import open_experiment
from tests.random_experiments import clock, experiment, hyper_parameters

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]
Simulate = Callable[..., Result]

FILES = ("metrics.csv", "staleness.csv", "params.safetensors", "events.parquet")
EXCHANGES = ("wait", "push", "fetch", "dropped_push", "replica", "fred_timestamps")
NETWORKS: list[dict[str, Any]] = [
    {"link": {"latency": 0.5}},
    {"link": {"latency": 0.25, "up": 2e3, "down": 1e4}, "server": {"seconds": 0.25, "up": 5e3}},
]


def replayed(recorded: Result, dispatcher: dict[str, Any]) -> dict[str, Any]:
    """The experiment of a trace of this run, as far as it came."""
    exchanges = {key: value for key, value in dispatcher.items() if key in EXCHANGES}
    trace = {"name": "trace", "file": str(recorded.folder / "events.parquet")}
    return {"dispatcher": exchanges | trace, "iterations": recorded.summary["iterations"]}


def same_again(data: dict[str, Any], folder: Path) -> Result | None:
    """Record a run, replay it, and compare; return it, None where it is refused, or nothing arrives."""
    with np.errstate(all="ignore"):
        try:
            recorded = fredsim.run(data, out=folder / "recorded")
        except FredsimError:
            return None
        assert isinstance(recorded, Result)
        if not recorded.summary["iterations"]:
            return None
        again = fredsim.run(data | replayed(recorded, data["dispatcher"]), out=folder / "again")
    assert isinstance(again, Result)
    for name in FILES:
        assert (recorded.folder / name).read_bytes() == (again.folder / name).read_bytes(), (name, data)
    return recorded


def valid(make: Callable[[random.Random], dict[str, Any]], seed: str) -> dict[str, Any]:
    """The first experiment of these draws that fits together."""
    for attempt in range(100):
        data = make(random.Random(f"{seed}, {attempt}"))
        try:
            open_experiment(data, Document(data).place)
        except ConfigError:
            continue
        return data
    raise AssertionError(f"{seed}: no valid one")


def every_server() -> Iterator[object]:
    """Each on a network, and in an order or on a clock in turn; on the other of these with --slow."""
    for number, server in enumerate(KNOWN["server"]):
        for kind in ("network", "order", "clock"):
            left = kind == ("order", "clock")[number % 2]
            yield pytest.param(server, kind, marks=[pytest.mark.slow] * left, id=f"{server}-{kind}")


@pytest.mark.parametrize(("server", "kind"), [*every_server()])
def test_every_server_again(server: str, kind: str, tmp_path: Path) -> None:
    """Random ones, with random gates and compressors, some on clocks with outages and networks."""

    def make(rng: random.Random) -> dict[str, Any]:
        data = experiment(rng.randrange(400)) | {"events": True, "iterations": 60}
        data["server"] = {"name": server, **hyper_parameters(rng, KNOWN["server"][server].Hyper)}
        if data["evaluation"].get("unit") == "seconds":
            data["evaluation"] = {"every": 7}
        if kind != "order":
            data["dispatcher"] = {key: value for key, value in data["dispatcher"].items() if key in EXCHANGES}
            data["dispatcher"] |= {"name": "clock", **clock(rng, data["clients"]["count"])}
            data["evaluation"] = {"every": 2.75, "unit": "seconds"}
        elif data["dispatcher"]["name"] in {"clock", "trace"}:
            data["dispatcher"] = {"name": "uniform"}
        if kind == "network":
            data["dispatcher"] |= rng.choice(NETWORKS) | {"push": rng.choice(["always", {"every": 2}])}
            if rng.random() < 0.5:
                data["compress"] = {"name": "error_feedback_sign"}
        if isinstance(data["clients"].get("local_steps"), dict):  # a trace does not know how long gradients take
            del data["clients"]["local_steps"]
        return data

    for number in range(5):
        if same_again(valid(make, f"{server}, {kind}, {number}"), tmp_path / str(number)) is not None:
            return
    pytest.fail("all of them are refused")


@pytest.mark.parametrize("dropped", ["skip", "accumulate"])
def test_gradients_that_never_arrive(dropped: str, tmp_path: Path, digits_experiment: dict[str, Any]) -> None:
    """Restarts while pushes are under way: what was decided of these counts on in gates, residuals and sums."""
    dispatcher = {"name": "clock", "compute": {"noise": {"name": "exponential"}}, **NETWORKS[1], "push": {"every": 2}}
    ringmaster = {"name": "ringmaster", "lr": 0.1, "threshold": 2, "stop": True}
    data = digits_experiment | {"server": ringmaster, "iterations": 200, "evaluation": {"every": 10}, "events": True}
    data |= {"compress": {"name": "error_feedback_sign"}, "dispatcher": dispatcher | {"dropped_push": dropped}}
    recorded = same_again(data, tmp_path)
    assert recorded is not None
    events = recorded.events
    done = zip(np.concatenate(events["done_client"]), np.concatenate(events["done_number"]), strict=True)
    assert len({*done} - {*zip(events["client"], events["number"], strict=True)}) > 20
    other = data | replayed(recorded, data["dispatcher"]) | {"server": {"name": "asgd", "lr": 0.1}}
    with pytest.raises(SimulationError, match="the run is not the recorded one"):
        fredsim.run(other, out=tmp_path / "other")
    other["dispatcher"]["check"] = False
    alone = fredsim.run(other, out=tmp_path / "alone")
    assert isinstance(alone, Result)
    for column in ("client", "time_ns"):
        assert alone.events[column].tolist() == events[column].tolist()


@pytest.mark.parametrize("server", [{"name": "ringmaster", "threshold": 2, "stop": True}, {"name": "sync"}])
def test_tasks_are_counted_where_no_column_does(
    server: dict[str, Any], tmp_path: Path, digits_experiment: dict[str, Any]
) -> None:
    """Those that a client gave up, too: each client draws the minibatches of its own tasks."""
    clients = {"count": 8, "batch_size": 3, "sampling": "iid"}
    noisy = {"name": "clock", "compute": {"noise": {"name": "exponential"}}}
    data = digits_experiment | {"clients": clients, "server": server | {"lr": 0.1}, "iterations": 100, "events": True}
    recorded = fredsim.run(data | {"dispatcher": noisy}, out=tmp_path / "recorded")
    assert isinstance(recorded, Result)
    trace = write(tmp_path / "t.csv", client=[*recorded.events["client"]], time_ns=[*recorded.events["time_ns"]])
    again = fredsim.run(data | trace, out=tmp_path / "again")
    assert isinstance(again, Result)
    assert (again.folder / "metrics.csv").read_bytes() == (recorded.folder / "metrics.csv").read_bytes()
    assert again.events["number"].tolist() == recorded.events["number"].tolist()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tasks_that_were_given_up_in_a_table_that_pandas_wrote(
    suffix: str, tmp_path: Path, digits_experiment: dict[str, Any]
) -> None:
    """It writes truth values as True and False."""
    compute = {"noise": {"name": "exponential"}, "limit": 1.0}
    data = digits_experiment | {"server": {"name": "mindflayer", "lr": 0.1}, "iterations": 100, "events": True}
    recorded = fredsim.run(data | {"dispatcher": {"name": "clock", "compute": compute}}, out=tmp_path / "recorded")
    assert isinstance(recorded, Result)
    events = recorded.events
    assert 0 < events["given_up"].sum() < 100
    names = ("client", "number", "begun", "time_ns", "given_up")
    trace = write(tmp_path / f"t.{suffix}", **{name: [*events[name]] for name in names})
    again = fredsim.run(data | trace, out=tmp_path / "again")
    assert isinstance(again, Result)
    assert again.summary["digest"] == recorded.summary["digest"]


def test_a_run_that_ends_by_the_clock(tmp_path: Path, digits_experiment: dict[str, Any]) -> None:
    """Its trace has no event after the end, either."""
    data = digits_experiment | {"seconds": 12.5, "evaluation": {"every": 1.25, "unit": "seconds"}, "events": True}
    del data["iterations"]
    for server, network in (("asgd", {}), ("sync", {}), ("asgd", NETWORKS[0])):
        data["server"], data["dispatcher"] = {"name": server, "lr": 0.1}, {"name": "clock", **network}
        data["dispatcher"]["compute"] = {"noise": {"name": "exponential"}}
        one = fredsim.run(data, out=tmp_path / f"{server}{len(network)}")
        assert isinstance(one, Result)
        trace = {"name": "trace", "file": str(one.folder / "events.parquet")}
        two = fredsim.run(data | {"dispatcher": trace}, out=tmp_path / f"{server}{len(network)} again")
        assert isinstance(two, Result)
        for name in FILES:
            assert (one.folder / name).read_bytes() == (two.folder / name).read_bytes(), (server, name)


@pytest.mark.parametrize("server", ["sync", "asgd"])
def test_rows_after_the_end_of_a_run_are_not_looked_at(server: str, simulate: Simulate, tmp_path: Path) -> None:
    """Held clients, impossible numbers: what the run leaves is what it leaves on a trace without these rows."""
    clients, times = [0, 1, 1, 1], [1.0, 1.5, 1.75, 2.0]
    numbers = [0, 0, 1, 0] if server == "asgd" else [0, 0, 0, 0]
    found = []
    for count in (2, 4):
        changes = write(tmp_path / "t.csv", client=clients[:count], time=times[:count], number=numbers[:count])
        more = {"clients": {"count": 3, "batch_size": 2}, "server": {"name": server, "lr": 0.1}, "events": True}
        result = simulate(changes | more | {"seconds": 1.5, "evaluation": {"every": 0.5, "unit": "seconds"}})
        assert result.events["time"].tolist() == [1.0, 1.5]
        found.append([(result.folder / name).read_bytes() for name in FILES])
    assert found[0] == found[1]


def test_gradients_after_the_end_of_a_run_are_not_sent(simulate: Simulate, tmp_path: Path) -> None:
    """Where the trace says when gates decide: the first row after the end names one gradient twice."""
    changes = {"compress": {"name": "error_feedback_sign"}, "events": True}
    network = {"name": "clock", "compute": {"noise": {"name": "exponential"}}, **NETWORKS[1]}
    events = simulate(changes | {"dispatcher": network, "iterations": 30}).events
    end = {"seconds": float(events["time"][19]), "evaluation": {"every": 1, "unit": "seconds"}}
    assert events["time"][19] < events["time"][20]
    found = []
    for count in (20, 30):
        part = events.head(count).copy()
        for name in ("done_client", "done_number"):
            part[name] = [[0, 0] if row == 20 else ids for row, ids in enumerate(part[name])]
        columns = {name: [*part[name]] for name in part.columns if name not in ("iteration", "time")}
        result = simulate(changes | write(tmp_path / "t.parquet", **columns) | end)
        assert len(result.events) == 20
        found.append([(result.folder / name).read_bytes() for name in FILES])
    assert found[0] == found[1]


ORDER = [3, 0, 0, 1, 3, 2, 2, 2, 1, 0]
TIMES = [0.0, 0.5, 0.5, 0.75, 2.0, 2.5, 2.5, 3.25, 4.0, 4.0]


def write(path: Path, **columns: Sequence[Any]) -> dict[str, Any]:
    """Write a trace, CSV or Parquet by its name; return the dispatcher."""
    table = pd.DataFrame(columns)
    table.to_parquet(path, index=False) if path.suffix == ".parquet" else table.to_csv(path, index=False)
    return {"dispatcher": {"name": "trace", "file": str(path)}, "iterations": len(table)}


@pytest.mark.parametrize("path", ["hand", "fused", "snapshots"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_by_hand(suffix: str, path: str, simulate: Simulate, tmp_path: Path) -> None:
    """An order is that of `scripted`; with times, rows on the clock are of all events until then."""
    clients = {"clients": {"count": 4, "batch_size": 2}, "path": path, "evaluation": {"every": 3}}
    scripted = simulate({**clients, "dispatcher": {"name": "scripted", "order": ORDER}, "iterations": 10})
    order = simulate({**clients, **write(tmp_path / f"order.{suffix}", client=ORDER)})
    pd.testing.assert_frame_equal(order.metrics, scripted.metrics)
    timed = simulate({**clients, **write(tmp_path / f"timed.{suffix}", time=TIMES, client=ORDER), "events": True})
    assert timed.summary["digest"] == scripted.summary["digest"]
    assert timed.metrics["time"].tolist() == [0.0, 0.5, 2.5, 4.0, 4.0]
    assert timed.events["time"].tolist() == TIMES
    assert timed.events["time_ns"].tolist() == [int(time * 1e9) for time in TIMES]
    assert timed.events["number"].tolist() == [0, 0, 1, 0, 1, 0, 1, 2, 1, 2]
    seconds = {"evaluation": {"every": 1.0, "unit": "seconds"}}
    rows = simulate({**clients, **write(tmp_path / f"timed.{suffix}", time=TIMES, client=ORDER), **seconds}).metrics
    assert rows["iteration"].tolist() == [0, 4, 5, 7, 10]


HELD: dict[str, dict[str, Any]] = {
    "all wait": {"server": {"name": "sync", "lr": 0.1}},
    "some are restarted": {"server": {"name": "sync", "lr": 0.1, "aggregate": 3, "restart": True}},
    "those behind are restarted": {"server": {"name": "ringmaster", "lr": 0.1, "threshold": 2, "stop": True}},
    "one alone continues": {"server": {"name": "malenia", "lr": 0.1}},
    "some are drawn": {"clients": {"count": 4, "batch_size": 2, "fraction": 0.5}},
    "some are drawn, and wait": {
        "server": {"name": "sync", "lr": 0.1}, "clients": {"count": 5, "batch_size": 2, "fraction": 0.6}},
}  # fmt: skip


@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("window", [1, 4])
def test_a_log_without_stages_knows_when_held_clients_began(
    name: str, window: int, simulate: Simulate, tmp_path: Path, command: Command
) -> None:
    """As the clock whose arrivals it lists: when a reply let them go, not when they arrived before."""
    changes = {"clients": {"count": 4, "batch_size": 2}} | HELD[name] | {"events": True, "window": window}
    clock = {"name": "clock", "compute": {"seconds": 1.5, "noise": {"name": "exponential"}}}
    recorded = simulate(changes | {"dispatcher": clock, "iterations": 60}).events
    found = simulate(
        changes | write(tmp_path / "t.csv", client=recorded["client"].tolist(), time_ns=recorded["time_ns"].tolist())
    )
    for column in ("began_ns", "done_ns", "received_ns", "time_ns", "begun"):
        assert found.events[column].tolist() == recorded[column].tolist()
    then = found.events["time_ns"].to_numpy()
    assert (recorded["began_ns"] == np.where(recorded["begun"] < 0, 0, then[recorded["begun"]])).all()
    assert command("plot", found.folder, "--kind", "waits", "--out", tmp_path / "waits.png")[0] == 0


def test_a_synchronous_cluster_by_hand(simulate: Simulate, tmp_path: Path) -> None:
    two = {"clients": {"count": 2, "batch_size": 2}, "server": {"name": "sync", "lr": 0.1}, "events": True}
    found = simulate(two | write(tmp_path / "t.csv", client=[0, 1, 0, 1], time=[1.0, 2.0, 3.0, 4.0]))
    assert found.events["began_ns"].tolist() == [0, 0, 2 * 10**9, 2 * 10**9]


def test_stages_beside_seconds(simulate: Simulate, tmp_path: Path) -> None:
    """They are the run's if the time is in seconds, too; and `sent` may then be another than the row."""
    stages = {"began_ns": [0, 1, 2], "done_ns": [10, 11, 12], "received_ns": [20, 4 * 10**8, 6 * 10**8]}
    columns: dict[str, Any] = {"client": [0, 1, 2], "sent": [1, 0, 2]} | stages
    for times in ({"time": [0.25, 0.5, 1.5]}, {"time_ns": [250_000_000, 500_000_000, 1_500_000_000]}):
        found = simulate(write(tmp_path / "t.csv", **columns, **times) | {"events": True}).events
        assert {name: found[name].tolist() for name in stages} == stages
        assert found["time_ns"].tolist() == [250_000_000, 500_000_000, 1_500_000_000]
        assert found["sent"].tolist() == [1, 0, 2]


def test_numbers_that_no_run_has_are_ignored_without_a_check(simulate: Simulate, tmp_path: Path) -> None:
    """`sequential` minibatches are those of the iterations, not of a flag that is 0 in each row."""
    plain = simulate(write(tmp_path / "plain.csv", client=ORDER))
    changes = write(tmp_path / "t.csv", client=ORDER, sent=[0] * len(ORDER))
    changes["dispatcher"]["check"] = False
    assert simulate(changes).summary["digest"] == plain.summary["digest"]


def test_what_says_nothing_of_early_pushes_is_left_aside(simulate: Simulate, tmp_path: Path) -> None:
    """Lists in a CSV file without a check, and one of the two columns alone; also beyond the trace's end."""
    rows, end = len(ORDER), {"iterations": None, "seconds": TIMES[-1] + 1}
    more = {"compress": {"name": "top_k", "k": 0.5}, "evaluation": {"every": 1, "unit": "seconds"}}
    plain = simulate(write(tmp_path / "plain.csv", client=ORDER, time=TIMES) | more | end)
    lists = [[client] for client in ORDER]
    tables: list[tuple[str, bool, dict[str, Any]]] = [
        ("lists.csv", False, {"done_client": lists, "done_number": [[0]] * rows}),
        ("alone.csv", True, {"done_client": lists}),
        ("alone.parquet", True, {"done_client": lists}),
        ("other.parquet", True, {"done_number": lists}),
    ]
    for name, check, columns in tables:
        changes = write(tmp_path / name, client=ORDER, time=TIMES, **columns)
        changes["dispatcher"]["check"] = check
        assert simulate(changes | more | end).summary["digest"] == plain.summary["digest"], name


def test_a_task_that_comes_twice(simulate: Simulate, tmp_path: Path) -> None:
    """In the first two rows, and in any others."""
    for at, numbers in ((1, [0, 0, 1, 2]), (3, [0, 1, 2, 2])):
        changes = write(tmp_path / "t.csv", client=[1, 1, 1, 1], number=numbers)
        what = rf"t\.csv, row {at}: number is {numbers[at]}; client 1 has begun {numbers[at] + 1} tasks before"
        with pytest.raises(SimulationError, match=what):
            simulate(changes)


def test_whole_nanoseconds(simulate: Simulate, tmp_path: Path) -> None:
    """Of a century, which float64 seconds do not tell apart."""
    times = [3_200_000_000_000_000_001, 3_200_000_000_000_000_002, 3_200_000_000_000_000_003]
    for suffix in ("csv", "parquet"):
        changes = write(tmp_path / f"t.{suffix}", client=[1, 0, 1], time_ns=times, time=[0.0, 5.0, 1.0])
        assert simulate({**changes, "events": True}).events["time_ns"].tolist() == times


def test_a_changed_file_is_told(simulate: Simulate, tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "t.csv"
    result = simulate(write(path, client=ORDER))
    assert re.fullmatch("[0-9a-f]{64}", result.config["dispatcher"]["sha256"])
    write(path, client=[*ORDER[:-1], 1])
    refused("verify", result.folder, says=("t.csv: SHA-256 ", " is not dispatcher.sha256, ", "; put the file back"))
    path.unlink()
    refused("verify", result.folder, says=("cannot read ", "t.csv: No such file", "; name a CSV or Parquet file"))


def test_another_run_is_told_or_takes_the_order_alone(simulate: Simulate, tmp_path: Path) -> None:
    clock = {"name": "clock", "compute": {"noise": {"name": "exponential"}}, "fetch": {"every": 2}}
    recorded = simulate({"dispatcher": clock, "events": True})
    path = str(recorded.folder / "events.parquet")
    trace = {"name": "trace", "file": path}
    for way in ("hand", "snapshots"):
        told = r"the trace, row \d+ \(from 0\), column begun: client . used what it fetched after"
        with pytest.raises(SimulationError, match=told):
            simulate({"dispatcher": trace, "path": way})
    free = simulate({"dispatcher": trace | {"check": False}, "events": True}).events
    assert free["client"].tolist() == recorded.events["client"].tolist()
    assert free["time_ns"].tolist() == recorded.events["time_ns"].tolist()
    changed = recorded.events.drop(columns=["begun"])
    changed.loc[30, "number"] = 0
    changed.to_csv(tmp_path / "t.csv", index=False)
    client, least = changed["client"][30], (changed["client"][:30] == changed["client"][30]).sum()
    with pytest.raises(SimulationError, match=rf"t\.csv, row 30: number is 0; client {client} has begun {least} tasks"):
        simulate({"dispatcher": {"name": "trace", "file": str(tmp_path / "t.csv"), "fetch": {"every": 2}}})


def test_read_in_stretches_and_from_any_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fredsim.dispatchers.trace_file.ROWS", 7)
    rng = np.random.default_rng(1)
    clients, times = rng.integers(0, 5, 100), np.cumsum(rng.integers(0, 9, 100))
    for suffix in ("csv", "parquet"):
        path = tmp_path / f"t.{suffix}"
        write(path, client=clients.tolist(), time_ns=times.tolist())
        if suffix == "parquet":
            pd.read_parquet(path).to_parquet(path, row_group_size=20)

        def started() -> Trace:
            trace = Trace(file=str(tmp_path / f"t.{suffix}"))  # noqa: B023
            trace.init(5, Streams(0))
            return trace

        def rest(trace: Trace, count: int) -> list[list[int]]:
            rows: list[list[int]] = []
            while len(order := trace.draw(count)):
                rows += np.stack([order.client, order.columns["number"], order.columns["time"]], axis=1).tolist()
            return rows

        counts = [0] * 5
        wanted = []
        for client, time in zip(clients.tolist(), times.tolist(), strict=True):
            wanted.append([client, counts[client], time])
            counts[client] += 1
        for count in (1, 3, 1000):
            assert rest(started(), count) == wanted
        first, second = started(), started()
        while first._row < 45:
            first.draw(4)
        row = first._row
        second.put_state(first.take_state())
        assert rest(second, 5) == wanted[row:] == rest(first, 2)


def test_blanks_in_a_header_are_no_names(tmp_path: Path, simulate: Simulate) -> None:
    """As many programs write a blank behind each comma."""
    texts = {"plain": "client,time,begun\n0,0.5,-1\n1,1.25,-1\n0,2,0\n"}
    texts["blanks"] = texts["plain"].replace(",", " , ")
    found = []
    for name, text in texts.items():
        path = tmp_path / f"{name}.csv"
        path.write_text(text, encoding="utf-8")
        changes = {"clients": {"count": 2, "batch_size": 2}, "iterations": 3}
        found.append(simulate(changes | {"dispatcher": {"name": "trace", "file": str(path)}}))
    assert found[0].summary["digest"] == found[1].summary["digest"]
    assert [result.summary["time"] for result in found] == [2.0, 2.0]


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("client,time_ms", "its column 'time_ms' is not used, so that the trace is no clock; give `time` in seconds"),
        ("client,time (us)", "its column 'time (us)' is not used, so that the trace is no clock"),
        ("client,timestamp", "its column 'timestamp' is not used, so that the trace is no clock"),
        ("client,Time", "its column 'Time' is not used; name it time"),
        ("client,Begun", "its column 'Begun' is not used; name it begun"),
        ("client,times_10", ""),
        ("client,lifetime", ""),
    ],
)
def test_a_column_that_is_nearly_named_like_another(header: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{header}\n0,3\n", encoding="utf-8")
    notes: Any
    with pytest.warns(FredsimWarning) if says else nullcontext([]) as notes:
        assert not survey(str(path), 1).timed
    assert [says in str(note.message) for note in notes] == [True] * bool(says)


def test_columns_beside_a_time_are_let_be(tmp_path: Path) -> None:
    """Such as the server's timestamp in events.parquet."""
    path = tmp_path / "trace.csv"
    path.write_text("client,time,time_ms,timestamp\n0,3,3000,0\n", encoding="utf-8")
    assert survey(str(path), 1).timed
