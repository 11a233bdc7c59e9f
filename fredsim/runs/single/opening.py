"""Opens experiments: makes their parts, without starting them, and refuses what does not fit together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from fredsim.compute.graph_engine import NumpyBackendOperations
from fredsim.compute.objectives import blocks_of
from fredsim.config.choices import Backend
from fredsim.config.document import Document, PlaceOf
from fredsim.config.experiment import Experiment
from fredsim.config.registry import build, is_user_clock
from fredsim.config.resolution import for_each_run, placed, resolve
from fredsim.config.sweep.expansion import Expansion, Source, expand, open_source
from fredsim.data.datasets import Dataset
from fredsim.dispatchers.base import Timeline
from fredsim.dispatchers.trace import Trace
from fredsim.errors import ConfigError, SimulationError, shown
from fredsim.networks.graph import Graph
from fredsim.networks.layout import Layout
from fredsim.numerics.streams import Streams
from fredsim.plugins.discovery import is_built_in
from fredsim.plugins.guarded import Guarded
from fredsim.plugins.modules import folder_kept
from fredsim.runs.processes.isolation import note_opened
from fredsim.servers.base import Server
from fredsim.servers.elementwise import ElementwiseServer
from fredsim.servers.window_average import WindowAverage
from fredsim.simulation.paths.backends import resolve_backend
from fredsim.simulation.paths.choice import choose_path
from fredsim.simulation.plugins.client_work import clients_at_work
from fredsim.simulation.plugins.contract import without_average
from fredsim.simulation.plugins.guarded_plugins import GuardedDispatcher
from fredsim.simulation.plugins.guarded_server import GuardedServer
from fredsim.simulation.plugins.local_work import ROW
from fredsim.simulation.plugins.protocol import Protocol, make_protocol
from fredsim.simulation.plugins.run_context import RunContext
from fredsim.simulation.schedule.guarded_clock import GuardedClock, OwnClock, expected_events
from fredsim.simulation.schedule.length import Length
from fredsim.system.memory import refuse_beyond_memory
from fredsim.system.parquet_files import need_pyarrow

__all__ = [
    "check", "check_sizes", "chosen_backend", "make_dispatcher", "make_server", "open_expansion", "open_experiment",
    "with_changes",
]  # fmt: skip

#: The parameters of networks whose single gradients are faster on a device than on a processor. Measured: of 159,010
#: they are at a third of the processor's speed, of 5.6 million at five times.
LARGE = 1_000_000
COPIES = 4  # of the parameters: the initial ones, the server's, the engine's, and those that are saved


def open_expansion(source: Source, overrides: Sequence[str] = ()) -> Expansion:
    """Return the runs that a source describes. Raises ConfigError, with file and line, for the first invalid one."""
    expansion = expand(open_source(source), overrides)
    for_each_run(expansion.runs, lambda run: check(run.experiment, run.place), lambda run: run.label)
    return expansion


def open_experiment(data: Mapping[str, Any], place: PlaceOf) -> Experiment:
    """Return the experiment that plain data describes. Raises ConfigError, with file and line, if it is not valid."""
    experiment = resolve(data, place)
    check(experiment, place)
    return experiment


def with_changes(experiment: Experiment, changes: Mapping[str, Any]) -> Experiment:
    """Return an experiment with some keys changed. Raises ConfigError if they do not fit together."""
    data = {**experiment.plain(), **changes}
    return open_experiment(data, Document(data).place)


def check(experiment: Experiment, place: PlaceOf) -> None:
    """Raise ConfigError, with file and line, if the parts of an experiment do not fit together.

    Errors of a user's class are ignored here: they occur again in its run, and must not stop the other runs of a sweep.
    """
    note_opened(experiment)
    given, size = experiment.clients.local_steps, experiment.clients.batch_size
    steps = given if isinstance(given, int) else getattr(given, "fastest", 1)  # others are known on the clock alone
    with placed(place):
        if experiment.events:
            need_pyarrow("events is true: events.parquet")
        check_steps(f"clients.local_steps is {steps}", steps, size)
        with suppress(SimulationError):
            _, protocol = make_server(experiment)
            steps = protocol.work.steps  # some servers set them
            check_steps(f"server.name is {experiment.server.name}, with {steps} local steps", steps, size)
        with suppress(SimulationError):
            check_dispatcher(experiment, make_dispatcher(experiment))
        check_clients(experiment)


@folder_kept()  # which a user's class may change when it is made
def make_server(experiment: Experiment) -> tuple[GuardedServer, Protocol]:
    """Return the server of an experiment and its protocol (gates, compressor, local steps), not started.

    Raises ConfigError if they do not fit together, SimulationError if a user's class breaks its contract.
    """
    server, clients = build("server", experiment.server.name, experiment.server.hyper), experiment.clients
    own = Guarded(server)
    if clients.fraction < 1 and own.guard("takes_fraction", lambda: bool(getattr(server, "takes_fraction", False))):
        own.give("at_work", clients_at_work(clients.count, clients.fraction))
    if experiment.stages is not None and isinstance(server, Server):
        own.give("pipelines", True)
    if experiment.average is not None:
        server = WindowAverage(server, **experiment.average.hyper)
    if experiment.stages is not None and (steps := experiment.stages.reschedule):
        inner = without_average(server)
        if not (is_built_in(type(inner)) and type(inner).apply_update is ElementwiseServer.apply_update):
            what = f"the server {experiment.server.name} has no learning rate for each parameter"
            raise ConfigError(f"stages.reschedule is {steps}; {what}: give asgd, momentum or adam, or leave it out")
    guarded = GuardedServer(server, experiment.clients.count)
    return guarded, make_protocol(experiment, guarded.contract)


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
        probed=experiment.probe is not None, why_whole="no whole windows" if mapped else "", queues=not mapped,
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


def check_dispatcher(experiment: Experiment, dispatcher: GuardedDispatcher) -> None:
    """Raise ConfigError if a dispatcher's clients cannot be pipelines."""
    if experiment.stages is not None and dispatcher.may_give_up:
        what = f"tasks of the dispatcher {experiment.dispatcher.name} may be given up, and with them a pipeline's order"
        raise ConfigError(f"stages is given; {what}: leave one of them out")
    if experiment.clients.current and experiment.problem is not None:
        what = "a problem's class draws its samples itself: give it a method gradient(params, draw, current)"
        raise ConfigError(f"clients.current is true, and problem is given; {what}")
    if experiment.clients.current and experiment.probe is not None:
        what = "gradients are those at the server's own parameters, so that there is no B-staleness to be measured"
        raise ConfigError(f"probe is given, and clients.current is true; {what}: leave one of them out")


