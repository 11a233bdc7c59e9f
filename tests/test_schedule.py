"""Who arrives with which task, against a loop over clients that carry their task with them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fredsim.dispatchers import DISPATCHERS
from fredsim.dispatchers.base import Order, earlier_arrivals
from fredsim.numerics.streams import Streams
from fredsim.simulation.plugins.guarded_plugins import GuardedDispatcher
from fredsim.simulation.schedule.length import Length
from fredsim.simulation.schedule.schedule import (
    Arrivals,
    Schedule,
    assign_places,
    assign_slots,
    next_arrivals,
    whole_schedule,
)


@dataclass
class Task:
    """What a client computes: after which event it was begun, and which of the client's own it is."""

    begun: int
    number: int


def by_hand(order: list[int], wait: bool, refused: set[int] = frozenset()) -> list[Task]:  # type: ignore[assignment]
    """Let clients arrive one by one; return what arrived at each event. After some events the fetch is refused."""
    under_way = {client: Task(-1, 0) for client in order}
    fetched = dict.fromkeys(order, -1)  # the event after which each client fetched last
    arrived = []
    for event, client in enumerate(order):
        task = under_way[client]
        arrived.append(task)
        before = fetched[client]
        if event not in refused:
            fetched[client] = event
        under_way[client] = Task(fetched[client] if wait else before, task.number + 1)
    return arrived


def rows(schedule: Schedule) -> list[Task]:
    return [Task(*row) for row in zip(schedule.begun.tolist(), schedule.number.tolist(), strict=True)]


ORDERS = st.lists(st.integers(0, 9), max_size=80) | st.lists(st.sampled_from([3, 10**6]), max_size=30)


@given(order=ORDERS, wait=st.booleans())
def test_what_arrives_was_begun_when_its_client_began_it(order: list[int], wait: bool) -> None:
    schedule, arrived = whole_schedule(Order(np.array(order, np.int64)), wait=wait), by_hand(order, wait)
    assert len(schedule) == len(order)
    assert schedule.client.tolist() == order
    assert rows(schedule) == arrived
    begun_after = {task.begun: event for event, task in enumerate(arrived) if task.begun >= 0}
    assert next_arrivals(schedule).tolist() == [begun_after.get(event, -1) for event in range(len(order))]
    for array in (
        schedule.client,
        schedule.begun,
        schedule.number,
        next_arrivals(schedule),
        assign_slots(schedule, wait=wait)[0],
    ):
        assert array.dtype == np.int64


@given(order=ORDERS, wait=st.booleans())
def test_a_slot_holds_one_work_at_a_time(order: list[int], wait: bool) -> None:
    """The tasks begun at the start have slots of their own; what is begun after an event takes the place free by it."""
    schedule = whole_schedule(Order(np.array(order, np.int64)), wait=wait)
    (slot, slots), following = assign_slots(schedule, wait=wait), next_arrivals(schedule)
    room: list[int | None] = [None] * slots  # the event at which what a slot holds will arrive
    for event in np.flatnonzero(schedule.begun < 0).tolist():
        assert room[slot[event]] is None
        room[slot[event]] = event
    for event in range(len(order)):
        assert room[slot[event]] == event
        target = int(following[event])
        room[slot[event]] = target if target >= 0 else None
    assert room == [None] * slots
    assert slots == len(set(order)) * (1 if wait else 2)  # many clients that never arrive cost nothing


@given(order=ORDERS, wait=st.booleans())
def test_a_place_holds_what_is_yet_to_be_used_and_there_are_no_more(order: list[int], wait: bool) -> None:
    schedule = whole_schedule(Order(np.array(order, np.int64)), wait=wait)
    held, kept, places = assign_places(schedule)
    used = set(schedule.begun.tolist())
    content, most = {0: -1}, 0  # the event after which what is in a place was fetched
    for event, begun in enumerate(schedule.begun.tolist()):
        assert content[int(held[event])] == begun
        if begun >= 0:
            del content[int(held[event])]
        assert (kept[event] >= 0) == (event in used)
        if event in used:
            assert int(kept[event]) not in content
            content[int(kept[event])] = event
        most = max(most, len(content))
    assert content == {0: -1}
    assert places == max(most, 1)


