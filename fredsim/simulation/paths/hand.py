"""The path `hand`: clients hold pending passes (activations and back-propagated errors) instead of parameters.

On this path it is known at the fetch which minibatch the client will push a gradient of. So the forward and backward
passes of this minibatch are done at once, and their results are kept as the client's pending passes. The gradient is
formed from them when the client arrives.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import GradientExecutor, HandExecutor
from fredsim.compute.storage import Limits
from fredsim.numerics.arrays import Array, Integers
from fredsim.plugins.state.state_arrays import as_state
from fredsim.plugins.state.states import State
from fredsim.simulation.paths.loop import Diverged, Parts
from fredsim.simulation.paths.pace import SLICE
from fredsim.simulation.paths.stretches import Processed, Stretches
from fredsim.simulation.schedule.schedule import assign_slots, next_arrivals
from fredsim.system.memory import refuse_what_clients_hold

__all__ = ["HandByRule", "HandWholeGradients"]

#: How many tasks are begun together from the initial parameters, at most.
TOGETHER = 1024


class Hand(Stretches):
    """Base of the two kinds of path `hand`: clients hold activations and back-propagated errors."""

    _pending: Mapping[str, NDArray[Any]]  # the executor's arrays of pending passes, by name; one row per slot

    def _check_memory(self, each: int) -> None:
        """Raise ConfigError if pending passes, of `each` bytes, and the server's arrays by client exceed the memory."""
        parts = self.parts
        if parts.limits.memory is None:
            tasks = parts.most_tasks(parts.clients * parts.protocol.tasks_per_client)
            arrays = self.server.contract.per_client * parts.most_tasks(parts.clients)
            what = f"{tasks:,} tasks whose passes may be pending"
            refuse_what_clients_hold(parts.clients, what, tasks * each, arrays, parts.params.nbytes)

    def prepare(self, iteration: int) -> None:
        """Assign slots to the tasks, and begin those that start from the initial parameters."""
        schedule = self.schedule
        self._slots, slots = assign_slots(schedule, wait=self.parts.protocol.wait)
        self._next_arrivals = next_arrivals(schedule)
        self._pending = self._start_executor(slots)
        first = np.flatnonzero(schedule.begun < 0) if iteration == 0 else np.empty(0, np.int64)
        for begin in range(0, len(first), TOGETHER):
            targets = first[begin : begin + TOGETHER]
            self._begin(self._slots[targets], self.rows(targets))

    def _start_executor(self, slots: int) -> Mapping[str, NDArray[Any]]:
        """Make the executor with this many slots; return its arrays of pending passes, by name."""
        raise NotImplementedError

    def _begin(self, slots: Integers, rows: NDArray[np.int32]) -> None:
        """Do the passes of the samples `rows` (n, µ) at the initial parameters, and keep them in `slots` (n,)."""
        raise NotImplementedError

    def take_held(self) -> State:
        """Return the pending passes."""
        return {f"work.{name}": as_state(values) for name, values in self._pending.items()}

    def put_held(self, state: State, iteration: int) -> None:
        """Restore the pending passes."""
        for name, values in self._pending.items():
            values[...] = state[f"work.{name}"]
        pending = iteration + np.flatnonzero(self.schedule.begun[iteration:] < iteration)  # at which these arrive
        if (self._pending["samples"][self._slots[pending]] != self.rows(pending)).any():
            raise ValueError("work.samples are not those of the schedule")  # a kernel would read data at any index


class HandByRule(Hand):
    """The path `hand` for elementwise rules: a rule is applied to each gradient while it is formed."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        nothing, none = np.empty(0, np.int64), np.empty((0, 1), np.float32)
        # Compile now, so that compilation is not counted in the run's time.
        executor = self._make_executor(0)
        executor.advance(nothing, nothing, nothing, none.astype(np.int32), none)
        self._check_memory(executor.slot_bytes)
        self._executor: HandExecutor | None = None

    def _make_executor(self, slots: int) -> HandExecutor:
        server = self.server.elementwise
        return self.engine.hand_executor(self.server.rule, server.params, server.state_of(0), slots, self.parts.limits)

    def _start_executor(self, slots: int) -> Mapping[str, NDArray[Any]]:
        self._executor = self._make_executor(slots)
        return self._executor.pending

    def _begin(self, slots: Integers, rows: NDArray[np.int32]) -> None:
        nobody, no_rule = np.full(len(slots), -1), np.zeros((len(slots), 1), np.float32)
        cast("HandExecutor", self._executor).advance(nobody, slots, nobody, rows, no_rule)

    def process(self, begin: int, count: int) -> Processed:
        """Apply the rule to the gradients of these events, and do the passes of each client's next task."""
        return self.process_by_rule(begin, count, self._apply)

    def _apply(self, begin: int, end: int, coefficients: Array) -> tuple[Array, int]:
        slots, following = self._slots[begin:end], self._next_arrivals[begin:end]
        targets, begun = np.where(following >= 0, slots, -1), self.schedule.begun[begin:end] - begin
        return cast("HandExecutor", self._executor).advance(slots, targets, begun, self.rows(following), coefficients)

    def take_held(self) -> State:
        """Return the pending passes, and bring the server's own arrays up to date."""
        self.update_server()
        return super().take_held()

    def shares(self) -> dict[str, float] | None:
        """Return the executor's; None before it is made."""
        return None if self._executor is None else self._executor.shares()

    def update_server(self) -> None:
        """Copy parameters and state from the executor to the server's own arrays."""
        if self._executor is not None:
            server = self.server.elementwise
            self._executor.copy_to(server.params, server.state_of(0))


