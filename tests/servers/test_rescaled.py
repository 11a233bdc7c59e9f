"""The server `rescaled` on clocks: each client steps in proportion to the time that its tasks take."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from fredsim.dispatchers import Clock
from fredsim.numerics.streams import Streams
from fredsim.runs.folder.results import Result

Simulate = Callable[..., Result]
CLIENTS = 6
TIMES = [0.7, 0.3, 1.1, 2.000000001, 0.9, 0.123456789]


def test_times_that_are_measured_are_those_of_the_clock(make: Callable[[Mapping[str, Any]], Any]) -> None:
    """Of a client whose tasks take t_i: t_i, from its first arrival on; the mean is over those that have arrived."""
    clock = Clock(compute={"seconds": TIMES})
    clock.init(CLIENTS, Streams(0))
    server = make({"name": "rescaled", "lr": 0.3})
    server.init(np.zeros(3, np.float32), CLIENTS)
    order = clock.draw(100)
    assert order.time is not None
    seen: dict[int, float] = {}
    for step, (time, client) in enumerate(zip(order.time.tolist(), order.client.tolist(), strict=True)):
        before = server.params.astype(np.float64)
        server.tell_time(time / 1e9)
        server.apply_update(np.ones(3, np.float32), client, step)
        seen[client] = TIMES[client]
        assert before - server.params == pytest.approx(0.3 * TIMES[client] / np.mean([*seen.values()]), rel=1e-4)
    assert len(seen) == CLIENTS


def test_times_that_are_measured_may_begin_at_0(make: Callable[[Mapping[str, Any]], Any]) -> None:
    """As those of a recorded trace do: a client that has taken no time so far does not step beside those that have."""
    server = make({"name": "rescaled", "lr": 0.3})
    server.init(np.zeros(3, np.float32), 2)
    for step, (client, time, share) in enumerate([(0, 0.0, 1.0), (1, 0.5, 2.0), (0, 1.0, 1.0), (1, 3.0, 1.5)]):
        before = server.params.astype(np.float64)
        server.tell_time(time)
        server.apply_update(np.ones(3, np.float32), client, step)
        assert before - server.params == pytest.approx(0.3 * share, rel=1e-4)


def test_clients_of_equal_times_are_not_rescaled(simulate: Simulate) -> None:
    """Whichever of them arrives first: on the clock all arrive at the same time."""
    dispatcher = {"name": "clock", "compute": {"seconds": 0.3}}
    servers = [{"name": name, "lr": 0.1} for name in ("asgd", "rescaled")]
    asgd, rescaled = (simulate({"dispatcher": dispatcher, "server": server}).summary for server in servers)
    assert asgd["digest"] == rescaled["digest"]
    assert (asgd["path"], rescaled["path"]) == ("hand", "snapshots")
