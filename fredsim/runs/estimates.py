"""What a run will take: its path, memory, bytes sent, and time, measured by running its beginning."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fredsim.config.document import flatten
from fredsim.config.expansion import ResolvedRun
from fredsim.config.experiment import Affects, Experiment, MlpChoice, irrelevant_to
from fredsim.errors import ConfigError
from fredsim.models.layout import Layout
from fredsim.models.linear import Linear
from fredsim.models.mlp import Mlp
from fredsim.numerics.operations import NumpyOperations
from fredsim.numerics.streams import Streams
from fredsim.runs.execution import execute
from fredsim.runs.forecast import Mark, clock_of, course
from fredsim.runs.opening import altered, make_server
from fredsim.runs.prepared import Prepared, prepare
from fredsim.runs.results import Result
from fredsim.servers.elementwise import ElementwiseServer
from fredsim.simulation.contract import without_average
from fredsim.simulation.paths import LONGEST_SCHEDULE
from fredsim.simulation.supplies import Supplies

__all__ = ["Estimate", "estimate"]

ENOUGH = 0.3  # seconds of a beginning from which the time of a whole run can be told
SHORTEST = 64  # iterations of the first beginning that is tried
OF_CLOCK = 64  # iterations a client of a beginning that shows the course of a clock
MOST_OF_CLOCK = 4096  # so many at most, or what takes five times ENOUGH


@dataclass(frozen=True)
class Estimate:
    """What one run will take.

    `live` is how many works (path hand) or versions of the parameters (other paths) clients hold at once, at most;
    `memory`, in bytes, is that of these, the server's state, unsent pushes, the clients' own arrays and the data;
    `pushed` and `fetched`, in bytes, are what there would be without gates (`gated`: there are some). `rows`: of
    metrics.csv; `simulated`: seconds of its clock, None without one; `exact`: whether iterations and simulated seconds
    are known, and not about so; `goal`: whether the run may end before, when it is there; `as_rule`: the seconds with
    asgd in the place of a user's server that could be a rule (docs/rules.md), None for all others.
    """

    label: str
    path: str
    why: str
    iterations: int
    live: int
    memory: int
    pushed: int
    fetched: int
    seconds: float
    gated: bool
    rows: int
    simulated: float | None = None
    exact: bool = True
    goal: bool = False
    as_rule: float | None = None


def estimate(
    runs: Sequence[ResolvedRun],
    root: str | os.PathLike[str] | None,
    *,
    threads: int | None = None,
    measured: dict[str, dict[str, Any]] | None = None,
) -> Iterator[Estimate]:
    """Yield the estimate of each run.

    Runs that differ only in seed, length, rows and the fractional hyper-parameters of server and gates share one
    measurement, but for those that have a say in who arrives when; `measured` keeps these between calls. `threads`: a
    run's number of threads where it gives none. Raises what running it raises.
    """
    measured = {} if measured is None else measured
    for run in runs:
        whole = run.experiment.model_copy(update={"until": None})  # nobody knows when it will be there
        found = _estimate_of(run.label, whole, root, threads, measured)
        if _could_be_a_rule(whole):
            with suppress(ConfigError):  # a gate may ask for what asgd does not have
                as_asgd = altered(whole, {"server": {"name": "asgd", "lr": 0.1}})
                found = replace(found, as_rule=_estimate_of(run.label, as_asgd, root, threads, measured).seconds)
        yield replace(found, goal=run.experiment.until is not None)


def _could_be_a_rule(experiment: Experiment) -> bool:
    """Return whether the server is a user's that is no rule, and has nothing that a rule could not do."""
    guarded, _ = make_server(experiment)
    contract = guarded.contract
    more = ("holds", "cancels", "begins", "fetch", "metrics", "proxies")
    own = not contract.ours and not isinstance(guarded.inner, ElementwiseServer) and experiment.average is None
    plain = contract.pushes == "gradient" and not any(getattr(contract, name) for name in more)
    return own and plain and isinstance(experiment.model, MlpChoice)


def _estimate_of(
    label: str,
    experiment: Experiment,
    root: str | os.PathLike[str] | None,
    threads: int | None,
    measured: dict[str, dict[str, Any]],
) -> Estimate:
    prepared = prepare(experiment, root)
    kind = _measurement_key(prepared, threads)
    if kind not in measured:
        measured[kind] = _measure(prepared, root, threads)
    return _estimate(label, prepared, measured[kind])


def _measurement_key(prepared: Prepared, threads: int | None) -> str:
    """Return what is the same for runs whose iterations take the same time."""
    plain = prepared.experiment.plain()
    kept = {key: value for key, value in plain.items() if key not in irrelevant_to(Affects.TIME)}
    for part in ("server", "dispatcher"):
        kept[part] = {key: value for key, value in flatten(plain[part]).items() if not isinstance(value, float)}
    kept["evaluation"] = [prepared.experiment.evaluation.test, prepared.experiment.evaluation.gradient_norm]
    events, found = prepared.length.events, clock_of(prepared)
    if found is not None:
        if found.reacts:  # its course depends on each time
            kept |= {"seed": prepared.experiment.seed, "dispatcher": plain["dispatcher"]}
        if prepared.length.until is not None:
            events = found.clock.about(prepared.length.until)
    # These decide the path.
    kept |= {"order": events is None or events <= LONGEST_SCHEDULE, "in updates": prepared.length.updates is not None}
    return json.dumps([threads, kept], sort_keys=True)


