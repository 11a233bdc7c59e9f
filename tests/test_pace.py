"""How many events are processed at once (fredsim.simulation.paths.pace)."""

from fredsim.simulation.paths.pace import SLICE, Pace


def test_events_that_a_row_cuts_short_say_nothing_about_more() -> None:
    pace = Pace()
    first = pace.events
    for _ in range(1000):
        pace.took(SLICE / 1000, 8)
    assert pace.events == first
    for events in (first, 2 * first):
        pace.took(SLICE / 4, events)
    assert pace.events == 4 * first
    pace.took(2 * SLICE, 8)
    assert pace.events == 2 * first
