"""Estimates what a run will take: path, memory, bytes sent, and time, which is measured by running its beginning."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fredsim.config.document import flatten
from fredsim.config.experiment import Affects, Experiment, irrelevant_to
from fredsim.config.registry import own_modules
from fredsim.config.resolution import in_run, placed
from fredsim.config.sweep.expansion import ResolvedRun
from fredsim.errors import ConfigError, FredsimError
from fredsim.networks.layout import Layout
from fredsim.networks.mlp import as_mlp
from fredsim.numerics.operations import NumpyOperations
from fredsim.numerics.streams import Streams
from fredsim.plugins.modules import has_file
from fredsim.runs.folder.results import Result
from fredsim.runs.plan.forecast import Forecast, Milestone, RunClock, arrived_share, clock_of, forecast_run
from fredsim.runs.processes.apart import do_apart
from fredsim.runs.processes.observer import Observer
from fredsim.runs.processes.process import Started
from fredsim.runs.single.execution import Execution, execute
from fredsim.runs.single.opening import make_server, with_changes
from fredsim.runs.single.prepared import Prepared, check_data, prepare
from fredsim.servers.elementwise import ElementwiseServer
from fredsim.servers.window_average import SUMS, WindowAverage
from fredsim.simulation.plugins.client_work import clients_at_work
from fredsim.simulation.plugins.contract import without_average
from fredsim.simulation.plugins.run_context import RunContext
from fredsim.simulation.schedule.guarded_clock import expected_events
from fredsim.simulation.schedule.length import LONGEST_SCHEDULE
from fredsim.system.files import scratch_folder
from fredsim.system.memory import reset_peak_memory

__all__ = ["Estimate", "estimate"]

ENOUGH_SECONDS = 0.3  # how long a beginning must take for the time of the whole run to be estimated from it
FIRST_LENGTH = 64  # iterations of the first beginning that is tried
#: How many updates a beginning must have where a run, or its rows, are counted in them; unless it takes too long.
LEAST_UPDATES, LONGEST_SECONDS = 2, 30.0
GRADIENT = 3  # how many times as long as their evaluation the gradient over all training rows takes, about
PER_CLIENT_ON_CLOCK = 64  # iterations per client of a beginning from which the course of a clock can be forecast …
MOST_ON_CLOCK = 4096  # … but at most this many iterations in all, or as many as take five times ENOUGH_SECONDS


@dataclass(frozen=True)
class Estimate:
    """What one run will take.

    `most_held` is the most tasks whose passes are pending at once (path `hand`), or the most versions of the parameters
    that clients hold at once (other paths). `memory`, in bytes, is that of these, the server's state, unsent pushes,
    the clients' own arrays, the data and the values of a minibatch; for networks other than `mlp` that of the whole
    process, which is measured: most of a PyTorch module's is what PyTorch takes; with backend cuda it is the memory of
    the device. `pushed` and `fetched`, in bytes, are those of a run whose gates let all copies pass (`gated`: the run
    has some). `rows` is the number of rows of metrics.csv; `simulated` the seconds on the run's clock, None without
    one; `exact` whether iterations and simulated seconds are exact, and `exact_rows` whether these are; `goal` whether
    the run has a goal, which may end it earlier; `as_rule` the seconds with asgd in place of a user's server that could
    be written as a rule (docs/rules.md), None for all others.
    """

    label: str
    path: str
    why: str
    iterations: int
    most_held: int
    memory: int
    pushed: int
    fetched: int
    seconds: float
    gated: bool
    rows: int
    simulated: float | None = None
    exact: bool = True
    exact_rows: bool = True
    goal: bool = False
    as_rule: float | None = None


def estimate(
    runs: Sequence[ResolvedRun],
    root: str | os.PathLike[str] | None,
    *,
    threads: int | None = None,
    measured: dict[str, dict[str, Any]] | None = None,
    rough: bool = False,
) -> Iterator[Estimate]:
    """Yield the estimate of each run.

    Runs that differ only in seed, length, rows, in how the training rows are dealt to clients, and in the fractional
    hyper-parameters of server and gates share one measurement, unless these affect who arrives when, or when there is
    an update, or the one that was measured is too short to tell of a longer one; `measured` keeps the measurements
    between calls. `threads` is used for a run that gives no number of threads. Of a `rough` estimate, the seconds alone
    count, and are about right: no process is started to measure memory; and where length and rows are counted in
    iterations, no clock is looked at, and runs that differ in the number of clients share a measurement, too. Raises
    what running it raises; of several runs, its message says in which.
    """
    check_data(runs, root)
    measured = {} if measured is None else measured
    estimate_of = partial(_estimate_of, root=root, threads=threads, measured=measured, rough=rough)
    for run in runs:
        whole = run.experiment.model_copy(update={"until": None})  # when a goal will be reached cannot be known
        try:
            with placed(run.place):
                found = estimate_of(run.label, whole)
        except FredsimError as error:
            raise in_run(error, run.label) from error.__cause__
        if _could_be_a_rule(whole):
            with suppress(ConfigError):  # a gate may ask for what asgd does not have
                as_asgd = with_changes(whole, {"server": {"name": "asgd", "lr": 0.1}})
                found = replace(found, as_rule=estimate_of(run.label, as_asgd).seconds)
        yield replace(found, goal=run.experiment.until is not None)


def _could_be_a_rule(experiment: Experiment) -> bool:
    """Return whether the server is a user's that is not a rule, but uses nothing that a rule could not do."""
    guarded, _ = make_server(experiment)
    contract = guarded.contract
    more = ("holds", "cancels", "begins", "fetch", "metrics", "proxies")
    own = not contract.built_in and not isinstance(guarded.inner, ElementwiseServer) and experiment.average is None
    plain = contract.pushes == "gradient" and not any(getattr(contract, name) for name in more)
    return own and plain and not experiment.model.native


