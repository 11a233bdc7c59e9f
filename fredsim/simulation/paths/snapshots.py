"""The path `snapshots`, which can compute any run: clients hold snapshots of the parameters, as they fetched them.

A gradient depends only on the parameters that its client fetched and on its minibatch, so the gradients of the next few
arrivals are computed together, if they come from different clients. How many these are (the window) changes no bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from operator import sub

import numpy as np

from fredsim.dispatchers.local_steps import TaskSteps
from fredsim.errors import ConfigError
from fredsim.numerics.arrays import Array, Integers
from fredsim.plugins.state.states import Stateful
from fredsim.simulation.clients.control_variates import ControlVariates
from fredsim.simulation.clients.holdings import Holdings
from fredsim.simulation.clients.outbox import Message, Outbox, PendingPush
from fredsim.simulation.clients.participation import Participation
from fredsim.simulation.clients.stages import PipelineParams
from fredsim.simulation.paths.choice import Choice
from fredsim.simulation.paths.loop import Diverged, Parts, Simulation
from fredsim.simulation.paths.probe import Probe
from fredsim.simulation.plugins.contract import Contract, without_average
from fredsim.simulation.plugins.guarded_plugins import GuardedDispatcher
from fredsim.simulation.plugins.guarded_server import PushResult
from fredsim.simulation.plugins.local_work import LocalWork, Tasks
from fredsim.simulation.plugins.protocol import Protocol, counts_whole
from fredsim.simulation.schedule.guarded_clock import GuardedClock
from fredsim.simulation.schedule.length import Length
from fredsim.simulation.schedule.schedule import Arrivals, Schedule
from fredsim.system.memory import refuse_what_clients_hold

__all__ = ["Snapshots", "pushes_may_be_cancelled"]


def pushes_may_be_cancelled(dispatcher: GuardedDispatcher, contract: Contract) -> bool:
    """Return whether the server may restart clients whose pushes are on their way: if these take time."""
    return contract.cancels and isinstance(dispatcher, GuardedClock) and not dispatcher.clock.sends_on_arrival


def _must_send_early(protocol: Protocol, contract: Contract, *, may_cancel: bool) -> bool:
    """Return whether pushes are computed before they arrive: for their bytes, or because clients keep something.

    That changes when a task is done, even if its push never arrives.
    """
    sized = protocol.push_gate or protocol.compressor or contract.bytes_pushed
    return bool(sized or protocol.work.own or (protocol.work.keeps and may_cancel))


class Snapshots(Simulation):
    """The path `snapshots`: clients hold the parameters they fetched; for any server, gate and compressor."""

    def __init__(self, parts: Parts, choice: Choice) -> None:
        super().__init__(parts, choice)
        contract, protocol, wait = self.server.contract, parts.protocol, parts.protocol.wait
        tensors, self._pool = list(self._layout.slices.values()), parts.pool
        self._share_versions = True  # whether several clients may fetch at one timestamp
        self._check_memory()
        self._client_work = protocol.work
        #: Whether clients take steps of their own, by the learning rate that the server had when they fetched.
        self._own_steps = protocol.replica or protocol.work.takes_steps
        self._work = self._make_work()
        self._pipeline = self._make_pipeline()
        self._holdings = Holdings(
            parts.engine, parts.params, parts.clients,
            wait=wait, work=self._work, tensors=tensors, pool=self._pool,
            rates=self._own_steps, pipeline=self._pipeline,
            current=(lambda: self.server.params) if protocol.current else None,
        )  # fmt: skip
        self._pushes, self._observer = parts.pushes(self._holdings), parts.observer
        if (statistics := parts.engine.statistics) is not None:
            statistics.begin()
        self._statistics = statistics
        if contract.checked and protocol.fetch_gate is None and not (contract.fetch or contract.begins):
            self.server.check = self._holdings.check
        self._warm()
        self._may_cancel = pushes_may_be_cancelled(self._dispatcher, contract)
        self._outbox = Outbox(protocol.dropped_push, tensors, parts.engine.operations, may_cancel=self._may_cancel)
        gates = protocol.gates
        self._arrivals = Arrivals(self._dispatcher, gates, parts.clients, wait=wait, length=parts.length)
        clock = self._dispatcher if isinstance(self._dispatcher, GuardedClock) else None
        self._clock = clock if clock is not None and clock.reacts else None  # told when clients continue
        #: How many local steps a task has.
        self._steps: int | TaskSteps = protocol.work.steps
        if clock is not None and (steps := clock.clock.task_steps) is not None:
            self._steps = steps
        self._sends_early = False  # whether a push is computed as soon as its gradient is done: the clock asks for it
        if self._clock is not None and not self._clock.clock.sends_on_arrival:
            self._sends_early = _must_send_early(protocol, contract, may_cancel=self._may_cancel)
        if self._clock is not None and (self._sends_early or self._may_cancel):
            self._clock.clock.on_gradient_done = self._send_early if self._sends_early else self._note_done
            if self._log is not None:
                self._log.early = True
        #: Whether a push is needed after its update: a replica steps with it.
        self._keeps_pushes = protocol.replica or parts.observer is not None
        #: Returns how many pushes are certain to come before any client continues, if replies or times decide that.
        self._until_release: Callable[[], int] | None = self.server.pushes_until_release if contract.holds else None
        drawn = protocol.fraction < 1
        one_by_one = self._sends_early or ((self._clock is not None or drawn) and not contract.holds)
        if one_by_one:
            self._until_release = lambda: 1
        #: Draws the clients that are at work, if that is only a share of them.
        self._participation = Participation(parts.clients, parts.streams) if drawn else None
        # A window is one event if an event may change the next one: a restart discards a task under way; a dropped copy
        # or a task given up changes which clients are held.
        held_differ = contract.holds and (gates or self._dispatcher.may_give_up)
        certain = not (contract.cancels or held_differ or protocol.work.own or protocol.current)
        if parts.engine.takes_current:
            self._let_gradients_take_current()
        certain = certain and not parts.engine.takes_current
        self._window = self._fix_window(1 if not certain else parts.limits.window, alone=one_by_one)

    def _fix_window(self, wanted: int | None, *, alone: bool) -> int:
        """Return how many events are computed together; `alone`: one gradient at a time, as no other path could."""
        parts = self._parts
        if parts.engine.numerics == "native" and (alone if wanted is None else self._own_steps):
            wanted = 1  # by all threads; steps of several would be one minibatch
        return int(parts.engine.fix_window(wanted, parts.clients, parts.params.nbytes))

    def _let_gradients_take_current(self) -> None:
        """Give the engine the server's parameters at each arrival. Raises ConfigError if gradients are done earlier."""
        why = ""
        if self._client_work.takes_steps:
            why = "clients take steps of their own (clients.local_steps, clients.optimizer, or the server's)"
        elif self._sends_early:
            why = "pushes travel for a time that a gate or a compressor has a part in, so they are made earlier"
        if why:
            what = "its gradient takes current, the server's parameters when a push arrives"
            raise ConfigError(f"problem.name: {what}; {why}: leave one of them out")
        self._engine.current = lambda: self.server.params

    def _check_memory(self) -> None:
        """Raise ConfigError if what clients may hold, and what is kept for them, may exceed this machine's memory."""
        parts, contract = self._parts, self.server.contract
        if parts.limits.memory is None and parts.engine.device_name is None and not contract.holds:
            copies = 1 + parts.most_tasks(parts.at_work * parts.protocol.tasks_per_client)
            copies *= 2 if parts.path == "live" else 1  # what waits for a worker, or is sent to one, is a copy, too
            own = contract.per_client + parts.protocol.work.kept_arrays
            if parts.stages is not None:  # a version is not shared by several clients if these fetch one by one
                own += parts.stages.arrays + parts.stages.depth
            arrays = own * parts.most_tasks(parts.clients)
            what, each = f"{copies:,} copies of the parameters that they may hold", parts.params.nbytes
            refuse_what_clients_hold(parts.clients, what, copies * each, arrays, each)

    def _rate(self) -> float | None:
        """Return the server's present learning rate, for a client that fetches; None if clients take no own steps."""
        return self._client_work.rate(self.server) if self._own_steps else None

    def _make_work(self) -> LocalWork:
        parts, work = self._parts, self._client_work
        self._control = None
        if work.control_variates:
            self._control = ControlVariates(
                parts.params.size, parts.clients, parts.engine.operations, lambda: parts.pool
            )
        return LocalWork(
            parts.engine, parts.params.size, work,
            streams=parts.streams, single=parts.single, pool=lambda: parts.pool, control=self._control,
        )  # fmt: skip

    def _make_pipeline(self) -> PipelineParams | None:
        """Return what composes the parameters of clients that are pipelines; None if they are none."""
        stages, engine = self._parts.stages, self._parts.engine
        if stages is None:
            return None
        assert engine.two_vectors or not stages.two_vectors  # preparing the run has refused others
        if stages.reschedule is not None:
            without_average(self.server.inner).rates_of_parts = stages.rates
        return PipelineParams(stages, self._parts.params.size, engine.operations, lambda: self._parts.pool)

    def _warm(self) -> None:
        """Compile now, so that compilation is not counted in the run's time."""
        nothing = np.empty((0, 1), np.int64)
        if self._parts.stages is not None and self._parts.stages.two_vectors:
            self._engine.gradients_at_two([], [], nothing)
        else:
            self._engine.gradients([], nothing)
        if any(gate.needs_statistics for gate in self._parts.protocol.gates):
            self._parts.engine.operations.mean(self._parts.params)

    def _limit(self, length: Length) -> int:
        """Return how many of the next events may be computed together; all of them certainly belong to the run."""
        left, stop_at = length.events_left(self.iteration, self.server.timestamp), self._parts.stop_at
        pause = None if stop_at is None else stop_at - self.iteration
        limit = min(count for count in (self._window, left, pause) if count is not None)
        if self._parts.goal is not None:  # a row may end the run
            row = self._interval.events_until_due(self.iteration, self.server.timestamp)
            limit = 1 if row is None else min(limit, row)
        probe = self._parts.probe
        return limit if probe is None else min(limit, probe.events_until_due(self.iteration))

    @property
    def work_bytes(self) -> int:
        """The bytes of the arrays in which clients take their steps."""
        return self._work.nbytes

    def _stateful_parts(self) -> dict[str, Stateful]:
        own: dict[str, Stateful] = {"arrivals": self._arrivals, "holdings": self._holdings, "outbox": self._outbox}
        more: dict[str, Stateful | None] = {"control": self._control, "participation": self._participation}
        more |= {"work": self._work if self._client_work.keeps else None, "statistics": self._statistics}
        more |= {"pipeline": self._pipeline}
        own |= {name: part for name, part in more.items() if part is not None}
        return super()._stateful_parts() | own | {"live": self._pushes}

    def _start(self) -> None:
        if self._holdings.lacks_rates:  # before any event, so that it is the rate of the initial parameters
            self.server.set_event(None, self.iteration)
            self._holdings.set_first_rate(self._client_work.rate(self.server))
        if self._participation is not None and not self._participation.begun:
            self._participation.draw(self._parts.at_work)
            for client in self._participation.idle():
                self._dispatcher.hold(client)
                self._holdings.leave(client)
        held = self._dispatcher.held
        self._pushes.start(client for client in range(self._parts.clients) if client not in held)

    def _advance(self, length: Length) -> None:
        """Compute the pushes of the next few arrivals together, then process these events one by one."""
        schedule = self._arrivals.next(self.iteration, self._limit(length), until_release=self._until_release)
        if not len(schedule):
            self._ended = True
            return
        clients = schedule.client.tolist()
        times, found = [0] * len(clients) if schedule.time is None else schedule.time.tolist(), []
        self._pass_time(times[0])
        if self._goal_reached:  # a row on the clock, due before this event, reached the goal
            return
        given_up = [False] * len(schedule) if schedule.given_up is None else (schedule.given_up > 0).tolist()
        if (probe := self._parts.probe) is not None and probe.due(self.iteration) and not given_up[0]:
            self._measure(probe, schedule.first(1))
        if self._sends_early:
            found = [self._arrive(clients[0], self._outbox.under_way.pop(clients[0]))]
        else:
            pushes, losses, finite = self._compute(clients, self._tasks(schedule), given_up)
            sent = self._sent(schedule).tolist()
            for i, client in enumerate(clients):
                if not finite[i] and not given_up[i]:
                    raise Diverged(self.iteration)
                self._pass_time(times[i])
                self.server.set_event(client, self.iteration)
                message = None if given_up[i] else self._send(client, pushes[i], sent[i])
                found.append(self._arrive(client, PendingPush(message, pushes[i], losses[i], given_up[i])))
        if self._log is not None:
            timestamp, staleness, *copies = np.array(found, np.int64).T
            self._log.add(schedule, self.iteration - len(found), timestamp, staleness, copies=copies)

    def _pass_time(self, time: int) -> None:
        """Advance the clock, if there is one, to an event at `time`; record the rows that are due before it."""
        if self._dispatcher.timed:
            self._record_rows_before(time)
            self.time = self.time if self._goal_reached else time

    def _compute(
        self, clients: list[int], tasks: Tasks, given_up: Sequence[bool]
    ) -> tuple[Sequence[Array], Array, Sequence[bool]]:
        """Return what clients push, their samples' losses, and if all was finite, as Pushes.compute does.

        What a task that was given up would have pushed means nothing.
        """
        if self._client_work.keeps and any(given_up):  # such a task leaves what its client keeps as it was
            return self._compute_some(clients, tasks, given_up)
        pushes, losses, finite = self._pushes.compute(clients, tasks)
        if self._observer is not None:
            self._observer.computed(clients, tasks.samples())
        return pushes, losses.copy(), finite  # the recorder keeps losses, and the engine reuses its arrays

    def _compute_some(
        self, clients: list[int], tasks: Tasks, given_up: Sequence[bool]
    ) -> tuple[Sequence[Array], Array, Sequence[bool]]:
        """Compute only the tasks that were not given up."""
        places = [place for place, lost in enumerate(given_up) if not lost]
        nothing = self._operations.zeros(len(self._parts.params))
        pushes, finite = [nothing] * len(clients), [True] * len(clients)
        losses = np.zeros((len(clients), tasks.rows[0].size if tasks.steps is None else 1), np.float32)
        if places:
            found = self._compute([clients[place] for place in places], tasks.some(places), [False])
            for place, push, own, whole in zip(places, *found, strict=True):
                pushes[place], losses[place], finite[place] = push, own, whole
        return pushes, losses, finite

    def _send_early(self, client: int, number: int, sent: int) -> int:
        """Compute a client's push and send it, before it arrives; return its bytes, 0 if it is dropped."""
        tasks = Tasks.of(self._sampler, self._steps, np.array([sent]), np.array([client]), np.array([number]))
        (push,), (losses,), (finite,) = self._compute([client], tasks, [False])
        if not finite:
            raise Diverged(self.iteration)
        message = self._send(client, push, sent)
        if message is not None:  # the engine reuses its arrays
            message = replace(message, push=self._copy(message.push))
        self._outbox.under_way[client] = PendingPush(message, self._copy(push), losses)
        return self._note_done(client, number, sent, 0 if message is None else message.size)

    def _note_done(self, client: int, number: int, sent: int, size: int | None = None) -> int:
        """Note that a client's gradient is done and a push of `size` bytes is on its way; return these bytes."""
        if self._log is not None:
            self._log.note_done(client, number)
        size = self._parts.params.nbytes * self._client_work.copied_arrays if size is None else size
        self._outbox.on_way[client] = size
        return size

    def _cancel(self, client: int) -> None:
        """Cancel the push of a client that is on its way, if there is one: it counts as sent, but never arrives."""
        if self._statistics is not None:
            self._statistics.cancelled(client)
        size = self._outbox.cancel(client)
        if size is None:
            return
        if size and self._protocol.compressor is not None:
            self._protocol.compressor.cancelled(client, self.iteration)
        self._recorder.count_push(size, None, client)

    def _copy(self, push: Array) -> Array:
        room = self._operations.zeros(len(push))
        self._operations.duplicate(push, room)
        return room

    def _tasks(self, schedule: Schedule) -> Tasks:
        return Tasks.of(self._sampler, self._steps, self._sent(schedule), schedule.client, schedule.number)

    def _sent(self, schedule: Schedule) -> Integers:
        """Return how many gradients were done before each arrival's own (B,)."""
        return np.arange(self.iteration, self.iteration + len(schedule)) if schedule.sent is None else schedule.sent

    def _measure(self, probe: Probe, schedule: Schedule) -> None:
        """Let the probe measure the next arrival, the only one of `schedule`."""
        begin, kernels = time.perf_counter(), self._engine.seconds
        client, tasks = int(schedule.client[0]), self._tasks(schedule)
        rows, keys = tasks.rows[0, 0], tasks.keys(self._parts.streams.seed, 0)
        own = self._holdings, self.server, self._work, self._operations
        probe.measure(self.iteration, client, rows, keys, *own)
        self._seconds_before += self._engine.seconds - kernels
        probe.seconds += time.perf_counter() - begin

    def _arrive(self, client: int, pending: PendingPush) -> tuple[int, ...]:
        """Process one event: give the client's push to the server, follow the reply, and let clients fetch.

        Returns the timestamp before, the staleness, and this event's pushes, fetches, bytes pushed and bytes fetched.
        """
        server, recorder, before, message = self.server, self._recorder, self.server.timestamp, pending.message
        fetched, sent = recorder.fetched, message.size if message else 0
        if self._observer is not None:
            self._observer.arrives(client, self._holdings.timestamp(client), self.time, pending)
        self._outbox.arrived(client)
        if self._statistics is not None and not pending.given_up:
            self._statistics.arrived(client, reached=sent > 0)  # not with a push that is applied again
        elif self._statistics is not None:
            self._statistics.cancelled(client)
        started_from = self._holdings.timestamp(client) if message is None else message.timestamp
        server.set_event(client, self.iteration)
        if pending.given_up:
            pushed = server.given_up(client, started_from, self.iteration)
        elif message is None:  # nothing reached the server: this client alone continues
            pushed = PushResult((client,), (), finite=True)
        else:
            needed = message.needed or self._keeps_pushes
            if server.contract.tell_time and self._dispatcher.timed:
                server.tell_time(self.time / 1e9)
            pushed = server.push(message.push, client, message.timestamp, self.iteration, needed=needed)
        if not pushed.finite:
            raise Diverged(self.iteration)
        if message is not None:
            recorder.count_applied(before - message.timestamp, client)
            if self._control is not None:
                self._control.arrived(client)
        recorder.count_push(sent, None if pending.given_up else pending.losses, client)
        if not self._protocol.wait:
            self._begin(client)
        for other in self._who_continues(pushed.released):
            size = self._go_on(other)
            stays = not size and self._protocol.replica and other == client and not pending.given_up
            if stays and not self._holdings.step(client, pending.push):
                raise Diverged(self.iteration)
            if self._protocol.wait:
                self._begin(other)
            self._release(other, size)
        for other in pushed.restarted:
            self._cancel(other)
            size = self._fetch(other)
            self._begin(other)  # its task under way is given up: it starts over even if `wait` is false
            if self._clock is not None:
                self._clock.clock.restart(other, size)
                self._note_begun(other)
            else:
                self._arrivals.give_up(other)
        self.iteration += 1
        if self._interval.due(self.iteration, server.timestamp, before):
            self._record()
        if self._observer is not None:
            self._observer.arrived(self.iteration - 1, server.params)
        fetches, received = map(sub, recorder.fetched, fetched)
        return before, before - started_from, int(sent > 0), fetches, sent, received

    def _release(self, client: int, size: int) -> None:
        """Tell the dispatcher that a client continues, with a fetch of so many bytes."""
        if self._clock is not None:
            self._clock.release(client, size)
            self._note_begun(client)
        elif self.server.contract.holds or self._participation is not None:
            self._dispatcher.release(client)

    def _note_begun(self, client: int) -> None:
        """Note in the events that a client that may have waited, or that was restarted, begins its next task."""
        if self._log is not None:
            self._log.note_begun(client, self.time)

    def _who_continues(self, released: Sequence[int]) -> Sequence[int]:
        """Return the clients that fetch and continue: those released, or as many that are drawn among the idle ones."""
        if self._participation is None:
            return released
        drawn, idle = self._participation.replace(released)
        for client in idle:
            self._holdings.leave(client)
        return drawn

    def _send(self, client: int, push: Array, step: int) -> Message | None:
        """Return what reaches the server of a client's push; `step` is how many gradients were done before it."""
        protocol, started_from = self._protocol, self._holdings.timestamp(client)
        if protocol.push_gate is None:
            decoded, size = self._compress(client, step, push)
            return Message(decoded, started_from, size)
        passes = protocol.push_gate.passes(step, client, self.server)
        if protocol.compressor is not None and not isinstance(passes, bool):
            raise ConfigError("compress is given; a push that passes tensor by tensor cannot be compressed as one")
        contract = self.server.contract
        if not isinstance(passes, bool) and contract.bytes_pushed:
            raise ConfigError(counts_whole("push"))
        if contract.pushes == "params" and not isinstance(passes, bool) and protocol.dropped_push == "skip":
            instead = "" if contract.fetch else "dropped_push: reapply, or "
            raise ConfigError(
                "dispatcher.push passes tensor by tensor, and the server's clients push parameters: zeros would take "
                f"the place of a tensor that does not pass; give {instead}a gate for whole pushes"
            )
        return self._outbox.offer(client, push, started_from, passes, partial(self._compress, client, step))

    def _compress(self, client: int, step: int, push: Array) -> tuple[Array, int]:
        if size := self._pushes.size:
            return push, size
        if self._protocol.compressor is None:
            return push, self.server.bytes_of("pushed", push.nbytes) + push.nbytes * (
                self._client_work.copied_arrays - 1
            )
        return self._protocol.compressor.compress(push, client, step)

    def _begin(self, client: int) -> None:
        """Let a client begin its next task from what it holds."""
        holdings = self._holdings
        if not self._protocol.wait:
            holdings.begin(client)
            self._arrivals.began(client)
        if self.server.contract.begins:
            if not self.server.contract.built_in:  # it may write into them
                holdings.give_own(client)
            self.server.begins(client, holdings.params(client), holdings.timestamp(client), self.iteration)
        self._pushes.begin(client)

    def _go_on(self, client: int) -> int:
        """Let a client whose task is done fetch for its next one, if the gate allows it; return as `_fetch` does."""
        self._holdings.finish(client)
        size = self._fetch(client)
        self._holdings.note_next(client)
        return size

    def _fetch(self, client: int) -> int:
        """Let a client fetch, if the gate allows it; return how many bytes it fetched, 0 if the fetch was dropped."""
        server, holdings, gate = self.server, self._holdings, self._protocol.fetch_gate
        passes = True if gate is None else gate.passes(self.iteration, client, server)
        if not isinstance(passes, bool) and server.contract.bytes_fetched:
            raise ConfigError(counts_whole("fetch"))
        parts = None if isinstance(passes, bool) or all(passes) else passes
        if not (passes if parts is None else any(parts)):
            self._refuse(client)
            return 0
        self._arrivals.fetched(client, self.iteration)
        given = server.fetch(client, self.iteration)
        if given is not server.params and not self._operations.finite(given):
            raise Diverged(self.iteration)
        if parts is None:
            shared = self._share_versions and given is server.params
            if shared and server.contract.checked and not holdings.matches_version(given, server.timestamp):
                raise server.changed_params(client, self.iteration)
            holdings.fetch(client, given, server.timestamp, self._rate(), shared=shared)
            size = server.bytes_of("fetched", given.nbytes) + given.nbytes * (self._client_work.copied_arrays - 1)
            if self._control is not None:
                self._control.fetched(client)
        else:
            holdings.fetch_parts(client, given, server.timestamp, self._rate(), parts)
            size = 4 * sum(compress(self._layout.sizes, parts))
        self._recorder.count_fetch(size, client)
        return size

    def _refuse(self, client: int) -> None:
        """Let a client continue from the parameters that it holds, because its fetch was dropped."""
        self._holdings.keep(client)
        if self._protocol.fred_timestamps:
            self._holdings.restamp(client, self.server.timestamp, self._rate())
        self._recorder.count_fetch(0, client)
