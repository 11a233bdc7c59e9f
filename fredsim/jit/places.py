"""Gives out places for what clients hold, one event after the other; see fredsim.simulation.schedule.schedule."""

from __future__ import annotations

from fredsim.jit.cache import Compiled
from fredsim.jit.pointers import int64s, item, put

__all__ = ["give_out"]


def _give_out(begun, following, held, kept, free, events):
    """Set held and kept (events,), and return the number of places; `free` (events + 1,) is room for free places."""
    begun, following, held, kept, free = int64s(begun), int64s(following), int64s(held), int64s(kept), int64s(free)
    places, count = 1, 0
    for event in range(events):
        source = item(begun, event)
        if source >= 0:
            put(held, event, item(kept, source))
            put(free, count, item(kept, source))
            count += 1
        if item(following, event) >= 0:
            if count == 0:
                put(free, 0, places)
                places += 1
                count = 1
            count -= 1
            put(kept, event, item(free, count))
    return places


#: give_out.call(addresses of five int64 arrays, the number of events)
give_out = Compiled(_give_out)