def _estimate_of(
    label: str,
    experiment: Experiment,
    *,
    root: str | os.PathLike[str] | None,
    threads: int | None,
    measured: dict[str, dict[str, Any]],
    rough: bool,
) -> Estimate:
    prepared = prepare(experiment, root)
    counted = prepared.length.iterations is not None and prepared.interval.unit == "iterations"
    run_clock = None if rough and counted else clock_of(prepared)
    kind = _measurement_key(prepared, threads, run_clock, any_count=rough and counted)
    of_length = f"{kind} {prepared.length} {prepared.interval}"
    if kind not in measured and of_length not in measured:
        plain = prepared.experiment.plain()
        network = json.dumps([threads, *(plain[key] for key in ("data", "model", "loss", "backend") if key in plain)])
        alike = [one["iterations"] for one in measured.values() if one["network"] == network and one["iterations"]]
        first = min(alike, default=FIRST_LENGTH)  # long enough for another server: so that it is not started again
        found = _measure(prepared, run_clock, root, threads, first, memory=not rough) | {"network": network}
        measured[of_length if found["short"] else kind] = found
    return _estimate(label, prepared, run_clock, measured.get(kind) or measured[of_length])


def _measurement_key(prepared: Prepared, threads: int | None, run_clock: RunClock | None, *, any_count: bool) -> str:
    """Return a key that is equal for runs whose iterations take the same time; if `any_count`, about the same."""
    plain = prepared.experiment.plain()
    kept = {key: value for key, value in plain.items() if key not in irrelevant_to(Affects.TIME)}
    on_clock = run_clock is not None and (run_clock.reacts or run_clock.clock.may_give_up)
    told = _counts_updates(prepared) or on_clock
    rates_too = on_clock and _told_values(prepared)  # who arrives when then depends on what is learned
    for part in ("server", "dispatcher"):  # such as malenia's `harmonic`, and times: of updates, and of what is sent
        numbers = flatten(plain[part]).items()
        kept[part] = {
            key: value
            for key, value in numbers
            if not isinstance(value, float) or (told and (rates_too or not _is_rate(key)))
        }
    kept["evaluation"] = [prepared.experiment.evaluation.test, prepared.experiment.evaluation.gradient_norm]
    if any_count:
        kept["clients"] = {key: value for key, value in kept["clients"].items() if key != "count"}
    if prepared.shards is not None and not _told_values(prepared):
        kept["clients"] = kept["clients"] | {"partition": "shards"}  # which rows are whose takes no time
    events = prepared.length.events
    if run_clock is not None:
        if run_clock.reacts:  # the order of arrivals then depends on every time
            kept |= {"seed": prepared.experiment.seed, "dispatcher": plain["dispatcher"]}
        events = expected_events(prepared.length, run_clock.clock)
    # These decide the path.
    kept |= {"order": events is None or events <= LONGEST_SCHEDULE, "in updates": prepared.length.updates is not None}
    kept["of updates"] = _counts_updates(prepared)
    return json.dumps([threads, kept], sort_keys=True)


