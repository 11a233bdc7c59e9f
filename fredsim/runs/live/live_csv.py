"""live.csv, the record of which worker computed what in a live run, and its comparison with a simulated replay."""

from __future__ import annotations

import functools
import os
import re
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from fredsim.errors import shown
from fredsim.runs.folder.results import Result
from fredsim.runs.verify.first_event import replay
from fredsim.system.csv_files import read_lines

__all__ = ["COLUMNS", "fingerprint", "first_mismatch"]

#: Columns, one row per event: the worker, the fingerprint of what it computed, and that of the parameters afterwards.
COLUMNS = ("iteration", "worker", "gradient", "update")
HEAD = ",".join(COLUMNS)
FINGERPRINT = re.compile(r"[0-9a-f]{16}").fullmatch
CHANGED = "live.csv is not as the run wrote it"


def first_mismatch(result: Result, root: str | os.PathLike[str] | None) -> str | None:
    """Say at which event of a live run a simulated replay first differs, and in what; None if it never does.

    Only which worker did what may be anything. Raises OutputError if live.csv cannot be read.
    """
    *lines, rest = read_lines(result.folder / "live.csv")
    if rest:
        return f"{CHANGED}: line {len(lines) + 1} is cut off"
    head, *rows = lines or [HEAD]
    if head != HEAD:
        return f"{CHANGED}: line 1 is {shown(head)}, not {HEAD}"
    with replay(result, root) as events:
        for iteration, (event, row) in enumerate(zip_longest(events, rows)):
            if event is None or row is None:
                which = "ends before" if row is None else "has, and the run now lacks,"
                return f"{CHANGED}: it {which} iteration {iteration}"
            number, *worker, gradient, update = row.split(",") if row.count(",") > 2 else ("",) * 4
            if number != str(iteration) or not all(map(FINGERPRINT, (gradient, update))):
                return f"{CHANGED}: line {iteration + 2}, of iteration {iteration}, is {shown(row)}"
            for part, recorded, value in (("gradient", gradient, event.gradient), ("update", update, event.update)):
                if recorded != f"{fingerprint(value):016x}":
                    who = f"client {event.client}, at the worker {','.join(worker)}"
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
