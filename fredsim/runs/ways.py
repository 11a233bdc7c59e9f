"""What makes the parts of a run that are others where its clients are real."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fredsim.config.experiment import Experiment
from fredsim.runs.growing_files import GrowingText
from fredsim.runs.opening import make_dispatcher
from fredsim.simulation.guarded_plugins import GuardedDispatcher
from fredsim.simulation.loop import Parts, Simulation
from fredsim.simulation.start import make_simulation

__all__ = ["USUAL", "Ways"]


@dataclass(frozen=True)
class Ways:
    """What makes the two parts of a run that are not the same where its clients are real."""

    dispatcher: Callable[[Experiment], GuardedDispatcher] = make_dispatcher
    simulation: Callable[[Parts, Mapping[str, GrowingText]], Simulation] = lambda parts, _: make_simulation(parts)
    """It is given the files of `files`, by name."""
    files: tuple[str, ...] = ()
    """Of text, that it writes to."""
    facts: Callable[[], dict[str, Any]] = dict
    """What goes into summary.json besides."""
    replayable: bool = True
    """Whether the run can be done again by itself."""


USUAL = Ways()