def _measure(
    prepared: Prepared,
    run_clock: RunClock | None,
    root: str | os.PathLike[str] | None,
    threads: int | None,
    first: int,
    *,
    memory: bool,
) -> dict[str, Any]:
    """Run the beginning, longer and longer from `first` iterations on, until it takes long enough; return its summary.

    Added to the summary are the number of `rows`; `peak`, the most memory that the process had, `buffers`, the engine's
    part of it, and `more`, that of local steps and of the norm of the gradient; `ended`, whether the whole run ended
    within the beginning; `short`, whether that or its few iterations left too little to be measured for a longer run;
    two `milestones` of its clock, one within the beginning and one at its end (fredsim.runs.plan.forecast); and, if
    updates count, how many events there were `up_to` the last one.
    """
    length, clients = prepared.length, prepared.experiment.clients.count
    total = length.iterations or 2**31  # updates, or the clock, may end it before
    iterations = min(first, total)
    reacts = run_clock is not None and run_clock.reacts
    least = min(total, PER_CLIENT_ON_CLOCK * clients, MOST_ON_CLOCK) if reacts else 0
    milestones: list[Milestone] = []
    observer = Measuring()
    apart = memory and _whole_process(prepared) and all(map(has_file, own_modules(prepared.experiment.plain())))
    apart = apart and prepared.experiment.backend != "cuda"  # of which the device's memory is said
    while True:
        reset_peak_memory()
        how = {"most_iterations": iterations, "most_updates": length.updates}
        how |= {"default_threads": threads, "evaluate_end": False}
        result = _beginning(prepared, root, how, observer, apart=apart)
        possible = {name: int(result.metrics[name].iloc[-1]) for name in ("potential_pushes", "potential_fetches")}
        summary = {**result.summary, **possible, "rows": len(result.metrics), **observer.memory_taken}
        if run_clock is not None:
            columns = (result.metrics[name].tolist() for name in ("iteration", "time"))
            milestones += list(zip(*columns, strict=True))
        done, ended = summary["iterations"], summary["iterations"] < iterations
        enough = ENOUGH_SECONDS if done >= least else 5 * ENOUGH_SECONDS
        if _counts_updates(prepared) and summary["updates"] < LEAST_UPDATES:
            enough = LONGEST_SECONDS
        if summary["seconds"] >= enough or ended or iterations >= total:
            summary["up_to"] = done
            partial_one = _counts_updates(prepared) and 0 < summary["updates"] < done
            if partial_one and summary["updates"] != length.updates:  # the last events may be of the next one
                shorter = how | {"most_updates": summary["updates"]}
                summary["up_to"] = _beginning(prepared, root, shorter, Measuring(), apart=apart).summary["iterations"]
            before = max(one for one in milestones if one[0] <= 0.6 * done) if milestones else None
            short = ended or summary["seconds"] < enough
            return {**summary, "ended": ended, "short": short, "milestones": milestones and (before, milestones[-1])}
        wanted = 1.5 * iterations * ENOUGH_SECONDS / max(summary["seconds"], 1e-3)
        iterations = min(total, max(2 * iterations, min(16 * iterations, int(wanted))))


def _is_rate(key: str) -> bool:
    """Return whether this key of a server is a learning rate, or of its schedule; that of an inner server, too."""
    return any(part.endswith("lr") for part in key.split("."))


def _told_values(prepared: Prepared) -> bool:
    """Return whether what is computed from the rows may decide who continues, what is sent, or what is an update."""
    server, protocol = make_server(prepared.experiment)
    gated = protocol.push_gate is not None or protocol.fetch_gate is not None
    return gated or not server.contract.built_in


def _counts_updates(prepared: Prepared) -> bool:
    """Return whether the length of a run, or what is between its rows, is counted in updates."""
    return prepared.length.updates is not None or prepared.interval.unit == "updates"


