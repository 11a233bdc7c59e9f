"""Forecasts how many events a run with a clock will have, and how many simulated seconds it will take.

If no computed result affects who arrives when, the clock is run ahead by itself. Otherwise the forecast is extrapolated
from the second part of the run's beginning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fredsim.dispatchers.base import Order
from fredsim.dispatchers.local_steps import VariedSteps
from fredsim.numerics.operations import NumpyOperations
from fredsim.numerics.streams import Streams
from fredsim.plugins.discovery import is_built_in
from fredsim.runs.single.opening import make_dispatcher, make_server
from fredsim.runs.single.prepared import Prepared
from fredsim.simulation.paths.start import arrivals_react
from fredsim.simulation.plugins.run_context import RunContext
from fredsim.simulation.schedule.guarded_clock import GuardedClock

__all__ = ["Forecast", "Milestone", "RunClock", "arrived_share", "clock_of", "forecast_run"]

AHEAD = 20_000  # a clock is run ahead for this many events, or for two per client if that is more …
MOST_AHEAD = 2_000_000  # … but for this many at most

Milestone = tuple[int, float]
"""A number of events, and the simulated second at which so many had happened."""


@dataclass(frozen=True)
class Forecast:
    """How many events a run will have, how many simulated seconds it will take, and whether both are exact.

    `rests`: whether the last event is earlier than that, as far as it is known.
    """

    iterations: int
    simulated: float
    exact: bool = False
    rests: bool = False


@dataclass(frozen=True)
class RunClock:
    """A run's clock, started; whether computed results affect who arrives when; a copy's bytes; and local steps."""

    clock: GuardedClock
    reacts: bool
    size: int
    steps: int | VariedSteps


def clock_of(prepared: Prepared) -> RunClock | None:
    """Return a run's clock, None if it has none."""
    clock = make_dispatcher(prepared.experiment)
    if not isinstance(clock, GuardedClock):
        return None
    server, protocol = make_server(prepared.experiment)
    _context(prepared).call_init(clock)
    if not clock.timed:
        return None
    work = protocol.work
    size = 4 * prepared.model.layout.size * work.copied_arrays
    return RunClock(clock, arrivals_react(clock, server.contract, protocol), size, work.steps_of_tasks)


def _context(prepared: Prepared) -> RunContext:
    streams = Streams(prepared.experiment.seed)
    return RunContext(prepared.experiment.clients.count, prepared.model.layout, streams, NumpyOperations())


def arrived_share(prepared: Prepared, iterations: int, clients: int) -> float:
    """Return about which share of the `clients` that arrive in a run are among its first arrivals.

    It is exact if nothing but fredsim's own dispatcher decides who arrives, and otherwise a little too small; of a
    user's dispatcher, and of a clock that reacts to what is computed, it is as if each client were equally likely.
    """
    found, order = clock_of(prepared), None
    if found is None:
        dispatcher = make_dispatcher(prepared.experiment)
        if is_built_in(type(dispatcher.inner)) and not isinstance(dispatcher, GuardedClock):
            _context(prepared).call_init(dispatcher)
            order = dispatcher.choose_many(0, iterations)
    elif not found.reacts:
        until = prepared.length.until
        found.clock.configure(reacts=False, size=found.size, steps=found.steps, until=until)
        order = Order.joined(list(found.clock.orders(iterations, until))).client
    if order is None:
        return 1 - (1 - 1 / max(1, clients)) ** iterations
    return min(1.0, len(np.unique(order)) / max(1, clients))


def forecast_run(prepared: Prepared, found: RunClock, summary: Mapping[str, Any], iterations: int | None) -> Forecast:
    """Return the forecast of a run of `iterations` with a clock (None: until that ends it).

    `summary` is that of the run's beginning, with `milestones` and `ended`. Raises SimulationError if no more gradients
    will arrive.
    """
    if found.reacts:
        milestones, ended = summary["milestones"], summary["ended"]
    else:
        milestones, ended = _run_ahead(prepared, found, iterations)
    (before, began), (done, now) = milestones
    until = None if prepared.length.until is None else prepared.length.until / 1e9
    if ended and until is not None:
        return Forecast(done, until, exact=True, rests=now < until)
    if done == iterations:
        return Forecast(done, now, exact=True)
    rate = (done - before) / (now - began) if now > began else math.inf  # events a second
    if iterations is None:
        assert until is not None
        return Forecast(math.ceil(done + (until - now) * rate) if math.isfinite(rate) else done, until, rests=True)
    return Forecast(iterations, now + (iterations - done) / rate if rate > 0 else now)


def _run_ahead(prepared: Prepared, found: RunClock, iterations: int | None) -> tuple[tuple[Milestone, Milestone], bool]:
    """Return milestones in the middle and at the end of the first arrivals, and whether these are all of the run's."""
    clients, until = prepared.experiment.clients.count, prepared.length.until
    clock = found.clock
    clock.configure(reacts=False, size=found.size, steps=found.steps, until=until)
    most = min(max(AHEAD, 2 * clients), MOST_AHEAD, iterations or MOST_AHEAD)
    order = Order.joined(list(clock.orders(most, until)))
    assert order.time is not None
    seconds, count = order.time / 1e9, len(order)
    ended = count < most
    if ended and until is None:
        raise clock.clock.ended_error(count, iterations)
    if count == 0:
        return ((0, 0.0), (0, 0.0)), ended
    middle = (count - 1) // 2
    return ((middle + 1, float(seconds[middle])), (count, float(seconds[-1]))), ended
