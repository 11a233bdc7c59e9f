"""Runs one simulation: its growing files, its checkpoints, and the repetition of a run that diverged."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fredsim.compute.engines import Engine
from fredsim.compute.metrics import Metrics
from fredsim.compute.problem_engine import ProblemMetrics
from fredsim.compute.storage import Limits
from fredsim.config.choices import Backend
from fredsim.config.experiment import Experiment
from fredsim.config.registry import own_modules
from fredsim.errors import ClusterError, ConfigError, FredsimError, SimulationError, nearest
from fredsim.networks.own_problem import OwnProblem
from fredsim.numerics.streams import Streams
from fredsim.numerics.subnormals import check_subnormals
from fredsim.plugins.modules import folder_kept, imported_anew
from fredsim.plugins.outside import Outside
from fredsim.plugins.state.state_arrays import by_reference
from fredsim.plugins.state.states import State
from fredsim.plugins.user_code import named_objects
from fredsim.runs.checkpoint.checkpoints import (
    NO_CHECKPOINTS,
    Checkpoint,
    CheckpointPolicy,
    Checkpoints,
    identity_of_run,
    resume_errors,
)
from fredsim.runs.checkpoint.format import check_restored, check_types
from fredsim.runs.folder.event_file import EventFile
from fredsim.runs.folder.growing_files import GrowingFile, GrowingText
from fredsim.runs.processes.observer import Observer
from fredsim.runs.single.measures import measures_of, metrics_of
from fredsim.runs.single.opening import make_dispatcher, make_server
from fredsim.runs.single.prepared import Prepared
from fredsim.simulation.paths.backends import make_engine
from fredsim.simulation.paths.loop import Diverged, Outcome, Parts, Simulation
from fredsim.simulation.paths.probe import Probe
from fredsim.simulation.paths.start import make_simulation
from fredsim.simulation.plugins.guarded_plugins import GuardedDispatcher
from fredsim.simulation.record.recorder import TEST, Recorder, Row
from fredsim.simulation.schedule.event_log import EventLog
from fredsim.simulation.schedule.length import Goal, Length

__all__ = ["SIMULATED_RUN", "Hooks", "Run"]


@dataclass(frozen=True)
class Hooks:
    """Functions that make a run's dispatcher and simulation; the defaults are those of a simulated run."""

    dispatcher: Callable[[Experiment], GuardedDispatcher] = make_dispatcher
    simulation: Callable[[Parts, Mapping[str, GrowingText]], Simulation] = lambda parts, _: make_simulation(parts)
    """Makes the simulation from the run's parts and the open files that `files` names."""
    files: tuple[str, ...] = ()
    """The names of further text files that grow, to which the simulation writes."""
    facts: Callable[[], dict[str, Any]] = dict
    """Returns further entries of summary.json."""
    replayable: bool = True
    """Whether the same process can repeat the run, as it does after a divergence."""


SIMULATED_RUN = Hooks()


#: The largest share of a run's time that checkpoints may take: after a slow one, the next comes later.
MOST_CHECKPOINT_SHARE = 0.02


