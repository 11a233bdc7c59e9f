"""Fits a clock to the record of a live run: how long computation, pushes, fetches and the server took."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from fredsim.config.document import Document
from fredsim.config.experiment import Experiment, exchange_keys
from fredsim.dispatchers.base import earlier_arrivals
from fredsim.dispatchers.distributions import Distributions
from fredsim.errors import OutputError, warn
from fredsim.numerics.arrays import Floats
from fredsim.numerics.distributions import draw
from fredsim.numerics.streams import Stream, Streams
from fredsim.runs.folder.results import Result
from fredsim.runs.live.live_csv import recorded_times
from fredsim.runs.single.execution import execute
from fredsim.runs.single.opening import make_dispatcher, make_server, open_experiment

__all__ = ["calibrated", "measured", "predicted"]

FEWEST = 30  # tasks that are needed to estimate a distribution
#: The columns of events.parquet that a clock is fitted to.
READ = (
    "began_ns", "done_ns", "received_ns", "time_ns", "begun", "client", "number",
    "bytes_pushed", "bytes_fetched", "fetched",
)  # fmt: skip
KNOWN = 1e-4  # the share of a time to which it is known
DRAWS = 20_000  # draws from each candidate distribution, to compare the tasks with
APART = 4.0  # how many standard deviations from chance the clients' means must lie to be told apart


def calibrated(result: Result) -> dict[str, Any]:
    """Return the `dispatcher:` block of a clock whose times are those of a record.

    A task is what a client computes between two pushes. `compute.seconds` is the mean time of a gradient, which is that
    of a task divided by its local steps: one number for all clients, or one for each if their means lie apart. `noise`
    is the distribution nearest to these times, by the largest distance between the two distribution functions
    (Kolmogorov and Smirnov). `link.latency` is the mean time that a push or a fetch travels; if copies have different
    sizes, `link.up` and `link.down` are the bandwidth, the same for both, and `latency` is the rest of the time.
    `server.seconds` is the mean time that the server takes for a push. If there are more clients than workers, the time
    that a task waits for its worker counts as computation; only a task that begins with a fetch, or is its client's
    first, tells that time. Raises OutputError if the record has no such times, or too few tasks.
    """
    _check(result)
    tasks = _tasks(result)
    shared = len(np.unique(tasks.client)) > result.summary.get("live", {}).get("workers", len(tasks.client))
    if shared and tasks.fresh.sum() < FEWEST:
        raise OutputError(
            f"{result.folder}: there are more clients than workers, and {tasks.fresh.sum()} tasks began with a fetch, "
            f"fewer than {FEWEST}; record a run without its fetch gate, or with as many workers"
        )
    takes, whose = tasks.takes, tasks.client
    if shared:
        takes = np.maximum(takes + tasks.down, 0.0)
    takes = takes / tasks.gradients
    if shared:
        takes, whose = takes[tasks.fresh], whose[tasks.fresh]
    _warn_of_cancelled(result)
    seconds = _seconds(takes, whose, result.config["clients"]["count"])
    scale = np.asarray(seconds)[whose] if isinstance(seconds, list) else seconds
    return exchange_keys(result.config["dispatcher"]) | {
        "name": "clock",
        "compute": {"seconds": seconds, "noise": _nearest(takes / scale)},
        "link": _link(*_copies(result, tasks, fetches=not shared)),
        "server": {"seconds": _rounded(float(np.mean(tasks.serving[tasks.sent])))},
    }


def _check(result: Result) -> None:
    """Raise OutputError if a record has no times, none of its fetches, or not how long all tasks would have taken."""
    events = result.events
    if "began_ns" not in events or len(events) < FEWEST:
        raise OutputError(
            f"{result.folder}: has no record of {FEWEST} tasks with their times; make one by `fredsim live`"
        )
    if not result.config["dispatcher"]["wait"]:
        raise OutputError(
            f"{result.folder}: dispatcher.wait is false, so clients fetch while they compute, and no task tells how "
            "long a fetch took; record a run that waits"
        )
    if "given_up" in events and (count := np.count_nonzero(events["given_up"])):
        raise OutputError(
            f"{result.folder}: dispatcher.compute.limit gave up {count:,} tasks, and nothing tells how long they would "
            "have taken; record a run without limit"
        )
    if result.config["dispatcher"].get("outages"):
        raise OutputError(
            f"{result.folder}: dispatcher.outages is given, and nothing tells when clients were down; record a run "
            "without outages"
        )


def _warn_of_cancelled(result: Result) -> None:
    """Warn if the server has cancelled tasks: their numbers are missing, or their clients never arrived."""
    client, number = (result.events[name].to_numpy() for name in ("client", "number"))
    tasks = np.zeros(result.config["clients"]["count"], np.int64)
    np.maximum.at(tasks, client, number + 1)
    missing = tasks.sum() > len(client) or not tasks.all()
    if missing and make_server(_as_recorded(result))[0].contract.cancels:
        what = "the server has cancelled tasks, the long ones before others, which no record has"
        warn(f"{result.folder}: {what}, so that the clock may be too fast; record a run whose server lets all end")


def _experiment(result: Result, clock: Mapping[str, Any], **changes: Any) -> Experiment:
    """Return a record's experiment on another clock, with its own gates, limit and so on. Raises ConfigError."""
    asked = result.config["dispatcher"]
    dispatcher = dict(clock) | exchange_keys(asked)
    if asked["name"] == "clock" and "limit" in asked["compute"]:  # when clients give up is no time of theirs
        dispatcher["compute"] = dispatcher.get("compute", {}) | {"limit": asked["compute"]["limit"]}
    data = result.config | {"dispatcher": dispatcher, "path": "auto"} | changes
    return open_experiment({key: value for key, value in data.items() if value is not None}, Document(data).place)


