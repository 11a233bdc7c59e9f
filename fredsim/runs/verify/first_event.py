"""Finds the first event at which two recorded runs differ, by running both again, event by event, side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.config.registry import own_modules
from fredsim.errors import FredsimError
from fredsim.plugins.modules import imported_anew
from fredsim.plugins.state.state_arrays import same
from fredsim.runs.checkpoint.checkpoints import Checkpoints
from fredsim.runs.folder.results import Result
from fredsim.runs.processes.observer import Observer
from fredsim.runs.single.backend_choice import chosen_backend
from fredsim.runs.single.prepared import prepare
from fredsim.runs.single.run import Hooks, Run
from fredsim.runs.verify.differences import last_common_row
from fredsim.runs.verify.verify import identity_of, recorded_experiment, threads_of
from fredsim.simulation.clients.outbox import PendingPush
from fredsim.simulation.clients.pushes import EventObserver
from fredsim.simulation.paths.backends import make_engine
from fredsim.simulation.paths.loop import Diverged, Simulation
from fredsim.simulation.paths.start import make_simulation
from fredsim.system.files import scratch_folder

__all__ = ["first_event", "replay"]

#: The fields of EventDetails that two runs are compared by, in the order in which they come about.
EVENT_PARTS = ("order", "minibatch", "gradient", "push", "update")

NOTHING = np.empty((0, 0), np.int64)


@dataclass(eq=False)
class EventDetails:
    """What happened at one event."""

    order: tuple[int, int, int]
    """The client, the timestamp of the parameters that it used, and the time in nanoseconds, 0 without a clock."""
    minibatch: NDArray[np.int64]
    """The samples (k, µ) of the k local steps."""
    gradient: NDArray[np.float32]
    """What the client computed from them (P,)."""
    push: NDArray[np.float32] | None
    """What reached the server (P,), None if the push was dropped."""
    update: NDArray[np.float32]
    """The server's parameters after the event (P,)."""

    @property
    def client(self) -> int:
        """The client that arrived."""
        return self.order[0]


class LastEvent(EventObserver):
    """Keeps the details of the last event."""

    details: EventDetails

    def __init__(self) -> None:
        self._minibatches: dict[int, NDArray[np.int64]] = {}  # by client: those of its task that has not arrived yet

    def computed(self, clients: Sequence[int], rows: Sequence[NDArray[np.int64]]) -> None:
        """Keep each client's samples."""
        self._minibatches |= {client: samples.copy() for client, samples in zip(clients, rows, strict=True)}

    def arrives(self, client: int, timestamp: int, time: int, pending: PendingPush) -> None:
        """Keep who arrives, and with what."""
        gradient = np.asarray(pending.push).copy()
        push = None if pending.message is None else np.asarray(pending.message.push).copy()
        samples = self._minibatches.pop(client, NOTHING)  # of a task that was given up, nothing may be computed
        self.details = EventDetails((client, timestamp, time), samples, gradient, push, gradient)

    def arrived(self, iteration: int, params: NDArray[np.float32]) -> None:
        """Keep the parameters."""
        self.details.update = np.asarray(params).copy()


Root = str | os.PathLike[str] | None


def first_event(one: Result, other: Result, *, root: Root = None, observer: Observer | None = None) -> str:
    """Say at which event two runs first differ, and in what, when they are run again.

    These parts of each event are compared, in this order: who arrived when, and from which timestamp the task started
    (order); the samples (minibatch); what the client computed from them (gradient); what reached the server (push); the
    parameters after the event (update). The runs are done again on the path `snapshots`, which has the same bits as
    every path, from the last checkpoints before the first row that differs, if both kept some on that path. If they
    cannot be run again, the text says why.
    """
    observer, before = observer or Observer(), last_common_row(one, other)
    try:
        identities = [identity_of(result, root) | {"path": "", "data": None} for result in (one, other)]
        if identities[0] == identities[1]:
            return "both repeat to the same run: `fredsim verify` says which differs from what it recorded"
        starts = [_last_checkpoint(result, before, root) for result in (one, other)]
        found = None if None in starts else _side_by_side(one, other, starts, root, observer)
        return found or _side_by_side(one, other, [None, None], root, observer) or "run again they do not differ"
    except FredsimError as error:
        return f"they cannot be run again: {error}"


