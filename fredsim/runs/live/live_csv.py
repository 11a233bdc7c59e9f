"""live.csv, the record of which worker computed what in a live run, and its comparison with a simulated replay."""

from __future__ import annotations

import functools
import os

import numpy as np
from numpy.typing import NDArray

from fredsim.runs.folder.results import Result
from fredsim.runs.verify.first_event import replay
from fredsim.system.csv_files import read_cells

__all__ = ["COLUMNS", "fingerprint", "first_mismatch"]

#: Columns, one row per event: the worker, the fingerprint of what it computed, and that of the parameters afterwards.
COLUMNS = ("iteration", "worker", "gradient", "update")


def first_mismatch(result: Result, root: str | os.PathLike[str] | None) -> str | None:
    """Say at which event of a live run a simulated replay first differs, and in what; None if it never does."""
    with replay(result, root) as events:
        for iteration, (event, row) in enumerate(zip(events, read_cells(result.folder / "live.csv"), strict=False)):
            for part, value in (("gradient", event.gradient), ("update", event.update)):
                if row[part] != f"{fingerprint(value):016x}":
                    who = f"client {event.client}, at the worker {row['worker']}"
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