class HandWholeGradients(Hand):
    """The path `hand` for all other servers: they get whole gradients, each formed when its client arrives."""

    _stamps: Integers  # by slot: the timestamp of the parameters that the pending passes were done at

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._executor = self._make_executor(1, Limits())
        self._check_memory(self._executor.slot_bytes)
        self._executor.run_passes(
            np.zeros(1, np.int64), parts.params, np.zeros((1, parts.sampler.batch_size), np.int32)
        )
        self._executor.gradient(0)  # compiles all, so that compilation is not counted in the run's time
        contract = self.server.contract
        #: A copy of the parameters (P,), if a push may leave the timestamp unchanged: they must not change then.
        self._seen: Array | None = None
        if contract.checked and contract.timestamp:
            self._seen = np.empty_like(parts.params)
            self.server.check = self._check

    def _make_executor(self, slots: int, limits: Limits) -> GradientExecutor:
        return self.engine.gradient_executor(slots, limits)

    def _start_executor(self, slots: int) -> Mapping[str, NDArray[Any]]:
        limits, server = self.parts.limits, self.server
        if limits.memory is not None:  # the limit covers the server's per-client arrays, too
            kept = server.contract.per_client * self.parts.most_tasks(self.parts.clients) * server.params.nbytes
            limits = replace(limits, memory=max(0, limits.memory - kept))
        self._executor = self._make_executor(slots, limits)
        self._stamps = np.zeros(slots, np.int64)
        if self._seen is not None:
            self._seen[...] = server.params
        return {**self._executor.pending, "stamps": self._stamps}

    def _begin(self, slots: Integers, rows: NDArray[np.int32]) -> None:
        self._executor.run_passes(slots, self.server.params, rows)

    def _check(self, params: Array, *, new: bool) -> bool:
        """Return whether the server's parameters (P,) are finite; if they are `new`, keep a copy."""
        return (
            self.operations.duplicate_finite(params, cast(Array, self._seen)) if new else self.operations.finite(params)
        )

    def process(self, begin: int, count: int) -> Processed:
        """Give the server one gradient after the other, and do the passes of each client's next task."""
        server, executor, stamps, seen = self.server, self._executor, self._stamps, self._seen
        slots, following = self._slots[begin : begin + count], self._next_arrivals[begin : begin + count]
        rows, continues, end = self.rows(following), (following >= 0).tolist(), time.perf_counter() + SLICE
        timestamps, staleness = np.empty((2, count), np.int64)
        losses = np.empty(rows.shape, np.float32)
        for i, client in enumerate(self.schedule.client[begin : begin + count].tolist()):
            slot, before = int(slots[i]), server.timestamp
            gradient, losses[i] = executor.gradient(slot)
            timestamps[i], staleness[i] = before, before - stamps[slot]
            if not server.push(gradient, client, int(stamps[slot]), begin + i).finite:
                raise Diverged(begin + i)
            params = server.params
            # A property may return another array each time; then the server need not keep the one that was seen.
            stays = seen is not None and server.timestamp == before and params is server.params
            if stays and np.asarray(seen).tobytes() != np.asarray(params).tobytes():
                raise server.changed_params(client, begin + i)
            if continues[i]:
                executor.run_passes(slots[i : i + 1], params, rows[i : i + 1])
                stamps[slot] = server.timestamp
            if server.contract.begins:
                server.begins(client, params, server.timestamp, begin + i)
            if time.perf_counter() > end:  # a push may take any time
                break
        n = i + 1
        return timestamps[:n], staleness[:n], losses[:n]
