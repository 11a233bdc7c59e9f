"""What a user's functions, problems and PyTorch modules keep from call to call, which a run's state lacks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fredsim.errors import SimulationError
from fredsim.plugins.state.fingerprints import (
    changed_names,
    fingerprint,
    imported_since,
    kept_by_modules,
    users_modules,
)
from fredsim.plugins.state.states import State, Stateful

__all__ = ["Outside"]


class Outside(Stateful):
    """A part of a run that has no state, and refuses that one is taken once something outside of it has changed."""

    def __init__(self, functions: Iterable[Any], values: Callable[[], Mapping[str, Any]]) -> None:
        """Look at the modules of functions and classes, and at what `values` returns, by the names for an error."""
        self._functions = [*functions]
        self._modules = [*users_modules(sys.modules.get(str(one.__module__)) for one in self._functions)]
        self._values = values
        self.note_start()

    def note_start(self) -> None:
        """Note what there is at the start of the run."""
        self._before, self._loaded = self._now(), frozenset(sys.modules)

    def _now(self) -> dict[str, str]:
        found = kept_by_modules(self._modules, self._functions)
        return found | {name: fingerprint(value) for name, value in self._values().items()}

    def take_state(self) -> State:
        """Return nothing. Raises SimulationError if something has changed since the start."""
        late = imported_since(self._loaded) if self._modules else []
        if changed := changed_names(self._before, self._now()) or late:
            remedy = "let metrics, losses, schedules and the like depend on what they are given alone"
            raise SimulationError(f"{changed[0]} has changed, which no checkpoint has, and would be lost; {remedy}")
        return {}
