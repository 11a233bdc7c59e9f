"""What a live run, with real clients, or a replay event by event makes differently from a simulated run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fredsim.config.experiment import Experiment
from fredsim.runs.folder.growing_files import GrowingText
from fredsim.runs.single.opening import make_dispatcher
from fredsim.simulation.paths.loop import Parts, Simulation
from fredsim.simulation.paths.start import make_simulation
from fredsim.simulation.plugins.guarded_plugins import GuardedDispatcher

__all__ = ["SIMULATED_RUN", "Hooks"]


@dataclass(frozen=True)
class Hooks:
    """Functions that make a run's dispatcher and simulation; the defaults are those of a simulated run."""

    dispatcher: Callable[[Experiment], GuardedDispatcher] = make_dispatcher
    simulation: Callable[[Parts, Mapping[str, GrowingText]], Simulation] = lambda parts, _: make_simulation(parts)
    """Makes the simulation from the run's parts and the open files that `files` names."""
    files: tuple[str, ...] = ()
    """The names of further text files that grow, to which the simulation writes."""
    facts: Callable[[], dict[str, Any]] = dict
    """Returns further entries of summary.json."""
    replayable: bool = True
    """Whether the same process can repeat the run, as it does after a divergence."""


SIMULATED_RUN = Hooks()
