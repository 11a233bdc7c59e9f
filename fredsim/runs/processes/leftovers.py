"""Notes what runs leave in a script or a notebook, whose classes cannot be imported anew: the next run begins with it.

Every other run with a user's code begins as in a fresh process (fredsim.runs.processes.isolation).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FunctionType
from typing import Any

from fredsim.plugins.fingerprints import fingerprint
from fredsim.system.notices import warn

__all__ = ["note_beginning", "note_ending", "warn_of_leftovers"]

PLAIN = (bool, int, float, complex, str, bytes)
_began: dict[str, str] = {}  # what there was before a run, by name: its fingerprint
_ended: dict[str, str] = {}  # and when the last run had ended
_left: set[str] = set()  # what runs have changed, and nobody else since


def note_beginning(modules: Iterable[str]) -> None:
    """Note what these modules keep, before anything is made of their classes for a run."""
    for name, now in _kept(modules).items():
        if _ended.get(name) == now and _began.get(name, now) != now:
            _left.add(name)
        else:  # the first run, or the user has changed it
            _began[name] = now


def note_ending(modules: Iterable[str]) -> None:
    """Note what they keep when the run has ended."""
    _ended.update(_kept(modules))


def warn_of_leftovers() -> None:
    """Warn of what earlier runs have changed, which the run that begins now will find."""
    if not _left:
        return
    what = f"{', '.join(sorted(_left))} was changed by an earlier run in this process, and this run begins with that"
    _left.clear()
    warn(f"{what}; put the class into a module of its own, which is imported anew for each run, or define it again")


def _kept(modules: Iterable[str]) -> dict[str, str]:
    """Return the fingerprints of the classes, functions and plain values that modules hold, by name."""
    return {
        name if module == "__main__" else f"{module}.{name}": fingerprint(value)
        for module in modules
        for name, value in vars(sys.modules[module]).items()
        if not name.startswith("__") and _may_keep(module, value)
    }


def _may_keep(module: str, value: Any) -> bool:
    own = isinstance(value, type | FunctionType) and value.__module__ == module
    return own or type(value) in PLAIN