@pytest.mark.parametrize("wait", [True, False])
def test_no_events_and_one(wait: bool) -> None:
    assert len(whole_schedule(Order(np.empty(0, np.int64)), wait=wait)) == 0
    assert rows(whole_schedule(Order(np.array([7])), wait=wait)) == [Task(-1, 0)]


def arrivals(name: str, hyper: dict[str, Any], wait: bool, iterations: int | None) -> Arrivals:
    dispatcher = GuardedDispatcher(DISPATCHERS[name](**hyper), 7)
    dispatcher.inner.init(7, Streams(3))
    return Arrivals(dispatcher, [], 7, wait=wait, length=Length(iterations))


@pytest.mark.parametrize("iterations", [300, 1500])
def test_nobody_is_asked_who_comes_after_the_end(iterations: int) -> None:
    """However many choices are drawn at once: a dispatcher may be a user's, and fail beyond."""
    made, found = arrivals("uniform", {}, True, iterations), 0
    while found < iterations:
        found += len(made.next(found, min(7, iterations - found)))
    assert made.take_state()["_drawn"] == iterations


def test_a_work_that_is_given_up_takes_a_number() -> None:
    """Whether the choices after it are drawn by then or not."""
    made, rng, numbers = arrivals("uniform", {}, True, 2500), np.random.default_rng(5), [0] * 7
    for event in range(2500):
        window = made.next(event, 1)
        client = int(window.client[0])
        assert window.number[0] == numbers[client]
        for other in (client, *(rng.integers(7, size=1).tolist() if event % 5 == 0 else [])):
            made.fetched(other, event)
            numbers[other] += 1
        if event % 5 == 0:
            made.give_up(other)


@pytest.mark.parametrize("iterations", [300, None])
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize(("name", "hyper"), [("uniform", {}), ("weighted", {"weights": [1.0, 2.0]})])
def test_a_schedule_that_is_made_as_the_run_goes(
    name: str, hyper: dict[str, Any], wait: bool, iterations: int | None
) -> None:
    """In windows of any size, with refused fetches and arrivals that are put back, and from a state half-way on."""
    rng = np.random.default_rng(1)
    refused = set(rng.choice(300, 90, replace=False).tolist())
    for some in (set(), refused):
        made, found = arrivals(name, hyper, wait, iterations), list[tuple[int, Task]]()
        while len(found) < 300:
            if rng.random() < 0.1:
                state, made = made.take_state(), arrivals(name, hyper, wait, iterations)
                list(made._dispatcher.orders(int(state["_drawn"]), None))  # a dispatcher has a state of its own
                made.put_state(state)
            coming = made.peek(5)
            window = made.next(len(found), min(int(rng.integers(1, 9)), 300 - len(found)))
            kept = int(rng.integers(1, len(window) + 1))
            made.put_back(len(window) - kept)
            assert len(set(window.client.tolist())) == len(window)
            if len(found) < 295:
                same = min(5, kept)
                assert coming.client[:same].tolist() == window.client[:same].tolist()
                assert coming.columns["number"][:same].tolist() == window.number[:same].tolist()
            for client, task in zip(window.client[:kept].tolist(), rows(window)[:kept], strict=True):
                if not wait:
                    made.began(client)
                if len(found) not in some:
                    made.fetched(client, len(found))
                found.append((client, task))
        order = [client for client, _ in found]
        assert [task for _, task in found] == by_hand(order, wait, some)
        if not some:
            assert rows(whole_schedule(Order(np.array(order)), wait=wait)) == [task for _, task in found]


@pytest.mark.parametrize("most", [3, 2**16 - 1, 2**16, 2**40])
def test_arrivals_of_the_same_client(most: int) -> None:
    """With ids of any size: those below 2¹⁶ are sorted as such."""
    clients = [most, 0, most, most - 1, 0, most, 1]
    number, before = earlier_arrivals(np.array(clients))
    assert number.tolist() == [0, 0, 1, 0, 1, 2, 0]
    assert before.tolist() == [-1, -1, 0, -1, 1, 2, -1]
