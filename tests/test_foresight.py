"""The order of a whole run, known ahead, against a loop over clients that carry their work with them."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fredsim.simulation.schedule import foresee


@dataclass
class Work:
    """What a client computes: after which event it was begun, and which of the client's own it is."""

    begun: int
    number: int


def by_hand(order: list[int], wait: bool) -> list[tuple[Work, int]]:
    """Let clients arrive one by one; return what arrived at each event, and its staleness."""
    under_way = {client: Work(-1, 0) for client in order}
    fetched = dict.fromkeys(order, -1)  # the event after which each client fetched last
    arrived = []
    for event, client in enumerate(order):
        work = under_way[client]
        arrived.append((work, event - (work.begun + 1)))  # updates made, less those that the work had seen
        if wait:
            fetched[client] = event
        under_way[client] = Work(fetched[client], work.number + 1)
        fetched[client] = event
    return arrived


ORDERS = st.lists(st.integers(0, 9), max_size=80) | st.lists(st.sampled_from([3, 10**6]), max_size=30)


@given(order=ORDERS, wait=st.booleans())
def test_what_arrives_was_begun_when_its_client_began_it(order: list[int], wait: bool) -> None:
    seen, arrived = foresee(np.array(order, np.int64), wait=wait), by_hand(order, wait)
    assert len(seen) == len(order)
    assert seen.clients.tolist() == order
    assert seen.source.tolist() == [work.begun for work, _ in arrived]
    assert seen.number.tolist() == [work.number for work, _ in arrived]
    assert seen.staleness.tolist() == [staleness for _, staleness in arrived]
    begun_after = {work.begun: event for event, (work, _) in enumerate(arrived) if work.begun >= 0}
    assert seen.target.tolist() == [begun_after.get(event, -1) for event in range(len(order))]
    for array in (seen.clients, seen.source, seen.target, seen.slot, seen.number, seen.staleness):
        assert array.dtype == np.int64


@given(order=ORDERS, wait=st.booleans())
def test_a_slot_holds_one_work_at_a_time(order: list[int], wait: bool) -> None:
    """The works begun at the start have slots of their own; what is begun after an event takes the place free by it."""
    seen = foresee(np.array(order, np.int64), wait=wait)
    room: list[int | None] = [None] * seen.slots  # the event at which what a slot holds will arrive
    for event in np.flatnonzero(seen.source < 0).tolist():
        assert room[seen.slot[event]] is None
        room[seen.slot[event]] = event
    for event in range(len(order)):
        slot = seen.slot[event]
        assert room[slot] == event
        target = int(seen.target[event])
        room[slot] = target if target >= 0 else None
    assert room == [None] * seen.slots
    assert seen.slots == len(set(order)) * (1 if wait else 2)  # many clients that never arrive cost nothing


@pytest.mark.parametrize("wait", [True, False])
def test_no_events_and_one(wait: bool) -> None:
    assert len(foresee(np.empty(0, np.int64), wait=wait)) == 0
    seen = foresee(np.array([7]), wait=wait)
    values = (seen.source, seen.target, seen.number, seen.staleness)
    assert [value.tolist() for value in values] == [[-1], [-1], [0], [0]]