@dataclass(frozen=True)
class Tasks:
    """The n tasks of a record, in the order in which they arrived; times in seconds (n,)."""

    client: NDArray[np.int64]
    begun: NDArray[np.int64]
    takes: Floats
    """For how long each was computed."""
    up: Floats
    """For how long its push was on its way."""
    down: Floats
    """For how long its fetch was on its way; less than 0 if the server, having sent it, had more to do."""
    sent: NDArray[np.bool_]
    """Whether its push was sent: one that a gate drops takes the server no time (docs/time.md)."""
    serving: Floats
    """For how long the server was at it."""
    fresh: NDArray[np.bool_]
    """Whether it began with a fetch, or is its client's first."""
    gradients: NDArray[np.int64]
    """How many gradients it was of: its local steps."""


def _tasks(result: Result) -> Tasks:
    """Return the tasks of a record. Raises OutputError if it is damaged."""
    events = result.events_of(READ)
    began, done, received, time, begun, client, number = (events[name].to_numpy() for name in READ[:7])
    assigned, served = np.zeros(len(time), np.int64), time  # of a simulated run, whose time is when the server is done
    if result.live and (times := recorded_times(result, len(time))) is not None:
        assigned, served = times.T
    fetched = np.where(begun >= 0, served[begun], 0)
    sent = events["bytes_pushed"].to_numpy() > 0
    busy = np.where(sent | bool(result.live), served, 0)  # on a clock, what a gate drops waits, but takes no time
    free = np.maximum(received, np.concatenate([[0], np.maximum.accumulate(busy)[:-1]]))
    last = earlier_arrivals(client)[1]
    fresh = (last < 0) | (begun != begun[last])  # not the later tasks from one fetch, if a gate dropped the next ones
    return Tasks(
        client,
        begun,
        takes=(done - began) / 1e9,
        up=(received - done) / 1e9,
        down=(began - np.maximum(fetched, assigned)) / 1e9,  # of a task that was done again, of the last time alone
        sent=sent,
        serving=(served - free) / 1e9,
        fresh=fresh,
        gradients=_gradients(result, client.astype(np.int64), number),
    )


def _as_recorded(result: Result) -> Experiment:
    """Return a record's experiment, on another clock if it has none: a trace may be gone."""
    asked = result.config["dispatcher"]
    return _experiment(result, asked if asked["name"] == "clock" else {"name": "clock"})