def check_clients(experiment: Experiment) -> None:
    """Raise ConfigError if steps need a clock that is not there, or samples alone statistics of minibatches."""
    steps, name = experiment.clients.local_steps, experiment.dispatcher.name
    if not isinstance(steps, int) and name != "clock":
        what = f"the dispatcher {name} does not know how long gradients take"
        raise ConfigError(f"clients.local_steps is {steps.model_dump()}; {what}: give {{name: clock}}, or a number")
    model, limit = experiment.model, experiment.clients.clip_each_sample
    if model.keeps_statistics and limit is not None:
        what = f"clients.clip_each_sample is {limit:g}; each sample is then computed alone"
        kept = f"model.buffers is {getattr(model, 'buffers', None)}, which is of whole minibatches"
        raise ConfigError(f"{what}, and {kept}: leave one out")


@folder_kept()  # which a user's class may change when it is made
def make_dispatcher(experiment: Experiment) -> GuardedDispatcher:
    """Return the dispatcher of an experiment, not started. Raises as `make_server` does."""
    found = build("dispatcher", experiment.dispatcher.name, experiment.dispatcher.hyper)
    dispatcher = OwnClock(found) if is_user_clock(type(found)) else found
    clients = experiment.clients.count
    guarded = (GuardedClock if isinstance(dispatcher, Timeline) else GuardedDispatcher)(dispatcher, clients)
    if isinstance(dispatcher, Trace):
        dispatcher.fraction = experiment.clients.fraction
        dispatcher.check_length(None if experiment.until else experiment.iterations)
    if isinstance(guarded, GuardedClock) and not experiment.dispatcher.wait and not guarded.clock.sends_on_arrival:
        raise ConfigError(
            "dispatcher.wait is false, and copies take time; a client that does not wait would have several under "
            "way: leave wait out, or link and server"
        )
    for key, by_clock in (
        ("seconds", experiment.seconds is not None),
        ("evaluation.unit", experiment.evaluation.unit == "seconds"),
    ):
        if by_clock and not guarded.timed:
            found = experiment.seconds if key == "seconds" else "seconds"
            remedy = "give dispatcher: {name: clock}, or count in iterations"
            raise ConfigError(f"{key} is {found}; the dispatcher {experiment.dispatcher.name} has no clock: {remedy}")
    return guarded


def check_sizes(experiment: Experiment, graph: Graph, length: Length) -> None:
    """Raise ConfigError, naming the key to lower, if a run needs more memory than the machine has.

    The parameters, and the minibatches that are computed together, are counted.
    """
    clients, size, inputs = experiment.clients, graph.layout.size, math.prod(graph.sample)
    if key := experiment.model.sized_by:
        of = f"{size:,} parameters, of {inputs:,} inputs and {math.prod(graph.shapes[-1]):,} classes, take"
        what = f"model.{key} is {shown(getattr(experiment.model, key))}; {of}"
        refuse_beyond_memory(COPIES * 4 * size, what, "make the model smaller")
    minibatch = 4 * (clients.batch_size * (inputs + graph.values) + size)
    of = "the samples, activations and gradient of one minibatch take"
    refuse_beyond_memory(minibatch, f"clients.batch_size is {clients.batch_size}; {of}", "lower it")
    at_work = clients_at_work(clients.count, clients.fraction)
    together = min(experiment.window or 1, at_work, length.events or at_work)
    refuse_beyond_memory(
        together * minibatch, f"window is {experiment.window}; {together:,} minibatches at once take", "lower it"
    )


def check_steps(message_start: str, steps: int, batch_size: int) -> None:
    """Raise ConfigError if the samples of one client's local steps take more memory than the machine has.

    `message_start` is the beginning of the message: the key and its value.
    """
    what = f"{message_start}; the samples of a client's local steps take"
    refuse_beyond_memory(ROW * steps * batch_size, what, "take fewer")
