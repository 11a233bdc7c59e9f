"""Opens experiments: makes their parts, without starting them, and refuses what does not fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fredsim.config.document import Document, PlaceOf
from fredsim.config.experiment import Experiment
from fredsim.config.registry import build, is_user_clock
from fredsim.config.resolution import for_each_run, placed, resolve
from fredsim.config.sweep.expansion import Expansion, Source, expand, open_source
from fredsim.dispatchers.base import Timeline
from fredsim.errors import ConfigError, SimulationError
from fredsim.plugins.discovery import is_built_in
from fredsim.plugins.guarded import Guarded
from fredsim.plugins.modules import folder_kept
from fredsim.runs.processes.isolation import note_opened
from fredsim.servers.base import Server
from fredsim.servers.elementwise import ElementwiseServer
from fredsim.servers.window_average import WindowAverage
from fredsim.simulation.plugins.client_work import ROW, clients_at_work
from fredsim.simulation.plugins.contract import without_average
from fredsim.simulation.plugins.guarded_plugins import GuardedDispatcher
from fredsim.simulation.plugins.guarded_server import GuardedServer
from fredsim.simulation.plugins.protocol import Protocol, make_protocol
from fredsim.system.memory import refuse_beyond_memory
from fredsim.system.parquet_files import need_pyarrow

if TYPE_CHECKING:
    from fredsim.simulation.schedule.guarded_clock import GuardedClock

__all__ = ["check", "make_dispatcher", "make_server", "open_expansion", "open_experiment", "with_changes"]


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
    has_clock = isinstance(found, Timeline) or is_user_clock(type(found))
    guarded = _guarded_clock(experiment, found) if has_clock else GuardedDispatcher(found, experiment.clients.count)
    for key, by_clock in (
        ("seconds", experiment.seconds is not None),
        ("evaluation.unit", experiment.evaluation.unit == "seconds"),
    ):
        if by_clock and not guarded.timed:
            found = experiment.seconds if key == "seconds" else "seconds"
            remedy = "give dispatcher: {name: clock}, or count in iterations"
            raise ConfigError(f"{key} is {found}; the dispatcher {experiment.dispatcher.name} has no clock: {remedy}")
    return guarded


def _guarded_clock(experiment: Experiment, found: Any) -> GuardedClock:
    """Return a clock, a trace or a user's clock as the event loop calls it. Raises ConfigError."""
    from fredsim.dispatchers.trace import Trace
    from fredsim.simulation.schedule.guarded_clock import GuardedClock, OwnClock

    dispatcher = OwnClock(found) if is_user_clock(type(found)) else found
    guarded = GuardedClock(dispatcher, experiment.clients.count)
    if isinstance(dispatcher, Trace):
        dispatcher.fraction = experiment.clients.fraction
        dispatcher.check_length(None if experiment.until else experiment.iterations)
    if not experiment.dispatcher.wait and not guarded.clock.sends_on_arrival:
        raise ConfigError(
            "dispatcher.wait is false, and copies take time; a client that does not wait would have several under "
            "way: leave wait out, or link and server"
        )
    return guarded


def check_steps(message_start: str, steps: int, batch_size: int) -> None:
    """Raise ConfigError if the samples of one client's local steps take more memory than the machine has.

    `message_start` is the beginning of the message: the key and its value.
    """
    what = f"{message_start}; the samples of a client's local steps take"
    refuse_beyond_memory(ROW * steps * batch_size, what, "take fewer")