def _side_by_side(
    one: Result, other: Result, starts: Sequence[int | None], root: Root, observer: Observer
) -> str | None:
    """Run both event by event from these checkpoints (None: from the beginning); return what differs first.

    Return None if nothing differs, or if the checkpoints themselves already differ.
    """
    with ExitStack() as opened, np.errstate(all="ignore"):
        (a, left), (b, right) = (
            opened.enter_context(_rerun(result, start, root, run_observer))
            for result, start, run_observer in zip((one, other), starts, (observer, Observer()), strict=True)
        )
        while a.iteration != b.iteration:
            next(left if a.iteration < b.iteration else right)
        if not same(*(np.asarray(run.server.params) for run in (a, b))):
            return "the parameters differ before the first event" if None in starts else None
        for ours, theirs in zip_longest(left, right, fillvalue="ends"):
            if ours == theirs == "diverges":
                return None
            at = f"iteration {max(a.iteration, b.iteration) - 1}"
            for event, run in ((ours, one), (theirs, other)):
                if isinstance(event, str):
                    return f"{at}: {run.folder} {event}, the other one does not"
            assert isinstance(ours, EventDetails)
            assert isinstance(theirs, EventDetails)
            for name in EVENT_PARTS:
                if not same(getattr(ours, name), getattr(theirs, name)):
                    return f"{at}: {_describe_difference(name, ours, theirs)}"
    return None


def _events(simulations: Iterator[Simulation], last: LastEvent) -> Iterator[EventDetails | str]:
    try:
        for _ in simulations:
            yield last.details
    except Diverged:
        yield "diverges"


@contextmanager
def _rerun(
    result: Result, start: int | None, root: Root, observer: Observer
) -> Iterator[tuple[Simulation, Iterator[EventDetails | str]]]:
    """Run a recorded run again, from checkpoint `start` (None: from the beginning); give its simulation and its events.

    "diverges" comes after these if it does.
    """
    experiment, last = recorded_experiment(result), LastEvent()
    experiment = experiment.model_copy(update={"path": "snapshots", "memory": None})
    with ExitStack() as opened:
        scratch = opened.enter_context(scratch_folder())
        with imported_anew(own_modules(experiment.plain())):  # the two runs share nothing of a user's modules
            prepared, size = prepare(experiment, root), experiment.clients.batch_size
            model = prepared.model
            backend = chosen_backend(experiment, model.layout.size, model.graph, prepared.dataset, prepared.length)
            engine = make_engine(backend, model, prepared.dataset, size, experiment.threads or threads_of(result))
            opened.callback(engine.close)
            run = Run(
                prepared, backend, engine, scratch, observer, lambda: False, prepared.length,
                hooks=Hooks(simulation=lambda parts, _: make_simulation(replace(parts, observer=last))),
            )  # fmt: skip
        observer.begin(result.folder.name, prepared.length.iterations, prepared.length.updates, experiment.seconds)
        checkpoint = None
        if start is not None:
            Checkpoints(result.folder).copy(start, scratch)
            checkpoint = Checkpoints(scratch).read(start)
        simulations = run.events(checkpoint)
        opened.callback(simulations.close)
        yield next(simulations), _events(simulations, last)


@contextmanager
def replay(result: Result, root: Root = None) -> Iterator[Iterator[EventDetails]]:
    """Give the events of a recorded run, which is run again event by event."""
    with _rerun(result, None, root, Observer()) as (_, events):
        yield (event for event in events if isinstance(event, EventDetails))


def _last_checkpoint(result: Result, before: int, root: Root) -> int | None:
    """Return the iteration of the last checkpoint on path `snapshots` up to `before`, None if the run kept none."""
    if result.summary["path"] != "snapshots":
        return None
    found, _ = Checkpoints(result.folder).newest(identity_of(result, root), before)
    return None if found is None else found.iteration


def _describe_difference(name: str, one: EventDetails, other: EventDetails) -> str:
    """Say how a part of an event differs."""
    if name == "order":
        texts = (f"client {c} at {t:,} ns from timestamp {s}" if t else f"client {c} from timestamp {s}"
                for c, s, t in (one.order, other.order))  # fmt: skip
        return f"the order differs: {' and '.join(texts)}"
    ours, theirs = getattr(one, name), getattr(other, name)
    if ours is None or theirs is None:
        return f"client {one.client}'s push is dropped in one of them"
    at = "" if ours.shape != theirs.shape else _first_place(ours, theirs)
    return f"client {one.client}'s {name} differs{at}"


def _first_place(one: Any, other: Any) -> str:
    """Say where two arrays of one shape first differ, and in how many places they do."""
    bits = np.uint32 if one.dtype == np.float32 else one.dtype
    unequal = np.flatnonzero(np.ascontiguousarray(one).view(bits) != np.ascontiguousarray(other).view(bits))
    values = [repr(array.reshape(-1)[unequal[0]].item()) for array in (one, other)]
    return f" in {len(unequal):,} of {one.size:,} numbers, first at {unequal[0]}: {values[0]} and {values[1]}"
