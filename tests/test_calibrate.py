"""A clock that is fitted to a record has the times that the record was made with, and predicts what comes of them."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure

from fredsim.config.resolution import resolve
from fredsim.errors import FredsimWarning, OutputError
from fredsim.runs.folder.results import Result
from fredsim.runs.live.calibrate import READ, calibrated, distance, measured, predicted
from fredsim.runs.single.execution import execute
from tests.sealing import seal

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]
DATA: dict[str, Any] = {
    "data": {"name": "digits", "train": 300}, "model": {"hidden": [4]}, "clients": {"count": 6, "batch_size": 2},
    "server": {"name": "asgd", "lr": 0.05}, "iterations": 3000, "evaluation": {"every": 3000}, "events": True,
}  # fmt: skip
#: Clocks, and how near the constant of the noise must come, of so many draws.
CLOCKS: dict[str, dict[str, Any]] = {
    "gamma": {"compute": {"seconds": 0.02, "noise": {"name": "gamma", "cv": 0.5}},
              "link": {"latency": 0.003}, "server": {"seconds": 0.001}},
    "lognormal": {"compute": {"seconds": 0.5, "noise": {"name": "lognormal", "sigma": 0.8}}},
    "shifted_exponential": {"compute": {"seconds": 0.02, "noise": {"name": "shifted_exponential", "shift": 0.6}}},
    "uniform": {"compute": {"seconds": [0.01, 0.02, 0.03, 0.04, 0.05, 0.06], "noise": {"name": "uniform",
                "spread": 0.3}}, "link": {"latency": 0.001}},
    "pareto": {"compute": {"seconds": 0.02, "noise": {"name": "pareto", "alpha": 3.0}}},
    "none": {"compute": {"seconds": [1, 2, 1, 2, 1, 2]}},
}  # fmt: skip


def recorded(clock: dict[str, Any], folder: Path, **changes: Any) -> Result:
    data = DATA | changes | {"dispatcher": {"name": "clock"} | clock}
    execute(resolve({key: value for key, value in data.items() if value is not None}), folder)
    return Result(folder)


@pytest.mark.parametrize("kind", CLOCKS)
def test_a_simulated_clock_is_found_again(kind: str, tmp_path: Path) -> None:
    clock = CLOCKS[kind]
    result = recorded(clock, tmp_path / "run")
    found = calibrated(result)
    assert np.allclose(found["compute"]["seconds"], clock["compute"]["seconds"], rtol=0.05)
    noise, wanted = found["compute"]["noise"], clock["compute"].get("noise", "none")
    if wanted == "none":
        assert noise == "none"
    else:
        assert noise["name"] == wanted["name"]
        ((key, value),) = ((key, value) for key, value in wanted.items() if key != "name")
        assert noise[key] == pytest.approx(value, rel=0.06)
    assert found["link"]["latency"] == pytest.approx(clock.get("link", {}).get("latency", 0.0), rel=1e-3)
    assert found["server"]["seconds"] == pytest.approx(clock.get("server", {}).get("seconds", 0.0), rel=1e-3)
    was, now = measured(result), measured(predicted(result, found, tmp_path / "predicted"))
    for name in ("seconds", "arrivals a second", "updates a second", "mean staleness"):
        assert now[name] == pytest.approx(was[name], rel=0.03)


@pytest.mark.parametrize(
    ("steps", "server"),
    [
        (5, {"name": "asgd", "lr": 0.01}),
        (1, {"name": "easgd", "lr": 0.05, "period": 4}),
        ({"fastest": 8, "by": "speed"}, {"name": "fedbuff", "lr": 0.05}),
        ({"seconds": 0.1}, {"name": "fedbuff", "lr": 0.05}),
    ],
    ids=["several", "set by the server", "by speed", "in seconds"],
)
def test_a_task_of_several_steps_tells_the_time_of_one(steps: Any, server: dict[str, Any], tmp_path: Path) -> None:
    """`seconds` is the time of a gradient: the clock multiplies it by the local steps again."""
    own = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06]
    clients = DATA["clients"] | {"local_steps": steps, "sampling": "iid"}
    result = recorded({"compute": {"seconds": own}}, tmp_path / "run", clients=clients, server=server, iterations=120)
    found = calibrated(result)
    assert found["compute"] == {"seconds": pytest.approx(own, rel=1e-3), "noise": "none"}
    was, now = measured(result), measured(predicted(result, found, tmp_path / "predicted"))
    assert now["seconds"] == pytest.approx(was["seconds"], rel=1e-3)


@pytest.mark.parametrize("server", [{"name": "asgd", "lr": 0.05}, {"name": "sync", "lr": 0.05}])
def test_tasks_without_a_fetch_are_no_travel(server: dict[str, Any], tmp_path: Path) -> None:
    """A gate drops fetches: the next task begins as soon as its client arrives, or is released."""
    clock = CLOCKS["gamma"]
    result = recorded(clock | {"fetch": {"every": 2}}, tmp_path / "run", server=server)
    found = calibrated(result)
    assert found["compute"]["seconds"] == pytest.approx(0.02, rel=0.05)
    assert found["link"]["latency"] == pytest.approx(0.003, rel=1e-3)
    result.summary["live"] = {"workers": 1}  # as if the time of a fetch were that for which tasks wait for workers
    shared = calibrated(result)
    assert shared["compute"]["seconds"] == pytest.approx(0.023, rel=0.05)


def test_records_that_do_not_tell_how_long_fetches_take(tmp_path: Path, refused: Refused) -> None:
    free = recorded({"wait": False}, tmp_path / "free", iterations=60)
    says = (f"{free.folder}: dispatcher.wait is false, so clients fetch while they compute", "record a run that waits")
    refused("calibrate", free.folder, says=says)
    seldom = recorded(CLOCKS["gamma"] | {"fetch": {"every": 1000}}, tmp_path / "seldom", iterations=60)
    seldom.summary["live"] = {"workers": 2}
    with pytest.raises(OutputError, match="more clients than workers, and 6 tasks began with a fetch, fewer than 30"):
        calibrated(seldom)


def test_it_predicts_twice_the_clients(tmp_path: Path) -> None:
    """Where the server is no bottleneck, in half the time."""
    clock = {"compute": {"seconds": 0.1, "noise": {"name": "gamma", "cv": 0.3}}, "link": {"latency": 0.01}}
    found = calibrated(recorded(clock, tmp_path / "one", clients={"count": 3, "batch_size": 2}))
    other = recorded(clock, tmp_path / "other", clients={"count": 6, "batch_size": 2}, seed=1)
    simulated = predicted(other, found, tmp_path / "predicted")
    assert measured(simulated)["seconds"] == pytest.approx(measured(other)["seconds"], rel=0.03)


def test_another_record_is_predicted_with_its_own_gates(tmp_path: Path, command: Command) -> None:
    """Every third push of a client is sent, and takes the server time."""
    busy = {"compute": {"seconds": 0.02}, "server": {"seconds": 0.02}}
    record = recorded(busy, tmp_path / "run", iterations=60)
    gated = recorded(busy | {"push": {"every": 3}, "dropped_push": "skip"}, tmp_path / "gated", iterations=60)
    kept = tmp_path / "kept"
    assert command("calibrate", record.folder, "--predict", gated.folder, "--out", kept)[0] == 0
    found = Result(kept / "gated")
    assert found.summary["pushes"] == sum(np.bincount(found.events["client"]) // 3)
    assert found.summary["time"] == pytest.approx(gated.summary["time"], rel=0.01)


def test_another_record_is_predicted_with_its_own_limit(tmp_path: Path) -> None:
    """Two of six clients give up each task; what the limit does is no property of the machines."""
    clock = {"compute": {"seconds": [0.01, 0.02, 0.03, 0.04, 0.05, 0.06]}}
    found = calibrated(recorded(clock, tmp_path / "run", iterations=120))
    limited = recorded({"compute": clock["compute"] | {"limit": 0.04}}, tmp_path / "limited", iterations=120)
    simulated = predicted(limited, found, tmp_path / "predicted")
    assert simulated.summary["pushes"] == np.isin(limited.events["client"], range(4)).sum()
    assert measured(simulated) == measured(limited)


def test_records_that_do_not_tell_how_long_tasks_take(tmp_path: Path, refused: Refused) -> None:
    """Of tasks that were given up, and of clients that were down for a time."""
    unknown: dict[str, dict[str, Any]]
    unknown = {"limited": {"compute": {"seconds": 0.02, "noise": {"name": "exponential"}, "limit": 0.02}},
               "down": {"outages": {"up": 9.0, "down": 1.0}}}  # fmt: skip
    for name, clock in unknown.items():
        recorded(clock, tmp_path / name, iterations=60)
    count = Result(tmp_path / "limited").events["given_up"].sum()
    says = (f"limited: dispatcher.compute.limit gave up {count} tasks", "record a run without limit")
    refused("calibrate", tmp_path / "limited", says=says)
    refused("calibrate", tmp_path / "down", says=("down: dispatcher.outages is given", "record a run without outages"))


@pytest.mark.parametrize("noise", ["none", {"name": "gamma", "cv": 0.5}], ids=["never", "seldom"])
def test_tasks_that_the_server_has_cancelled_are_missing(noise: Any, tmp_path: Path) -> None:
    """In each round the four slow clients begin anew; of a server that lets all tasks end, nothing is said."""
    clock = {"compute": {"seconds": [10, 10, 20, 20, 20, 20], "noise": noise}}
    server = {"name": "sync", "lr": 0.05, "aggregate": 2}
    result = recorded(clock, tmp_path / "anew", server=server | {"restart": True}, iterations=60)
    with pytest.warns(FredsimWarning, match=r"anew: the server has cancelled tasks.*the clock may be too fast"):
        calibrated(result)
    late = recorded(clock, tmp_path / "late", server=server, iterations=60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrated(late)


def test_a_run_of_seconds_is_measured_up_to_its_last_event(tmp_path: Path) -> None:
    """As its prediction is, which has as many events, though the run went on for a time in which nobody arrived."""
    result = recorded({"compute": {"seconds": 0.5}}, tmp_path / "run", iterations=None, seconds=3.4)
    assert measured(result)["seconds"] == 3.0
    simulated = predicted(result, calibrated(result), tmp_path / "predicted")
    assert measured(simulated) == measured(result)


def test_pushes_that_a_gate_drops_take_the_server_no_time(tmp_path: Path) -> None:
    """Each third one is sent. Another record, without the gate, is predicted without it."""
    busy = {"compute": {"seconds": 0.02}, "server": {"seconds": 0.01}}
    found = calibrated(recorded(busy | {"push": {"every": 3}, "dropped_push": "skip"}, tmp_path / "gated"))
    assert found["server"]["seconds"] == pytest.approx(0.01, rel=1e-6)
    free = recorded(busy, tmp_path / "free", iterations=60)
    simulated = predicted(free, found, tmp_path / "predicted")
    assert simulated.summary["pushes"] == 60
    assert simulated.summary["time"] == pytest.approx(free.summary["time"], rel=0.01)


def test_on_real_workers_what_a_gate_drops_takes_the_server_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push after it waits until the server is done with it."""
    busy = {"compute": {"seconds": 0.02, "noise": {"name": "exponential"}}, "server": {"seconds": 0.01}}
    result = recorded(busy | {"push": {"every": 3}, "dropped_push": "skip"}, tmp_path, iterations=300)
    now, served = 0, []
    for received, sent in zip(result.events["received_ns"], result.events["bytes_pushed"] > 0, strict=True):
        now = max(now, received) + (10_000_000 if sent else 4_000_000)
        served.append(now)
    times = np.array([[0, one] for one in served])
    monkeypatch.setattr("fredsim.runs.live.calibrate.recorded_times", lambda *_: times)
    monkeypatch.setattr(Result, "live", True)
    assert calibrated(result)["server"]["seconds"] == pytest.approx(0.01, rel=1e-6)


