"""How many events are processed at once: about as many as take a fraction of a second."""

from __future__ import annotations

__all__ = ["SLICE", "Pace", "SharedPace"]

#: Seconds of computation between two checks of whether to stop.
SLICE = 0.2


class Pace:
    """The number of events that a run processes at once."""

    def __init__(self) -> None:
        self.events = 64

    def took(self, seconds: float, events: int) -> None:
        """Adapt the number: so many events took so long the last time. A row may have cut them short."""
        if seconds < SLICE / 2 and events >= self.events:
            self.events *= 2
        elif seconds > SLICE and self.events > 1:
            self.events //= 2


class SharedPace(Pace):
    """That of runs side by side, which wait for each other: what one of them takes says nothing."""

    def took(self, seconds: float, events: int) -> None:
        """Leave the number as it is."""

    def all_took(self, seconds: float, events: int) -> None:
        """Adapt the number: the events that all runs processed last, so many of one run at most, took so long."""
        super().took(seconds, events)
