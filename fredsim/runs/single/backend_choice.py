"""Chooses the backend that computes a run, where `backend: auto` leaves it to fredsim."""

from __future__ import annotations

import numpy as np

from fredsim.compute.graph_engine import NumpyBackendOperations
from fredsim.compute.objectives import blocks_of
from fredsim.config.choices import Backend
from fredsim.config.experiment import Experiment
from fredsim.data.datasets import Dataset
from fredsim.networks.graph import Graph
from fredsim.networks.layout import Layout
from fredsim.numerics.streams import Streams
from fredsim.runs.single.opening import make_dispatcher, make_server
from fredsim.simulation.paths.backends import resolve_backend
from fredsim.simulation.paths.choice import Abilities, choose_path
from fredsim.simulation.plugins.guarded_plugins import GuardedDispatcher
from fredsim.simulation.plugins.protocol import Protocol
from fredsim.simulation.plugins.run_context import RunContext
from fredsim.simulation.schedule.guarded_clock import GuardedClock, expected_events
from fredsim.simulation.schedule.length import Length

__all__ = ["chosen_backend"]

#: The parameters of networks whose single gradients are faster on a device than on a processor. Measured: of 159,010
#: they are at a third of the processor's speed, of 5.6 million at five times.
LARGE = 1_000_000


def chosen_backend(experiment: Experiment, size: int, graph: Graph | None, dataset: Dataset, length: Length) -> Backend:
    """Return what computes a run of this length whose network has so many parameters, and this graph if it is portable.

    Where there is a device, `auto` takes it for what is queued there, and for large networks: a push that the host has
    to wait for costs as much time as many of a small network on the processor (docs/devices.md).
    """
    backend = resolve_backend(experiment.backend)
    if experiment.backend != "auto" or backend != "cuda":
        return backend
    if experiment.stages is not None or experiment.path in ("hand", "fused") or experiment.memory is not None:
        return "numba"  # which alone has these paths and that limit, and passes at different parameters
    if graph is not None:
        from fredsim.cuda.backend import can_compute

        sizes = {experiment.clients.batch_size}
        if experiment.evaluation.gradient_norm:
            sizes |= {blocks.shape[1] for blocks in blocks_of(len(dataset.train))}
        if not all(can_compute(graph, dataset, mu) for mu in sizes):
            return "numba"
    if size >= LARGE:
        return backend
    if experiment.path == "snapshots":
        return "numba"
    server, protocol = make_server(experiment)
    if not server.contract.built_in:  # most see whole gradients, and one more `init` of theirs might do anything
        return "numba"
    small = Layout((("w", (4,)),))
    context = RunContext(experiment.clients.count, small, Streams(experiment.seed), NumpyBackendOperations())
    server.start(np.zeros(small.size, np.float32), context)
    dispatcher = make_dispatcher(experiment)
    ends_by_own = dispatcher.own and length.until is not None  # a user's clock, of which nobody knows how fast it is
    events = None if ends_by_own else _expected_events(length, dispatcher, protocol, context)
    mapped = dataset.staged or (graph is not None and graph.frozen)  # see make_engine
    choice = choose_path(
        experiment.path, backend, server.contract, protocol, events,
        can=Abilities("no whole windows" if mapped else "", queues=not mapped), probed=experiment.probe is not None,
        may_give_up=dispatcher.may_give_up,
    )  # fmt: skip
    return backend if choice.path == "queued" else "numba"


def _expected_events(
    length: Length, dispatcher: GuardedDispatcher, protocol: Protocol, context: RunContext
) -> int | None:
    """Return about how many events a run has; None if that is unknown. Starts a clock that ends the run."""
    if isinstance(dispatcher, GuardedClock) and length.until is not None:
        context.call_init(dispatcher)
        dispatcher.configure(reacts=False, size=0, steps=protocol.work.steps_of_tasks, until=length.until)
    return expected_events(length, dispatcher)
