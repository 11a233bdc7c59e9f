"""The numbers that a user's server gives besides its parameters: columns of metrics.csv and of probe.csv."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, get_args

import numpy as np

from fredsim.errors import nearest
from fredsim.plugins.guarded import REAL, Adapted
from fredsim.simulation.recorder import METRICS, TEST, Kind, Recorder

__all__ = ["check_proxies", "let_record"]

LARGEST = 1e300  # of integers: larger ones have no float


def let_record(adapted: Adapted, server: Any, recorder: Recorder | None) -> Mapping[str, Kind]:
    """Give a server that has `metrics` the method `record`; return the names, and whether a sum or a mean is asked for.

    Without a recorder the numbers are checked, and go nowhere. Raises SimulationError for what is no such mapping.
    """
    metrics: dict[str, Kind] = adapted.guard("metrics", lambda: getattr(server, "metrics", {}))
    if not isinstance(metrics, dict) or not all(
        isinstance(name, str) and name.isidentifier() and kind in get_args(Kind) for name, kind in metrics.items()
    ):
        raise adapted.broken("metrics", f"is {metrics!r}; it must be a dict of names to sum or mean")
    for name in sorted(metrics.keys() & {*METRICS, *TEST}):
        raise adapted.broken("metrics", f"names {name!r}, which is another column of metrics.csv; choose another")
    if metrics:
        found = recorder or Recorder(lambda _: None)
        found.declare(metrics)

        def record(name: str, value: float) -> None:
            if name not in metrics:
                hint = f"{nearest(str(name), metrics)} (known: {', '.join(metrics)})"
                raise adapted.broken("record", f"names {name!r}{hint}")
            if not isinstance(value, REAL) or (isinstance(value, int) and abs(value) > LARGEST):
                what = f"{name} is {repr(value)[:40]}; it must be a number, {LARGEST:g} at most"
                raise adapted.broken("record", what)
            found.number(name, int(value) if isinstance(value, int | np.integer) else float(value))

        adapted.guard("record", lambda: setattr(server, "record", record))
    return metrics


def check_proxies(adapted: Adapted, found: Any, taken: Set[str], before: list[str] | None) -> list[str]:
    """Return the names of what `proxies` returned: new ones, and those of `before`. Raises SimulationError."""
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(value, REAL) for name, value in found.items()
    ):
        raise adapted.broken("proxies", f"returned {found!r}; it must return a dict of names to numbers")
    for name in sorted(taken & found.keys()):
        what = f"names {name!r}, which is another column of probe.csv; choose another"
        raise adapted.broken("proxies", what)
    if before is not None and list(found) != before:
        what = f"named {list(found)} after {before}; the names must stay the same"
        raise adapted.broken("proxies", what)
    return list(found)
