"""Are two runs the same, bit for bit? `verify` runs a recorded experiment again, `compare` takes two folders."""

from __future__ import annotations

import csv
import tempfile
from itertools import zip_longest
from pathlib import Path

import numpy as np

from fredsim.document import read_document
from fredsim.experiment import resolve
from fredsim.results import Result, load
from fredsim.runner import Observer, execute

__all__ = ["difference", "verify"]


def verify(result: Result, *, root: str | None = None, backend: str | None = None, observer: Observer | None = None) -> str | None:
    """Run the recorded experiment again and return the first difference, or None where every bit is the same.

    Compared are the digests row by row, the summary's digest, and the bytes of metrics.csv and staleness.csv. A run that
    was interrupted is run as far as it came.
    """
    config = read_document(result.folder / "config.yaml")
    experiment = resolve(config.data | ({"backend": backend} if backend else {}), config)
    until = result.summary["iterations"] if result.summary["status"] == "interrupted" else None
    with tempfile.TemporaryDirectory() as folder:
        execute(experiment, Path(folder), root=root, observer=observer, until=until)
        return difference(result, Result(Path(folder)), files=("staleness.csv",))


def difference(one: Result, other: Result, files: tuple[str, ...] = ()) -> str | None:
    """Return where two runs first differ, or None: in the rows of metrics.csv, the status, the parameters, or `files`."""
    with (one.folder / "metrics.csv").open(newline="") as a, (other.folder / "metrics.csv").open(newline="") as b:
        for line, (left, right) in enumerate(zip_longest(csv.DictReader(a), csv.DictReader(b)), start=2):
            if left is None or right is None:
                shorter = one if left is None else other
                return f"metrics.csv, line {line}: {shorter.folder} ends here, at iteration {shorter.summary['iterations']}"
            for key in ("digest", *left):
                if left.get(key) != right.get(key):
                    return f"metrics.csv, line {line}, iteration {left['iteration']}: {key} is {left.get(key)} and {right.get(key)}"
    for key in ("status", "digest"):
        if one.summary[key] != other.summary[key]:
            return f"summary.json: {key} is {one.summary[key]} and {other.summary[key]}"
    for name, values in one.params.items():
        if name not in other.params or values.shape != other.params[name].shape:
            return f"params.safetensors: {name} is not in both with one shape"
        unequal = np.flatnonzero(values.view(np.uint32) != other.params[name].view(np.uint32))
        if len(unequal):
            at = tuple(int(i) for i in np.unravel_index(unequal[0], values.shape))
            return f"params.safetensors: {name}{list(at)} is {values[at]!r} and {other.params[name][at]!r}"
    for name in files:
        if (one.folder / name).read_bytes() != (other.folder / name).read_bytes():
            return f"{name}: the bytes differ"
    return None


def results_of(folder: Path) -> list[Result]:
    """Return the one result of a run's folder, or all of a sweep's. Raises OutputError."""
    loaded = load(folder)
    return [loaded] if isinstance(loaded, Result) else list(loaded)
