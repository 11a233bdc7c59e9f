"""live.csv, the record of which worker computed what in a live run, and its comparison with a simulated replay."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from fredsim.errors import OutputError, shown, warn
from fredsim.numerics.arrays import Integers
from fredsim.runs.folder.results import Result
from fredsim.runs.verify.first_event import replay
from fredsim.system.csv_files import COUNT, read_lines

__all__ = ["COLUMNS", "HEAD", "fingerprint", "first_mismatch", "recorded_times"]

TIMES = ("assigned_ns", "served_ns")
#: Columns, one row per event: when its task was assigned to the worker, and when the server was done with the event;
#: the worker; the fingerprint of what it computed, and that of the parameters afterwards.
COLUMNS = ("iteration", *TIMES, "worker", "gradient", "update")
HEAD = ",".join(COLUMNS)
#: The headers that a record may have, and how many times follow the iteration: fredsim 1.0 recorded none.
HEADS = {HEAD: len(TIMES), ",".join(name for name in COLUMNS if name not in TIMES): 0}
FINGERPRINT = re.compile(r"[0-9a-f]{16}").fullmatch
CHANGED = "live.csv is not as the run wrote it"


class ChangedError(Exception):
    """A file live.csv is not as the run wrote it."""


def _rows(result: Result) -> tuple[int, list[str]]:
    """Return how many times each row of live.csv has, and the rows. Raises ChangedError; OutputError."""
    *lines, rest = read_lines(result.folder / "live.csv")
    if rest:
        raise ChangedError(f"line {len(lines) + 1} is cut off")
    head, *rows = lines or [HEAD]
    if head not in HEADS:
        raise ChangedError(f"line 1 is {shown(head)}, not {HEAD}")
    return HEADS[head], rows


def _cells(iteration: int, row: str, times: int) -> tuple[list[str], str, str, str]:
    """Return the times of a row, the worker and the two fingerprints. Raises ChangedError."""
    number, *middle = row.split(",")
    *middle, gradient, update = middle if len(middle) > times + 2 else ("",) * (times + 3)
    if number != str(iteration) or not all(map(FINGERPRINT, (gradient, update))) or not all(map(COUNT, middle[:times])):
        raise ChangedError(f"line {iteration + 2}, of iteration {iteration}, is {shown(row)}")
    return middle[:times], ",".join(middle[times:]), gradient, update


def recorded_times(result: Result, events: int) -> Integers | None:
    """Return when each event's task was assigned, and when the server was done with it, in ns (`events`, 2).

    None for a record of fredsim 1.0, which has no such times; it is warned of that. Raises OutputError.
    """
    path = result.folder / "live.csv"
    result.check_written(path.name)
    try:
        times, rows = _rows(result)
        if len(rows) != events:
            raise ChangedError(f"it has {len(rows):,} rows, of {events:,} events")
        found = [_cells(iteration, row, times)[0] for iteration, row in enumerate(rows)]
    except ChangedError as error:
        raise OutputError(f"{path}: is damaged ({error}); make another record by `fredsim live`") from None
    if not times:
        what = "it does not say when the server was done with an event, so that its time counts as travel"
        warn(f"{path} is of fredsim 1.0: {what}; make a new record")
        return None
    return np.array(found, np.int64)


def first_mismatch(result: Result, root: str | os.PathLike[str] | None) -> str | None:
    """Say at which event of a live run a simulated replay first differs, and in what; None if it never does.

    Only which worker did what, and when, may be anything. Raises OutputError if live.csv cannot be read.
    """
    try:
        return _first_mismatch(result, root, *_rows(result))
    except ChangedError as error:
        return f"{CHANGED}: {error}"


def _first_mismatch(result: Result, root: str | os.PathLike[str] | None, times: int, rows: Sequence[str]) -> str | None:
    with replay(result, root) as events:
        for iteration, (event, row) in enumerate(zip_longest(events, rows)):
            if event is None or row is None:
                which = "ends before" if row is None else "has, and the run now lacks,"
                raise ChangedError(f"it {which} iteration {iteration}")
            _, worker, *fingerprints = _cells(iteration, row, times)
            for part, recorded in zip(("gradient", "update"), fingerprints, strict=True):
                if recorded != f"{fingerprint(getattr(event, part)):016x}":
                    who = f"client {event.client}, at the worker {worker}"
                    return f"iteration {iteration}, {who}: the {part} is not what the simulator computes"
    return None


def fingerprint(values: NDArray[np.float32]) -> int:
    """Return a 64-bit fingerprint of an array (P,), which changes if any one value changes.

    It is the sum of 64-bit words of two values each, every word multiplied by an odd weight of its own.
    """
    pairs = np.ascontiguousarray(values if len(values) % 2 == 0 else np.append(values, np.float32(0)))
    return int(np.dot(pairs.view(np.uint64), _weights(len(pairs) // 2)))


@functools.lru_cache(maxsize=1)
def _weights(count: int) -> NDArray[np.uint64]:
    return (2 * np.arange(count, dtype=np.uint64) + 1) * np.uint64(0x9E3779B97F4A7C15)