def _measure(prepared: Prepared, root: str | os.PathLike[str] | None, threads: int | None) -> dict[str, Any]:
    """Run the beginning, longer and longer, until it takes long enough; return its summary.

    Of a run with a clock it has `marks` in it and at its end (fredsim.runs.forecast), and whether it is `over` then.
    """
    length, clients = prepared.length, prepared.experiment.clients.count
    total = length.iterations or (length.updates or 0) * clients or 2**31  # an update may want several arrivals
    iterations = min(SHORTEST, total)
    found = clock_of(prepared)
    least = min(total, OF_CLOCK * clients, MOST_OF_CLOCK) if found is not None and found.reacts else 0
    marks: list[Mark] = []
    while True:
        with tempfile.TemporaryDirectory() as folder:
            execute(prepared.experiment, Path(folder) / "run", root=root, until=iterations, default_threads=threads)
            result = Result(Path(folder) / "run")
            summary = {**result.summary, "rows": len(result.metrics)}
            if found is not None:
                marks += list(zip(result.metrics["iteration"].tolist(), result.metrics["time"].tolist(), strict=True))
        done, over = summary["iterations"], summary["iterations"] < iterations
        if summary["seconds"] >= (ENOUGH if done >= least else 5 * ENOUGH) or over or iterations >= total:
            before = max(mark for mark in marks if mark[0] <= 0.6 * done) if marks else None
            return {**summary, "over": over, "marks": marks and (before, marks[-1])}
        wanted = 1.5 * iterations * ENOUGH / max(summary["seconds"], 1e-3)
        iterations = min(total, max(2 * iterations, min(16 * iterations, int(wanted))))


def _estimate(label: str, prepared: Prepared, summary: dict[str, Any]) -> Estimate:
    experiment, model = prepared.experiment, prepared.model
    done, size = max(1, int(summary["iterations"])), 4 * model.layout.size
    length, total = prepared.length, None
    if length.until is None:
        total = length.iterations or math.ceil((length.updates or 0) * done / max(1, summary["updates"]))
    found = course(prepared, summary, total)
    total = found.iterations if found is not None else total or 0
    clients = min(experiment.clients.count, total)  # those that the schedule picks
    works = clients * (1 if experiment.dispatcher.wait else 2)
    guarded, protocol = make_server(experiment)
    server = without_average(guarded.inner)
    together = False  # whether the server holds all clients until the last has pushed: they share a version then
    if guarded.contract.ours and guarded.contract.holds:
        layout, streams = Layout((("params", (1,)),)), Streams(experiment.seed)
        supplies = Supplies(experiment.clients.count, layout, streams, NumpyOperations())
        guarded.start(np.zeros(1, np.float32), supplies)
        together = guarded.pushes_until_release() == experiment.clients.count
    if summary["path"] == "hand":
        live, each = works, _work_bytes(prepared)
    else:
        live, each = 2 if together else works + 1, size
    held = live * each
    arrays, own = 1, 0
    if isinstance(server, ElementwiseServer):
        held += len(server.per_client) * clients * size  # in the same pool
        arrays += len(server.all_state()) - len(server.per_client)
    own += protocol.push_gate is not None  # the last gradient sent, or those not sent yet
    if protocol.compressor is not None:
        own += getattr(protocol.compressor.inner, "keeps_residual", False)
    dataset = prepared.dataset
    data = sum(part.x.nbytes for part in (dataset.train, dataset.validation, dataset.test))
    if experiment.memory is not None:
        held = min(held, max(0, int(experiment.memory) - data))
    data *= 4 if isinstance(model, Linear) else 2  # as it is read, as the kernels read it; in float64 for the gap
    interval = prepared.interval
    rows = interval.rows(total, total * summary["updates"] / done, found.simulated * 1e9 if found else 0.0)
    if length.until is not None and interval.unit == "iterations" and total % interval.every == 0:
        rows += 1  # when the time is over
    return Estimate(
        label=label,
        path=summary["path"],
        why=summary["path_why"],
        iterations=total,
        live=live,
        memory=held + arrays * size + own * clients * size + data,
        pushed=total * (summary["bytes_pushed"] // max(1, summary["pushes"])),
        fetched=total * (summary["bytes_fetched"] // max(1, summary["fetches"])),
        seconds=total * summary["seconds"] / done + rows * summary["seconds_evaluation"] / summary["rows"],
        gated=protocol.push_gate is not None or protocol.fetch_gate is not None,
        rows=rows,
        simulated=found.simulated if found else None,
        exact=length.updates is None and (found is None or found.exact),
    )


def _work_bytes(prepared: Prepared) -> int:
    """Return the bytes of one work on path hand: samples, losses, errors, activations (fredsim.kernels.workspace)."""
    from fredsim.kernels.workspace import WorkspaceLayout, block_size

    mu, model = prepared.experiment.clients.batch_size, prepared.model
    assert isinstance(model, Mlp)  # no other takes path hand
    layout = WorkspaceLayout(model.sizes, mu, block_size(mu), 1)
    return 4 * (2 * mu + int(layout.error_offsets[-1]) + int(layout.activation_offsets[-1]))
