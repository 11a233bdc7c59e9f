"""The numbers that a server reports besides its parameters: further columns of metrics.csv and probe.csv."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, TypeGuard, get_args

from fredsim.errors import nearest
from fredsim.plugins.failures import said
from fredsim.plugins.guarded import BOOLEAN, Guarded, is_integer, is_real
from fredsim.simulation.record.recorder import METRICS, TEST, Kind, Recorder
from fredsim.system.csv_files import LARGEST_INTEGER

__all__ = ["add_record_method", "check_metrics", "check_proxies"]

LARGEST = 1e300  # the largest integer that may be recorded: much larger ones overflow a float


def is_recordable(value: Any) -> TypeGuard[float]:
    """Return whether a server may report a value: a real number, and no integer that overflows a float; or a bool."""
    return isinstance(value, BOOLEAN) or (is_real(value) and not (is_integer(value) and abs(int(value)) > LARGEST))


def check_metrics(guarded: Guarded) -> Mapping[str, Kind]:
    """Return a server's `metrics`: names, each with "sum" or "mean". Raises SimulationError if they are invalid."""
    metrics: dict[str, Kind] = guarded.get("metrics", {})
    if not isinstance(metrics, dict) or not all(
        isinstance(name, str) and name.isidentifier() and kind in get_args(Kind) for name, kind in metrics.items()
    ):
        raise guarded.error("metrics", f"is {metrics!r}; it must be a dict of names to sum or mean")
    for name in sorted(metrics.keys() & {*METRICS, *TEST}):
        raise guarded.error("metrics", f"names {name!r}, which is another column of metrics.csv; choose another")
    return dict(metrics)


def add_record_method(guarded: Guarded, metrics: Mapping[str, Kind], recorder: Recorder | None) -> None:
    """Set the method `record` on a server that has `metrics`; if there is no recorder, the numbers are discarded.

    Raises SimulationError if a name is another column's, or if the server does not let the method be set.
    """
    if not metrics:
        return
    target = recorder or Recorder(lambda _: None)
    for name in sorted(metrics.keys() & set(target.columns)):  # the optional columns of this run
        raise guarded.error("metrics", f"names {name!r}, which is another column of metrics.csv; choose another")
    target.declare_metrics(metrics)

    def record(name: str, value: float) -> None:
        if name not in metrics:
            hint = f"{nearest(str(name), metrics)} (known: {', '.join(metrics)})"
            raise guarded.error("record", f"names {name!r}{hint}")
        if not is_recordable(value):
            what = f"{name} is {said(value)[:40]}; it must be a number, {LARGEST:g} at most"
            raise guarded.error("record", what)
        target.record_number(name, as_number(value))

    guarded.give("record", record)


def as_number(value: float) -> float:
    """Return a number of a server's as Python's: an integer if it is one, or a bool, else a float."""
    return int(value) if isinstance(value, BOOLEAN) or is_integer(value) else float(value)


def check_proxies(guarded: Guarded, found: Any, taken: Set[str], before: list[str] | None) -> dict[str, float]:
    """Return what `proxies` returned, as it is written to probe.csv.

    Raises SimulationError if it is no dict of numbers, if a name is in `taken`, or if the names differ from `before`.
    """
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and is_recordable(value) for name, value in found.items()
    ):
        raise guarded.error("proxies", f"returned {said(found)}; it must return a dict of names to numbers")
    for name in sorted(taken & found.keys()):
        what = f"names {name!r}, which is another column of probe.csv; choose another"
        raise guarded.error("proxies", what)
    if before is not None and list(found) != before:
        what = f"named {list(found)} after {before}; the names must stay the same"
        raise guarded.error("proxies", what)
    numbers = {name: as_number(value) for name, value in found.items()}
    return {name: float(value) if abs(value) >= LARGEST_INTEGER else value for name, value in numbers.items()}