class Run:
    """Simulates one experiment, and writes metrics.csv and the other growing files meanwhile.

    The constructor refuses parts that do not fit together; it touches no file.
    """

    @folder_kept()  # which a user's code may change
    def __init__(
        self,
        prepared: Prepared,
        backend: Backend,
        engine: Engine,
        folder: Path,
        observer: Observer,
        stop: Callable[[], bool],
        length: Length,
        *,
        policy: CheckpointPolicy = NO_CHECKPOINTS,
        stop_at: int | None = None,
        hooks: Hooks = SIMULATED_RUN,
    ) -> None:
        """Make the simulation; `stop_at` is an iteration at which it stops as if interrupted."""
        self._checkpoints, self._seconds_between = Checkpoints(folder, keep=policy.keep), policy.seconds
        self._checkpoint_at = policy.at
        self._prepared, self._backend, self._engine = prepared, backend, engine
        self._own_engine: Engine | None = None  # in its place
        self._observer, self._stop, self._length = observer, stop, length
        # If there is a most of events, a schedule is not to end where each of them would be an update.
        self._drawn = length if length.iterations is None else replace(length, updates=None)
        self._folder, self._stop_at, self._hooks = folder, stop_at, hooks
        self._metrics, self._probe = GrowingText(folder / "metrics.csv"), GrowingText(folder / "probe.csv")
        self._events = EventFile(folder / "events.parquet")
        self._files: list[GrowingFile] = [self._metrics]
        if prepared.experiment.probe is not None:
            self._files.append(self._probe)
        if prepared.experiment.events:
            self._files.append(self._events)
        self._extra_files = {name: GrowingText(folder / name) for name in hooks.files}
        self._files += self._extra_files.values()
        self._measures = measures_of(prepared, backend, engine.threads)
        self._metrics_of_outputs: Metrics | ProblemMetrics | None = None
        self._next_due = 0.0  # the time at which the next checkpoint is due, by time.perf_counter
        self._reached, self._failure = 0, ""  # the last iteration told of; why the last checkpoint was not written
        self._told = -1.0, -1  # the time and the iteration of the last row told of, which a repetition records again
        self.simulation, self.recorder = self._make()
        self.identify({})

    @property
    def measured(self) -> tuple[str, ...]:
        """The columns of metrics.csv that measure the parameters."""
        return tuple(self._measures)

    @property
    def engine(self) -> Engine:
        """The engine that computes it: after a divergence perhaps another than the given one, until `close`."""
        return self._engine

    @property
    def further_bytes(self) -> int:
        """The most bytes so far of what clients' local steps, and the norm of the gradient, take beside the engine."""
        return self.simulation.work_bytes + sum(getattr(one, "buffer_bytes", 0) for one in self._measures.values())

    @property
    def metrics(self) -> tuple[str, ...]:
        """The columns of `evaluation.metrics`."""
        return self._metrics_of_outputs.columns if self._metrics_of_outputs else ()

    @property
    def larger_is_better(self) -> list[str]:
        """The columns of which more is better, as a problem or metrics of the user's own say."""
        if self._engine.problem is not None:
            return self._engine.problem.larger_is_better
        return self._prepared.experiment.evaluation.larger_is_better

    def identify(self, code: Mapping[str, str]) -> None:
        """Set the identity that checkpoints must have; `code` has the SHA-256 of the user's modules, by name."""
        path = self.simulation.choice.path
        self._identity = identity_of_run(
            self._prepared.experiment, self._backend, path, code, self._prepared.model_files,
            self._prepared.dataset.digest, made=self._prepared.model.made,
            numerics=self._engine.numerics, device=self._engine.device_name, threads=self._engine.threads,
        )  # fmt: skip

    def can_go_on(self) -> bool:
        """Return whether there is a checkpoint to continue from; tell the observer why those that are there are none.

        For a live run, which must not begin anew if there is none. A state that does not fit shows only later.
        """
        checkpoint, faults = self._checkpoints.newest(self._identity)
        for fault in faults if checkpoint is None else ():
            self._observer.note(fault)
        return checkpoint is not None

    @folder_kept()
    def newest_checkpoint(self) -> Checkpoint | None:
        """Restore the newest checkpoint that the run can continue from; return it without its state, None if none.

        Tells the observer why newer ones cannot be used. Raises FredsimError if a user's class refuses the state.
        """
        latest = None
        while True:
            checkpoint, faults = self._checkpoints.newest(self._identity, latest)
            for fault in faults:
                self._observer.note(fault)
            if checkpoint is None:
                return None
            try:
                self._restore(checkpoint)
            except Exception as error:  # of any type: the state may be nonsense with correct digests
                if isinstance(error, FredsimError) and self._identity["code"]:  # the user can correct the class
                    raise
                what = f"its state does not fit: {type(error).__name__} {error}"
                self._observer.note(f"the checkpoint at iteration {checkpoint.iteration}: cannot be used ({what})")
                self.simulation, self.recorder = self._make()
                latest = checkpoint.iteration - 1
            else:
                self._observer.note(f"continues from the checkpoint at iteration {checkpoint.iteration}")
                return replace(checkpoint, state={})  # what was restored is not kept a second time

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Restore a checkpoint's state in the simulation, which has not begun. Raises ValueError if it does not fit."""
        names, wanted = sorted(checkpoint.files), sorted(file.name for file in self._files)
        if names != wanted:
            raise ValueError(f"it is of {', '.join(names) or 'no files'}, not of {', '.join(wanted)}")
        if self._identity["code"]:  # what a user's class restores of a state is its own choice: no checks
            self.simulation.put_state(checkpoint.state)
        else:
            with by_reference():  # only these two: the other parts compute something when they are asked for a state
                parts = {"server": self.simulation.server.take_state(), "recorder": self.recorder.take_state()}
            first = {f"{of}.{name}": v for of, part in parts.items() for name, v in part.items()}
            check_types(checkpoint.state, first, np.asarray(self.simulation.server.params))
            self.simulation.put_state(checkpoint.state)
            check_restored(checkpoint.state, self._state())
        self.simulation.spent, self._reached = dict(checkpoint.spent), checkpoint.iteration

    def _state(self) -> State:
        """Return the simulation's state by reference, without copying arrays."""
        with by_reference():
            return self.simulation.take_state()

    @folder_kept()
    def __call__(self, checkpoint: Checkpoint | None = None) -> tuple[Outcome, Recorder]:
        """Run to the end, from a checkpoint if one is given; return how the run ended, and its recorder.

        Updates are made in place. So if the run diverges, it is repeated, from the last checkpoint or else from the
        beginning, up to the event before the divergence: that gives its last finite parameters.
        """
        try:
            return self._run(checkpoint)
        except Diverged as diverged:
            if not self._hooks.replayable:
                raise
            self._length, self._stop, self._seconds_between = Length(diverged.iteration), lambda: False, 0.0
            trusted = self.simulation.declares_state
            self._check_repeatable(diverged)
            with imported_anew(self._identity["code"]):  # a user's module may keep something of the first time
                self._renew_model()
                self.simulation, self.recorder = self._make()
                last, _ = self._checkpoints.newest(self._identity) if trusted else (None, [])
                if last is not None:
                    self._restore(last)
                    last = replace(last, state={})
                try:
                    outcome, recorder = self._run(last)
                except Diverged as again:
                    first, second = diverged.iteration, again.iteration
                    what = (
                        f"diverges at iteration {first}, and at {second} when it is run again to save what was before"
                    )
                    raise SimulationError(
                        f"{what}; a class of the user's keeps something outside its objects"
                    ) from None
            return replace(outcome, status="diverged"), recorder

    @np.errstate(all="ignore")  # as when the start was noted
    def _check_repeatable(self, diverged: Diverged) -> None:
        """Raise SimulationError if a script's or notebook's class has changed it: it cannot be imported anew."""
        if "__main__" in own_modules(self._prepared.experiment.plain()):
            try:
                self.simulation.take_state()
            except SimulationError as error:
                what = f"diverges at iteration {diverged.iteration}, and cannot be run again to save what was before"
                raise SimulationError(f"{what}: {error}; or put the class into a module of its own") from None

    def _renew_model(self) -> None:
        """Make a model of a user's code, and its engine, anew: its objects may keep something of the first time."""
        prepared = self._prepared
        if prepared.model.graph is not None:
            return
        model, size = prepared.experiment.network(prepared.dataset), prepared.experiment.clients.batch_size
        self.close()
        self._prepared, threads = replace(prepared, model=model), self._engine.threads
        self._engine = self._own_engine = make_engine(self._backend, model, prepared.dataset, size, threads)
        self._measures = measures_of(self._prepared, self._backend, threads)

    def close(self) -> None:
        """Close the engine that the run has made itself, if it has."""
        if self._own_engine is not None:
            self._own_engine.close()
            self._own_engine = None

    def events(self, checkpoint: Checkpoint | None = None) -> Generator[Simulation]:
        """Run event by event; yield the simulation at the beginning and after each event. Raises Diverged."""
        if checkpoint is not None:
            with resume_errors(checkpoint, self._checkpoints.folder.parent):
                self._restore(checkpoint)
        simulation, length = self.simulation, self._length
        with self._open_files(checkpoint):
            yield simulation
            while length.events_left(simulation.iteration, simulation.server.timestamp) != 0:
                before = simulation.iteration
                simulation.process_until(replace(length, iterations=before + 1))
                if simulation.iteration == before:  # the clock has passed the run's end
                    return
                yield simulation

    @np.errstate(all="ignore")  # a run that overflows diverges, which is reported
    def _run(self, checkpoint: Checkpoint | None) -> tuple[Outcome, Recorder]:
        """Run to the end, from a checkpoint if one was restored."""
        self._next_due = time.perf_counter() + self._seconds_between
        with self._open_files(checkpoint):
            try:
                return self.simulation.run(self._length, self._interrupted), self.recorder
            except ClusterError:  # the events so far are kept, and the run can continue from them
                self._interrupted()
                raise

    @contextmanager
    def _open_files(self, checkpoint: Checkpoint | None) -> Iterator[None]:
        """Open the growing files, cut back to what they were at a checkpoint if one was restored."""
        for file in self._files:
            file.size = 0 if checkpoint is None else checkpoint.files[file.name].size
        with ExitStack() as opened:
            for file in self._files:
                opened.enter_context(file)
            if checkpoint is None:
                csv.writer(self._metrics, lineterminator="\n").writerow(self.recorder.columns)
            yield

    def _progress(self, iteration: int, timestamp: int, seconds: float) -> None:
        """Tell the observer how far the run is, and write a checkpoint if one is due."""
        self._observer.advance(iteration, timestamp, seconds)
        moved, self._reached = iteration > self._reached, iteration
        # Nothing is written where no event was processed, as when only the clock's end showed: so of each iteration
        # there is one state, which `verify` compares.
        due = iteration == self._checkpoint_at or time.perf_counter() >= self._next_due
        if self._seconds_between and moved and due:
            self._checkpoint()

    def _interrupted(self) -> None:
        """Write a checkpoint from which the interrupted run can continue, unless checkpoints are off."""
        if self._seconds_between:
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Write a checkpoint; if that fails, tell the observer why, and let the run continue without it."""
        began, simulation = time.perf_counter(), self.simulation
        files = {file.name: file.prefix for file in self._files}
        try:
            state, spent = self._state(), simulation.spent_so_far()
            self._checkpoints.write(Checkpoint(simulation.iteration, self._identity, files, state, spent))
            self._observer.checkpoint(simulation.iteration)
            self._failure = ""
        except (SimulationError, OSError) as error:
            known, self._failure = self._failure, str(getattr(error, "strerror", None) or error)
            if self._failure != known:  # not again and again
                self._observer.note(f"no checkpoint at iteration {simulation.iteration}: {self._failure}")
        now = time.perf_counter()
        self._next_due = now + max(self._seconds_between, (now - began) / MOST_CHECKPOINT_SHARE)

    @np.errstate(all="ignore")
    def _make(self) -> tuple[Simulation, Recorder]:
        """Return a new simulation, which has not begun, and its recorder."""
        prepared, experiment = self._prepared, self._prepared.experiment
        streams = Streams(experiment.seed)
        dispatcher, size = self._hooks.dispatcher(experiment), experiment.clients.batch_size
        server, protocol = make_server(experiment)
        params = prepared.model.initial(streams)
        if not np.isfinite(params).all():
            raise ConfigError("model.init gives parameters that are not finite in float32; choose smaller ones")
        self._metrics_of_outputs = metrics_of(prepared, self._engine)
        evaluation, clients = experiment.evaluation, experiment.clients.count
        recorder = self._make_recorder(self._engine.problem)
        how = {"timed": dispatcher.timed, "may_give_up": dispatcher.may_give_up}
        log = EventLog(self._events, clients, **how) if experiment.events else None
        probe, wanted = None, experiment.probe
        if wanted is not None:
            probe = Probe(wanted.every, self._probe, prepared.model.layout.slices if wanted.per_tensor else None)
        parts = Parts(
            model=prepared.model,
            params=params,
            engine=self._engine,
            server=server,
            dispatcher=dispatcher,
            protocol=protocol,
            sampler=prepared.dataset.sampler(experiment.clients.sampling, size, streams, prepared.shards),
            streams=streams,
            clients=clients,
            length=prepared.length,  # of the whole run, even if only a part is done now: the path depends on it
            drawn=self._drawn,
            limits=Limits(experiment.window, self._memory(), self._folder),
            path=experiment.path,
            backend=self._backend,
            interval=prepared.interval,
            test=evaluation.test,
            measures=self._measures,
            single=partial(make_engine, self._backend, prepared.model, prepared.dataset, 1, 1),
            metrics=self._metrics_of_outputs,
            stages=prepared.stages,
            recorder=recorder,
            progress=self._progress,
            stop=self._stop,
            stop_at=self._stop_at,
            probe=probe,
            log=log,
            goal=None if experiment.until is None else self._goal(*experiment.until.goal),
            outside=self._outside(),
        )
        simulation = self._hooks.simulation(parts, self._extra_files)
        if parts.outside is not None:
            parts.outside.note_start()
        if log is not None:
            self._events.columns = log.columns
        return simulation, recorder

    def _goal(self, column: str, value: float) -> Goal:
        """Return the run's goal. Raises ConfigError if a problem of the user's own has no such column."""
        problem = self._engine.problem
        if problem is not None and column not in problem.all_columns:
            what = f"is of what evaluate of {problem.name} does not return{nearest(column, problem.all_columns)}"
            raise ConfigError(f"until.{column}: {what} (known: {', '.join(problem.all_columns)})")
        return Goal(column, value, larger=column in self.larger_is_better)

    def _make_recorder(self, problem: OwnProblem | None) -> Recorder:
        """Return the recorder, which writes rows to metrics.csv; `problem` may have no losses."""
        evaluation, clients = self._prepared.experiment.evaluation, self._prepared.experiment.clients.count
        writer = csv.writer(self._metrics, lineterminator="\n")

        def on_row(row: Row) -> None:
            check_subnormals()
            writer.writerow(row.values())
            if (row.time, row.iteration) > self._told:
                self._told = row.time, row.iteration
                self._observer.row(row)

        more = [*(TEST if evaluation.test else ()), *self._measures, *self.metrics]
        counted = clients if evaluation.per_client else 0
        losses = problem is None or bool(problem.has_losses)
        return Recorder(on_row, more=more, clients=counted, losses=losses)

    def _outside(self) -> Outside | None:
        """Return what looks at what users' functions keep; None if there are none."""
        network, metrics = self._prepared.model, self._metrics_of_outputs
        plain = self._prepared.experiment.plain()
        of_rates = (plain.get("server"), (plain.get("clients") or {}).get("optimizer"))
        rates = [part for part in of_rates if part and ":" not in part["name"]]  # which may have others inside
        stateless = named_objects([plain.get("problem"), (plain.get("data") or {}).get("augment"), *rates])
        functions = [*network.functions, *(metrics.functions if metrics else ()), *stateless]
        return Outside(functions, network.kept) if functions else None

    def _memory(self) -> int | None:
        """Return how many bytes of the limit `memory` the data leaves for what clients hold; None if there is none."""
        limit = self._prepared.experiment.memory
        return None if limit is None else max(0, int(limit) - self._prepared.dataset.nbytes)
