"""What happens next on a clock does not depend on what was put in first."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fredsim.dispatchers.event_queue import EventQueue

EVENTS = st.dictionaries(st.integers(0, 30), st.tuples(st.sampled_from([0, 5, 5, 7, 2**62]), st.integers(0, 7)))


@given(events=EVENTS, lost=st.sets(st.integers(0, 30)), seed=st.integers(0, 99), many=st.booleans())
def test_events_of_one_time_happen_in_the_order_of_clients(
    events: dict[int, tuple[int, int]], lost: set[int], seed: int, many: bool
) -> None:
    """Put in any order, one by one or several at once, some of them twice, some cancelled."""
    queue, order, rng = EventQueue(31), list(events), random.Random(seed)
    rng.shuffle(order)
    for client in [client for client in order if rng.random() < 0.3]:
        queue.put(client, rng.choice([0, 5, 9]), rng.randrange(8))
    if many:
        for stage in range(8):
            some = [client for client in order if events[client][1] == stage]
            queue.put_all(np.array(some, np.int64), np.array([events[client][0] for client in some], np.int64), stage)
    else:
        for client in order:
            queue.put(client, *events[client])
    assert {client for client in sorted(lost) if queue.cancel(client)} == lost & events.keys()
    found = []
    while (event := queue.pop()) is not None:
        found.append(event)
    assert found == sorted((time, client, stage) for client, (time, stage) in events.items() if client not in lost)


def test_events_that_are_cancelled_long_before_they_are_due_take_no_memory() -> None:
    """Two clients are restarted at each event of the third; the last ends of their tasks alone are left."""
    queue, rng = EventQueue(3), random.Random(0)
    ends = [0, 0, 0]
    for now in range(2000):
        queue.put(0, now + 1, 0)
        for client in (1, 2):
            queue.cancel(client)
            ends[client] = 10**9 + rng.randrange(1000)
            queue.put(client, ends[client], 1)
        assert len(queue._heap) <= 100
        assert queue.pop() == (now + 1, 0, 0)
    assert [queue.pop(), queue.pop()] == sorted((ends[client], client, 1) for client in (1, 2))
    assert queue.pop() is None