def _beginning(
    prepared: Prepared, root: str | os.PathLike[str] | None, how: dict[str, Any], observer: Measuring, *, apart: bool
) -> Result:
    """Run the beginning of a run, `apart` in a new process, and return its result; raise what it raises.

    If something is compiled there, which takes memory that later runs do not take, it runs once more. Of the result,
    summary and metrics have been read.
    """
    with scratch_folder() as folder:
        task = Execution(prepared.experiment, folder / "run", root, how)
        if not apart:
            execute(task.experiment, task.folder, root=root, observer=observer, **how)
        for _ in range(2 * apart):
            observer.compiled = False
            # A forked process would be found to have less: it does not read what it shares with this one.
            if failure := do_apart(task, observer, lambda: False, Started()):
                raise failure
            if not observer.compiled:
                break
        result = Result(task.folder)
        _ = result.summary, result.metrics
        return result


class Measuring(Observer):
    """Keeps how much memory the last run took, and whether a kernel was compiled."""

    def __init__(self) -> None:
        self.compiled = False
        self.memory_taken: dict[str, int] = {}

    def compiling(self) -> None:
        """Keep it."""
        self.compiled = True

    def memory(self, peak: int, buffers: int, more: int) -> None:
        """Keep it."""
        self.memory_taken = {"peak": peak, "buffers": buffers, "more": more}


def _estimate(label: str, prepared: Prepared, run_clock: RunClock | None, summary: dict[str, Any]) -> Estimate:
    experiment, done = prepared.experiment, max(1, int(summary["iterations"]))
    length, total = prepared.length, None
    if length.until is None:
        total = length.iterations or math.ceil((length.updates or 0) * summary["up_to"] / max(1, summary["updates"]))
    forecast = None if run_clock is None else forecast_run(prepared, run_clock, summary, total)
    total = forecast.iterations if forecast is not None else total or 0
    clients = min(experiment.clients.count, total)  # those that arrive at all
    most_held, memory = _memory(prepared, summary, clients)
    pushed, fetched = _bytes(prepared, summary, total)
    _, protocol = make_server(experiment)
    rows = _rows(prepared, run_clock, forecast, summary, total)
    spent = summary["seconds"] + summary.get("seconds_probe", 0.0)
    exact = length.updates is None and (forecast is None or forecast.exact)
    at_end = _at_end(prepared, summary)
    # Of a part of the run it is known how many updates it makes; unless each event is one, as it seems.
    counted = prepared.interval.unit != "updates" or total == done or summary["updates"] == done
    return Estimate(
        label=label,
        path=summary["path"],
        why=summary["path_why"],
        iterations=total,
        most_held=most_held,
        memory=memory,
        pushed=pushed,
        fetched=fetched,
        seconds=total * spent / done + rows * summary["seconds_evaluation"] / summary["rows"] + at_end,
        gated=protocol.push_gate is not None or protocol.fetch_gate is not None,
        rows=rows,
        simulated=forecast.simulated if forecast else None,
        exact=exact,
        exact_rows=exact and counted,
    )


def _at_end(prepared: Prepared, summary: dict[str, Any]) -> float:
    """Return how many seconds the evaluation at the end takes."""
    asked, dataset = prepared.experiment.evaluation, prepared.dataset
    samples = len(dataset.test) + asked.per_client * len(dataset.train)
    if "seconds_sample" in summary:
        return samples * float(summary["seconds_sample"])
    of_row = len(dataset.validation) + asked.test * len(dataset.test)
    of_row += asked.gradient_norm * GRADIENT * len(dataset.train)
    each: float = summary["seconds_evaluation"] / summary["rows"] / max(1, of_row)
    return samples * each


def _bytes(prepared: Prepared, summary: dict[str, Any], total: int) -> tuple[int, int]:
    """Return how many bytes a run of `total` iterations pushes and fetches; at most, if gates may drop copies."""
    guarded, protocol = make_server(prepared.experiment)
    whole, done = 4 * prepared.model.layout.size * protocol.work.copied_arrays, max(1, int(summary["iterations"]))

    def of(copies: str, sent: int, gate: Any, *, smaller: bool) -> int:
        passed, possible = int(summary[copies]), int(summary[f"potential_{copies}"])
        size = sent / passed if passed and (smaller or gate is None) else whole  # a gate may let parts of a copy pass
        each = (passed if gate is None else possible) / done
        if copies == "fetches" and total != done:
            each = max(1.0, each)  # clients that were held at the end of the beginning fetch later
        return round(total * each * size)

    smaller = protocol.compressor is not None or guarded.contract.bytes_pushed
    pushed = of("pushes", summary["bytes_pushed"], protocol.push_gate, smaller=smaller)
    smaller = guarded.contract.bytes_fetched
    return pushed, of("fetches", summary["bytes_fetched"], protocol.fetch_gate, smaller=smaller)