def _gradients(result: Result, clients: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many local steps these clients' tasks with these numbers had, int64 (n,)."""
    experiment = _as_recorded(result)  # only a clock lets tasks differ
    work = make_server(experiment)[1].work
    if work.varied is None:
        return np.full(len(clients), work.steps)
    recorded = make_dispatcher(experiment).inner
    recorded.init(experiment.clients.count, Streams(experiment.seed))
    recorded.configure(steps=work.varied)
    found: NDArray[np.int64] = recorded.task_steps(clients, numbers)
    return found


def _copies(result: Result, tasks: Tasks, *, fetches: bool) -> tuple[Floats, Floats]:
    """Return the sizes in bytes of the copies that were sent, and their times in seconds: pushes, and `fetches`.

    Raises OutputError if nothing was sent.
    """
    pushed, fetched, copies = (result.events[name].to_numpy() for name in READ[7:])
    again = tasks.fresh & (tasks.begun >= 0) & fetches  # the initial parameters are not fetched
    events = tasks.begun[again]
    one_copy = fetched[events] / np.maximum(copies[events], 1)  # a server may release several at once
    sizes, times = np.concatenate([pushed, one_copy]), np.concatenate([tasks.up, tasks.down[again]])
    if not (sizes > 0).any():
        raise OutputError(
            f"{result.folder}: nothing was sent, so no copy's time is known; record a run without its gates"
        )
    return sizes[sizes > 0], times[sizes > 0]


def _seconds(takes: Floats, clients: NDArray[np.int64], count: int) -> float | list[float]:
    """Return the mean time of a gradient, in seconds, or a list of `count` means by client if these lie apart.

    They do if their variance is larger than chance makes it, by an analysis of variance: Fisher's F, of which Paulson's
    approximation makes a normal variable, is `APART` standard deviations off. So a slow client shows though it had few
    tasks. One that had none gets the mean of all.
    """
    tasks, mean = np.bincount(clients, minlength=count), float(takes.mean())
    means = np.where(tasks > 0, np.bincount(clients, takes, count) / np.maximum(tasks, 1), mean)
    found = [_rounded(float(one)) for one in means]
    free = np.count_nonzero(tasks) - 1  # degrees of freedom, between clients and within them
    left = len(takes) - 1 - free
    if len({*found}) == 1 or not left:
        return _rounded(mean)
    between = np.cbrt((tasks * (means - mean) ** 2).sum() / free)
    within = np.cbrt(((takes - means[clients]) ** 2).sum() / left)
    a, b = 2 / (9 * free), 2 / (9 * left)
    apart = (1 - b) * between - (1 - a) * within > APART * math.sqrt(b * between**2 + a * within**2)
    return found if apart else _rounded(mean)


def _link(sizes: Floats, times: Floats) -> dict[str, float]:
    """Return latency and bandwidth, by least squares, from copies' sizes in bytes and their times in seconds."""
    middle, latency_alone = sizes - sizes.mean(), {"latency": _rounded(max(0.0, float(times.mean())))}
    if np.ptp(sizes) < sizes.max() / 10:  # sizes are nearly equal: the effect of a byte cannot be estimated
        return latency_alone
    a_byte = float((middle * times).sum() / (middle**2).sum())
    latency = float(times.mean() - a_byte * sizes.mean())
    if a_byte * np.ptp(sizes) <= KNOWN * times.mean() or latency < 0:  # sizes add less than is known
        return latency_alone
    bandwidth = _rounded(1 / a_byte)
    return {"latency": _rounded(latency), "up": bandwidth, "down": bandwidth}


def _nearest(factors: Floats) -> Any:
    """Return the distribution, of mean 1, that is nearest to these factors; `none` if they hardly vary."""
    cv = float(factors.std())
    if cv < 1e-3:
        return "none"
    logs, least = np.log(np.maximum(factors, 1e-9)), float(np.quantile(factors, 0.001))
    candidates: list[dict[str, Any]] = [
        {"name": "gamma", "cv": _rounded(min(cv, 10.0))},
        {"name": "lognormal", "sigma": _rounded(min(float(logs.std()), 10.0))},
        {"name": "exponential"},
        {"name": "shifted_exponential", "shift": _rounded(min(max(least, 0.0), 0.999))},
        {"name": "uniform", "spread": _rounded(min(math.sqrt(3.0) * cv, 1.0))},
        {"name": "pareto", "alpha": _rounded(min(max(1.0 / float((logs - logs.min()).mean()), 1.001), 1000.0))},
    ]
    return min(candidates, key=lambda found: distance(factors, _drawn(found)))


def _drawn(found: Mapping[str, Any]) -> Floats:
    """Return draws from a distribution of mean 1."""
    unit = TypeAdapter(Distributions).validate_python(found).unit()
    return draw(unit, Streams(0), Stream.TIME, np.arange(DRAWS), 0)


def _rounded(value: float) -> float:
    """Return a number rounded to four significant digits: more are not known."""
    return float(f"{value:.4g}")


def distance(one: Floats, other: Floats) -> float:
    """Return the largest distance between the distribution functions of two samples."""
    values = np.sort(np.concatenate([one, other]))
    parts = [np.searchsorted(np.sort(sample), values, side="right") / len(sample) for sample in (one, other)]
    return float(np.abs(parts[0] - parts[1]).max())


def measured(result: Result) -> dict[str, float | None]:
    """Return the numbers of a record that a clock can predict, by name; None for a validation error it does not have.

    Raises OutputError if the run had no clock.
    """
    if not result.timed:
        raise OutputError(f"{result.folder}: has no times; give a run with a clock, or one by `fredsim live`")
    events = result.events_of(("staleness", "time_ns"))
    seconds = int(events["time_ns"].max()) / 1e9 if len(events) else 0.0  # not to the end of a run of `seconds`
    if not seconds:
        raise OutputError(f"{result.folder}: no gradient arrived in it; give a run with events")
    return {
        "seconds": seconds,
        "arrivals a second": len(events) / seconds,
        "updates a second": result.summary["updates"] / seconds,
        "mean staleness": float(events["staleness"].mean()),
        "90 % of staleness": float(events["staleness"].quantile(0.9)),
        "validation error": result.summary["validation_error"],
    }


def predicted(
    result: Result, dispatcher: Mapping[str, Any], folder: Path, root: str | os.PathLike[str] | None = None
) -> Result:
    """Simulate a record's experiment on the clock `dispatcher`, for as many events; return the result in `folder`.

    Its gates and so on are the record's own. Times given by client must be as many as there are clients. Raises what
    running the experiment raises.
    """
    length = dict.fromkeys(("updates", "seconds", "epochs", "until")) | {"iterations": result.summary["iterations"]}
    execute(_experiment(result, dispatcher, events=True, **length), folder, root=root)
    return Result(folder)