def test_bandwidth_shows_where_copies_differ_in_size(tmp_path: Path) -> None:
    """Pushes of two bits a value, fetches of 32; where both are alike, the time of a copy is all that is known."""
    link = {"latency": 0.002, "up": 1e5, "down": 1e5}
    clock = {"compute": {"seconds": 0.1, "noise": {"name": "gamma", "cv": 0.3}}, "link": link}
    result = recorded(clock, tmp_path / "small", compress={"name": "ternary"})
    assert calibrated(result)["link"] == pytest.approx(link, rel=0.01)
    for latency in (0.0, 0.004):  # whatever the size
        same = {"compute": {"seconds": 0.1}, "link": {"latency": latency}}
        result = recorded(same, tmp_path / f"{latency}", compress={"name": "ternary"}, iterations=60)
        assert calibrated(result)["link"] == {"latency": latency}
    alike = calibrated(recorded(clock, tmp_path / "alike"))["link"]
    pushed = recorded(clock, tmp_path / "alike").events["bytes_pushed"].iloc[0]
    assert alike == pytest.approx({"latency": 0.002 + pushed / 1e5}, rel=0.01)


def test_distances_are_those_of_kolmogorov_and_smirnov() -> None:
    one, other = np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.5, 2.5, 9.0])
    plain = max(abs((one <= x).mean() - (other <= x).mean()) for x in [*one, *other])
    assert distance(one, other) == plain == 0.5