def _rows(
    prepared: Prepared, run_clock: RunClock | None, forecast: Forecast | None, summary: dict[str, Any], total: int
) -> int:
    """Return how many rows of metrics.csv a run of `total` iterations has."""
    if run_clock is not None and run_clock.reacts and summary["ended"]:  # by its time, within the beginning
        return int(summary["rows"])
    done, up_to = int(summary["iterations"]), int(summary["up_to"])
    if total == done:
        updates = summary["updates"] + (0.5 if up_to < done else 0)
    else:
        updates = prepared.length.updates or total * summary["updates"] / max(1, up_to)
    if forecast is None:
        return prepared.interval.rows(total, updates)
    return prepared.interval.rows(total, updates, round(forecast.simulated * 1e9), rests=forecast.rests)


def _memory(prepared: Prepared, summary: dict[str, Any], clients: int) -> tuple[int, int]:
    """Return how much the clients hold at most, and the bytes of memory, both as in `Estimate`.

    `summary` is that of the run's beginning (`_measure`), `clients` how many clients arrive in the whole run.
    """
    experiment, model = prepared.experiment, prepared.model
    size = 4 * model.layout.size
    guarded, protocol = make_server(experiment)
    at_work = clients_at_work(experiment.clients.count, protocol.fraction)
    tasks = min(clients, at_work) * protocol.tasks_per_client
    if prepared.stages is not None:  # a pipeline also has what it held for its last minibatches
        tasks *= 1 + prepared.stages.depth
    server = without_average(guarded.inner)
    together = False  # whether the server holds all at work until the last has pushed, so that they share a version
    if guarded.contract.built_in and guarded.contract.holds:
        layout, streams = Layout((("params", (1,)),)), Streams(experiment.seed)
        context = RunContext(experiment.clients.count, layout, streams, NumpyOperations())
        guarded.start(np.zeros(1, np.float32), context)
        together = guarded.pushes_until_release() == at_work
    if summary["path"] == "hand":
        from fredsim.kernels.backend import pending_bytes

        assert model.graph is not None  # no other network takes this path
        most_held, each = tasks, pending_bytes(model.graph, experiment.clients.batch_size)
    else:
        most_held, each = 2 if together else tasks + 1, size
    held = most_held * each
    arrays, own = 1, 0
    if isinstance(server, ElementwiseServer):
        held += len(server.per_client) * clients * size  # in the same pool
        arrays += len(server.all_state()) - len(server.per_client)
    average = guarded.inner
    if isinstance(average, WindowAverage) and (average.on_backend or summary["backend"] != "cuda"):
        arrays += SUMS
    on_device = summary["backend"] == "cuda" and model.graph is not None
    own += protocol.push_gate is not None  # the last gradient sent, or those not sent yet
    if protocol.compressor is not None and not on_device:  # beside a device, what it keeps is on the host
        own += getattr(protocol.compressor.inner, "keeps_residual", False)
    own += protocol.work.kept_arrays
    own += prepared.stages.arrays if prepared.stages is not None else 0
    data = prepared.dataset.nbytes
    if experiment.memory is not None:
        held = min(held, max(0, int(experiment.memory) - data))
    own *= clients * size
    if _whole_process(prepared) and not on_device and summary["peak"]:  # that of the clients that had arrived is in it
        missing = 1 - arrived_share(prepared, int(summary["iterations"]), clients)
        return most_held, int(summary["peak"] + missing * (own + (0 if together else held)))
    if not on_device:  # as loaded, and as kernels read it; or, for a gap, in float64
        data *= 3 if model.measured_by == "gap" else 2
    work = summary["buffers"]  # the values and errors of a minibatch, which on the path `hand` clients hold
    if not work and model.graph is not None and summary["path"] != "hand":
        work = 4 * experiment.clients.batch_size * 2 * model.graph.values
    if experiment.clients.clip_each_sample is not None and not on_device:
        work += experiment.clients.batch_size * size  # the samples' gradients, which are on the host
    return most_held, held + arrays * size + own + data + work + summary["more"]


def _whole_process(prepared: Prepared) -> bool:
    """Return whether the memory that is said is that of the whole process."""
    return prepared.model.graph is None or as_mlp(prepared.model.graph) is None
