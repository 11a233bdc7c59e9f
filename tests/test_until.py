"""`until`: a run ends with the first row that is there, and is that of a run without, as far as it goes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.errors import SimulationError
from fredsim.runs.folder.results import Result
from fredsim.runs.single import prepared
from fredsim.system.version import fredsim_version
from tests.conftest import checkpoints_every

Simulate = Callable[..., Result]
Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]

UNTIL = {"until": {"validation_error": 0.45}}
CLOCK = {"name": "clock", "compute": {"noise": {"name": "gamma", "cv": 0.4}}}
ROWS: dict[str, dict[str, Any]] = {
    "iterations": {"iterations": 400, "evaluation": {"every": 7}},
    "updates": {"updates": 90, "server": {"name": "sync", "lr": 0.3, "aggregate": 3}, "evaluation": {
        "every": 5, "unit": "updates"}},
    "a clock": {"iterations": 400, "dispatcher": CLOCK, "evaluation": {"every": 7}},
    "rows on the clock": {"seconds": 60.0, "dispatcher": CLOCK, "evaluation": {"every": 1.3, "unit": "seconds"}},
    "copies that take time": {"iterations": 400, "dispatcher": CLOCK | {"link": {"latency": 0.2}}, "compress": {
        "name": "ternary"}, "evaluation": {"every": 1.3, "unit": "seconds"}},
    "a gate": {"iterations": 400, "dispatcher": CLOCK | {"fetch": {"every": 2}}, "evaluation": {
        "every": 1.3, "unit": "seconds"}},
}  # fmt: skip


@pytest.mark.parametrize("rows", ROWS)
def test_it_is_the_beginning_of_the_whole_run(rows: str, simulate: Simulate) -> None:
    changes = ROWS[rows] | {"events": True}
    whole = simulate(changes)
    errors = whole.metrics["validation_error"].tolist()
    there = next(number for number, error in enumerate(errors) if error <= 0.45)
    assert 3 < there < len(errors) - 2
    until = {"until": {"validation_error": errors[there]}}
    for path in {"auto", "snapshots", whole.summary["path"]}:
        probed = path != "hand"  # which has no probe
        found = simulate(changes | until | {"path": path} | ({"probe": {"every": 1}} if probed else {}))
        if probed:
            assert found.probe["iteration"].max() == found.summary["iterations"]
        assert found.summary["status"] == "finished"
        assert found.metrics.equals(whole.metrics.iloc[: there + 1])
        assert found.summary["digest"] == found.metrics["digest"].iloc[-1]
        assert found.summary["iterations"] == len(found.events) == found.metrics["iteration"].iloc[-1]
        assert found.events.equals(whole.events.iloc[: len(found.events)])
        assert found.first_row("validation_error", errors[there]).index.tolist() == [there]  # an equal one is there


def test_it_goes_on_from_a_checkpoint(simulate: Simulate, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    whole = simulate({"iterations": 400, "evaluation": {"every": 7}} | UNTIL)
    checkpoints_every(1e-9, monkeypatch)
    again = simulate({"iterations": 400, "evaluation": {"every": 7}} | UNTIL)
    assert again.summary["digest"] == whole.summary["digest"]
    assert command("verify", again.folder)[:2] == (0, f"{again.folder}: same bits\n")


def test_a_recorded_run_that_ended_before_is_replayed(simulate: Simulate) -> None:
    """Its events are fewer than its iterations."""
    found = simulate({"iterations": 400, "evaluation": {"every": 7}, "events": True} | UNTIL)
    trace = {"name": "trace", "file": str(found.folder / "events.parquet")}
    again = simulate({"iterations": 400, "evaluation": {"every": 7}, "dispatcher": trace} | UNTIL)
    assert again.summary["digest"] == found.summary["digest"]
    for path in ("auto", "snapshots"):
        with pytest.raises(SimulationError, match=r"the trace ends after \d+ events; the run has 400"):
            simulate({"iterations": 400, "dispatcher": trace, "path": path, "until": {"validation_error": 0.01}})


def test_there_at_the_beginning(simulate: Simulate) -> None:
    found = simulate({"until": {"validation_loss": 99.0}})
    assert (found.summary["status"], found.summary["iterations"], len(found.metrics)) == ("finished", 0, 1)


def test_plan_says_at_most(small_yaml: Path, command: Command) -> None:
    code, output, _ = command("plan", small_yaml, "until={validation_error: 0.99}")
    assert code == 0
    assert "until: all of it at most; a run ends when it is there" in output
    assert " 50 " in output  # iterations


@pytest.mark.parametrize("column", ["test_error", "test_loss", "test_top2"])
def test_a_goal_of_test_rows(column: str, simulate: Callable[..., Result]) -> None:
    """It ends the run at the first row of the run without it that has reached it."""
    asked = {"evaluation": {"every": 5, "test": True, "metrics": ["top2"]}, "iterations": 60}
    whole = simulate(asked).metrics
    goal = sorted(whole[column])[len(whole) // 2]
    first = next(number for number, value in enumerate(whole[column]) if value <= goal)
    assert 0 < first < len(whole) - 1
    assert simulate(asked | {"until": {column: float(goal)}}).metrics[column].tolist() == [*whole[column][: first + 1]]


@pytest.mark.parametrize(
    ("until", "says"),
    {
        "{validation_error: 1.5}": "until.validation_error: is 1.5; it should be less than 1",
        "{}": "until: must give one of validation_error and validation_loss",
        "{validation_error: 0.1, validation_loss: 0.1}": "until: must give one of validation_error and validation_loss",
        "{validation_error: null}": "until: must give one of validation_error and validation_loss",
        "{error: 0.1}": "until.error: unknown key",
        "{test_error: 0.1}": "until.test_error: is of test rows; give evaluation.test: true",
        "{test_error: 1.0}": "until.test_error: is 1.0; it should be less than 1",
        "0.05": "until: is 0.05; it must be a mapping",
    }.items(),
)
def test_what_is_refused(until: str, says: str, small_yaml: Path, refused: Refused) -> None:
    refused("run", small_yaml, f"until={until}", says=(says,))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("until={validation_error: 0.5}",), "until is of validation_error, and data npz:few.npz has no rows for "),
        (
            ("evaluation={metrics: [perplexity], test: true}", "until={test_perplexity: 2.0}"),
            "until is of test_perplexity, and data npz:few.npz has no rows for test: have some",
        ),
        (
            ("sweep={server.lr: [0.1, 0.2]}", "select={over: server.lr}"),
            "select.best: is 'validation_error', and data npz:few.npz has no rows for validation: give data.validation",
        ),
    ],
)
def test_few_rows_of_which_none_is_left_to_measure(
    words: tuple[str, ...], says: str, small_yaml: Path, refused: Refused
) -> None:
    """A sixth of five rows is none: a goal would never be reached, and the choice be of nothing."""
    x, y = np.arange(20, dtype=np.float32).reshape(5, 4), np.arange(5) % 2
    np.savez("few.npz", x_train=x, y_train=y, x_test=x[:0], y_test=y[:0])
    refused("run", small_yaml, "data={name: 'npz:few.npz'}", "clients.batch_size=2", *words, says=(says,))


@pytest.mark.parametrize("version", ["1.0.0", fredsim_version()])
def test_a_record_that_an_earlier_version_took(
    version: str, small_yaml: Path, command: Command, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To have rows to validate, as an experiment is told, would be another run: another version may repeat it."""
    x, y = np.arange(20, dtype=np.float32).reshape(5, 4), np.arange(5) % 2
    np.savez("few.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    words = ("data={name: 'npz:few.npz'}", "clients.batch_size=2", "until={validation_error: 0.5}", "--quiet")
    with monkeypatch.context() as earlier:
        earlier.setattr(prepared, "_check_rows", lambda *_: None)
        assert command("run", small_yaml, *words, "--out", "out")[0] == 0
    summary = json.loads(Path("out/summary.json").read_text())
    summary["versions"]["fredsim"] = version
    Path("out/summary.json").write_text(json.dumps(summary))
    remedy = "; fredsim 1.0.0 recorded it, and may repeat it (docs/verify.md)" if version == "1.0.0" else ""
    refused("verify", "out", says=(f"data.validation is 0: give the data rows to validate{remedy}\n",))


def test_a_row_after_the_last_event_ends_it(simulate: Simulate) -> None:
    """At its own time, not at the run's end."""
    changes = {
        "clients": {"count": 2, "batch_size": 3},
        "dispatcher": {"name": "clock", "compute": {"seconds": [7.0, 1e6]}},
        "seconds": 13.0,
        "evaluation": {"every": 3, "unit": "seconds"},
    }
    whole = simulate(changes)
    assert whole.metrics["time"].tolist() == [0, 3, 6, 9, 12, 13]
    before, after = whole.metrics["validation_loss"].iloc[[2, 3]]
    assert after < before
    found = simulate(changes | {"until": {"validation_loss": float(after)}})
    assert found.metrics.equals(whole.metrics.iloc[:4])
    assert found.summary["time"] == 9