def test_from_the_command_line(tmp_path: Path, command: Command, refused: Refused, drawn: list[Figure]) -> None:
    result = recorded(CLOCKS["gamma"], tmp_path / "run")
    code, output, _ = command("calibrate", result.folder)
    assert code == 0
    assert "noise: {name: gamma, cv: 0." in output
    assert "updates a second" in output
    code, output, _ = command("calibrate", result.folder, "--out", tmp_path / "kept")
    folders = result.folder, tmp_path / "kept/run"
    assert code == 0
    then, now = (float(pd.read_csv(folder / "metrics.csv")["time"].iloc[-1]) for folder in folders)
    assert re.search(f"^seconds +{then:.4f} +{now:.4f} +{now / then:.4f}", output, re.MULTILINE)
    assert f"figure:  {tmp_path / 'kept/run/staleness.png'}" in output
    assert command("verify", tmp_path / "kept/run")[0] == 0
    assert drawn[0].axes[0].get_legend_handles_labels()[1] == ["measured", "predicted"]
    execute(
        resolve({key: value for key, value in DATA.items() if key != "events"} | {"iterations": 5}), tmp_path / "no"
    )
    refused("calibrate", tmp_path / "no", says=("no: has no events.parquet", "`events: true`"))
    refused("calibrate", "nowhere", says=("nowhere: is no folder of a run, with its config.yaml; name one\n",))
    execute(resolve(DATA | {"iterations": 40}), tmp_path / "untimed")
    recorded(CLOCKS["gamma"], tmp_path / "few", iterations=29)
    for name in ("untimed", "few"):
        says = (f"{name}: has no record of 30 tasks with their times", "`fredsim live`")
        refused("calibrate", tmp_path / name, says=says)


