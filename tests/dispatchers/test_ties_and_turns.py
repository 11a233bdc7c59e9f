"""What docs/time.md says about ties, turns, cancelled copies, outages and slow clients, in times easily counted."""

from typing import Any

import numpy as np
import pytest

from fredsim.dispatchers import DISPATCHERS
from fredsim.numerics.streams import Stream, Streams


def started(clients: int, **hyper: Any) -> Any:
    clock: Any = DISPATCHERS["clock"](**hyper)
    clock.expect(clients)
    clock.init(clients, Streams(3))
    clock.configure(reacts=True, size=1000)
    return clock


def arrival(clock: Any) -> tuple[int, int, float, int]:
    """The next client, the number of its task, the time, and how many gradients were done before; it is held."""
    order = clock.draw(1)
    clock.hold(int(order.client[0]))
    return int(order.client[0]), int(order.number[0]), order.time[0] / 1e9, int(order.sent[0])


@pytest.mark.parametrize("slow", [0, 1])
def test_at_one_nanosecond_the_smaller_id_is_first(slow: int) -> None:
    """A push arrives when another client's gradient is done, which arrives at once."""
    seconds, latency = [1.0, 1.0], [1.0, 1.0]
    seconds[slow], latency[slow] = 2.0, 0.0
    clock = started(2, compute={"seconds": seconds}, link={"latency": latency})
    assert [arrival(clock)[::3], arrival(clock)[::3]] == [(0, int(slow == 0)), (1, int(slow == 1))]


@pytest.mark.parametrize(
    ("latency", "later"),
    [(0.25, 4.0), (1.25, 3.5)],  # client 2 comes to the bandwidth at 2.5, client 1 at 1.35 or 2.35
    ids=["at the bandwidth", "on the link"],
)
def test_a_cancelled_push_keeps_the_turn_that_it_has_taken(latency: float, later: float) -> None:
    clock = started(
        3, compute={"seconds": [1.0, 1.1, 2.5]}, link={"latency": [0.0, latency, 0.0]}, server={"up": 1000.0}
    )
    assert arrival(clock)[::2] == (0, 2.0)
    clock.restart(1, 0)
    assert arrival(clock)[::2] == (2, later)


def test_a_cancelled_push_keeps_its_turn_at_the_server() -> None:
    clock = started(3, compute={"seconds": [1.0, 1.1, 2.5]}, server={"seconds": 1.0})
    assert arrival(clock)[::2] == (0, 2.0)
    clock.restart(1, 0)
    assert arrival(clock)[::2] == (2, 4.0)


@pytest.mark.parametrize(("when", "begins"), [(None, 2.0), ("at once", 2.0), ("later", 3.0)])
def test_a_cancelled_fetch_keeps_its_turn_unless_it_has_none_yet(when: str | None, begins: float) -> None:
    clock = started(3, compute={"seconds": [1.0, 1.0, 1.5]}, server={"down": 1000.0})
    assert [arrival(clock)[0], arrival(clock)[0]] == [0, 1]
    clock.release(1, 1000)
    if when == "at once":
        clock.restart(1, 1000)
    assert arrival(clock)[::2] == (2, 1.5)
    if when == "later":
        clock.restart(1, 1000)
    assert arrival(clock)[::2] == (1, begins + 1)


@pytest.mark.parametrize(("restart", "number"), [(False, 2), (True, 3)])
def test_a_task_lost_and_a_restart_while_down_take_a_number_each(restart: bool, number: int) -> None:
    """Client 0 is down from 3 to 5; its task 1, begun at 2, is lost."""
    clock = started(2, compute={"seconds": [2.0, 2.1]}, link={"latency": [0.0, 2.0]}, outages={"up": 3.0, "down": 2.0})
    assert arrival(clock) == (0, 0, 2.0, 0)
    clock.release(0, 0)
    assert arrival(clock) == (1, 0, 4.1, 1)
    if restart:
        clock.restart(0, 0)
    assert arrival(clock) == (0, number, 7.0, 2)


def test_a_dropped_push_only_waits_for_the_server() -> None:
    clock = started(2, compute={"seconds": [1.0, 1.2]}, server={"seconds": 1.0})
    clock.on_gradient_done = lambda client, number, sent: 10 * (1 - client)
    assert [arrival(clock)[::2], arrival(clock)[::2]] == [(0, 2.0), (1, 2.0)]
    clock = started(2, compute={"seconds": [1.0, 1.2]}, link={"latency": 5.0, "up": 1.0}, server={"up": 1.0})
    clock.on_gradient_done = lambda client, number, sent: 0
    assert [arrival(clock)[::2], arrival(clock)[::2]] == [(0, 1.0), (1, 1.2)]


def test_the_slow_clients_are_those_with_the_smallest_keys() -> None:
    streams = Streams(3)
    words = [[int(streams.words(Stream.TIME, element, 0, client)) for element in (8, 9)] for client in range(16)]
    order = sorted(range(16), key=lambda client: words[client])
    for share, count in ((0.0, 0), (0.15, 2), (0.16, 3), (0.5, 8), (1.0, 16)):  # 2.4 and 2.56 are rounded
        clock = started(16, compute={"seconds": {"name": "two_class", "share": share, "factor": 10}})
        found = np.flatnonzero(clock._durations.means > 1).tolist()
        assert found == sorted(order[:count])