def test_what_was_0_has_no_ratio(tmp_path: Path, command: Command) -> None:
    """Of two clients one never arrived, so nothing was stale; by the fitted clock both arrive."""
    slow = {"clients": {"count": 2, "batch_size": 2}, "iterations": 60, "evaluation": {"every": 60}}
    record = recorded(CLOCKS["gamma"], tmp_path / "run", iterations=60, evaluation={"every": 60})
    other = recorded({"compute": {"seconds": [0.02, 1e6]}}, tmp_path / "slow", **slow)
    code, output, _ = command("calibrate", record.folder, "--predict", other.folder)
    assert code == 0
    assert re.search(r"^mean staleness +0 +[01]\.\d+ +–", output, re.MULTILINE)


def test_what_is_predicted_to_be_0_has_the_ratio_0(tmp_path: Path, command: Command) -> None:
    """By the fitted clock the fast client alone arrives 10 times; in the other record both did, in turn."""
    two = {"clients": {"count": 2, "batch_size": 2}, "evaluation": {"every": 600}, "iterations": 600}
    record = recorded({"compute": {"seconds": [0.02, 0.6]}}, tmp_path / "run", **two)
    other = recorded({"compute": {"seconds": 0.02}}, tmp_path / "alike", **two | {"iterations": 10})
    code, output, _ = command("calibrate", record.folder, "--predict", other.folder)
    assert code == 0
    assert re.search(r"^mean staleness +0\.9\d* +0 +0(\.0+)?$", output, re.MULTILINE)


def test_events_of_another_form(tmp_path: Path, refused: Refused) -> None:
    """Each column that is read, lost or of texts; clients and events that there are none of."""
    folder = recorded(CLOCKS["gamma"], tmp_path / "run", iterations=40).folder
    path, table = folder / "events.parquet", pq.read_table(folder / "events.parquet")
    forged = {f"it has no column {name}": table.drop([name]) for name in READ if name != "began_ns"}
    for name in (*READ, "staleness"):
        place, texts = table.schema.get_field_index(name), [["x"] * len(table)]
        forged[f"its column {name} is of "] = table.set_column(place, name, texts)
    for name, value, says in (
        ("client", 6, "its client is none of 6"),
        ("begun", 39, "it was begun after an event that"),
    ):
        values = [value, *table[name].to_pylist()[1:]]
        forged[f"row 0: {says}"] = table.set_column(table.schema.get_field_index(name), name, [values])
    for says, content in forged.items():
        pq.write_table(content, path)
        seal(folder)
        predicts = ("--predict", folder) if "staleness" in says else ()
        refused("calibrate", folder, *predicts, says=(f"{path}: is damaged ({says}", "; run the experiment again"))


def test_predictions_of_one_name_do_not_replace_each_other(tmp_path: Path, refused: Refused) -> None:
    folders = [tmp_path / day / "live" for day in ("monday", "tuesday")]
    for folder in folders:
        recorded(CLOCKS["gamma"], folder)
    words = [word for folder in folders for word in ("--predict", folder)]
    kept = tmp_path / "kept"
    says = (f"--predict: {folders[0]} and {folders[1]} would both be kept in {kept / 'live'}; rename a folder",)
    refused("calibrate", folders[0], *words, "--out", kept, says=says)
    assert not kept.exists()


def test_a_prediction_has_as_many_events_as_the_record(tmp_path: Path) -> None:
    """Even if the record's goal is reached earlier in it."""
    changes = {"evaluation": {"every": 20}, "until": {"validation_error": 0.7}, "iterations": 3000}
    result = recorded(CLOCKS["gamma"], tmp_path / "run", **changes)
    events = result.summary["iterations"]
    assert 0 < events < 3000
    faster = {"name": "clock", "compute": {"seconds": [0.001, 0.02, 0.02, 0.02, 0.02, 0.02]}}
    assert predicted(result, faster, tmp_path / "predicted").summary["iterations"] == events


def test_a_server_that_releases_several_at_once(tmp_path: Path) -> None:
    """What each fetched is as large as what each pushed, so nothing tells latency from bandwidth."""
    clock = {
        "compute": {"seconds": 0.1, "noise": {"name": "gamma", "cv": 0.3}},
        "link": {"latency": 0.05, "down": 2e4},
    }
    result = recorded(clock, tmp_path / "run", server={"name": "sync", "lr": 0.05})
    assert result.events["fetched"].max() == 6
    assert set(calibrated(result)["link"]) == {"latency"}


def test_a_client_that_never_arrived_has_a_time_too(tmp_path: Path) -> None:
    """The mean of all tasks, whoever did them."""
    clock = {"compute": {"seconds": [0.1, 0.2, 0.1, 0.2, 0.1, 1e6]}}
    result = recorded(clock, tmp_path / "run", iterations=300)
    tasks = result.events["done_ns"] - result.events["began_ns"]
    wanted = [*clock["compute"]["seconds"][:5], tasks.mean() / 1e9]
    assert calibrated(result)["compute"]["seconds"] == pytest.approx(wanted, rel=1e-3)


def test_what_has_no_times_or_sent_nothing_is_refused(tmp_path: Path, refused: Refused) -> None:
    recorded({}, tmp_path / "run")
    execute(resolve(DATA), tmp_path / "untimed")
    refused(
        "calibrate", tmp_path / "run", "--predict", tmp_path / "untimed", says=("untimed: has no times; give a run",)
    )
    recorded({}, tmp_path / "none", iterations=None, seconds=0.5)
    refused("calibrate", tmp_path / "run", "--predict", tmp_path / "none", says=("none: no gradient arrived in it",))
    gates = {"push": {"bandwidth_aware": {"c": 1e30}}, "dropped_push": "skip"}
    silent = {"server": {"name": "fasgd", "lr": 0.05}, "iterations": 60}
    recorded({"fetch": {"every": 1000}} | gates, tmp_path / "silent", **silent)
    refused("calibrate", tmp_path / "silent", says=("silent: nothing was sent",))
