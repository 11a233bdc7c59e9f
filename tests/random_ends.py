"""Random experiments, the ways in which their runs are ended, and records that were forged; a number draws all of it.

A run is ended several times, then goes on to its end: interrupted just before an event that is drawn, or when it asks
for the so manieth time whether it is to stop; killed; ended by a class of the user's that raises. Checkpoints are
written at each opportunity, only when it is interrupted, or not at all, and are kept or not.
"""

from __future__ import annotations

import csv
import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from fredsim.runs.checkpoint.checkpoints import NO_CHECKPOINTS, CheckpointPolicy
from fredsim.runs.folder.results import Result
from fredsim.system.parquet_files import open_parquet
from tests.random_experiments import fitting, made_up
from tests.sealing import seal

__all__ = ["FAILS", "OWN", "SLOW", "Way", "bounded_by_goal", "ending", "forgeries", "ways"]

#: The files whose presence lets the user's class raise, or take its time.
FAILS, SLOW = Path("fails"), Path("slow")
OWN = f"""
import time
from pathlib import Path

import numpy as np

class Growing:
    def __init__(self, lr, factor=1.0, at=0):
        self.rate, self.factor, self.at, self.count = lr, factor, at, 0

    def init(self, params, clients):
        self.params = params.copy()

    def apply_update(self, grad, client_id, timestamp):
        if self.count == self.at and Path({str(FAILS)!r}).exists():
            raise ValueError("not yet")
        if Path({str(SLOW)!r}).exists():
            time.sleep(0.005)
        self.count += 1
        self.rate *= self.factor
        self.params -= np.float32(self.rate) * grad
"""
POLICIES = (
    NO_CHECKPOINTS, CheckpointPolicy(1e9), CheckpointPolicy(1e9), CheckpointPolicy(1e-9),
    CheckpointPolicy(1e-9, keep=True),
)  # fmt: skip


@dataclass(frozen=True)
class Way:
    """One way to end a run before its end; of the first three fields, one is given."""

    stop_at: int | None = None
    """The event before which it is interrupted."""
    asks: int | None = None
    """How often it asks in vain whether it is to stop."""
    killed_at: int | None = None
    """The iteration from which on its process is killed."""
    policy: CheckpointPolicy = NO_CHECKPOINTS
    fails: bool = False
    """Whether the user's class raises, if the experiment has it, and if the run gets that far."""


def ending(number: int, *, large: bool = False) -> dict[str, Any]:
    """Return experiment `number`, some of which diverge; networks and long ones only if they may be `large`."""
    for attempt in range(300):
        rng = random.Random(f"ends {number}, {attempt}")
        data = made_up(rng)
        if not large:
            if "name" in data["model"]:
                continue
            data["data"] |= {"train": 50, "validation": 9}
            data["iterations"] = rng.randint(1, 24)
        data |= {"backend": rng.choice(["numpy", "numba", "numba"]), "threads": 1}
        server = data["server"]
        if rng.random() < 0.2:
            at, factor = rng.randint(0, data["iterations"]), rng.choice([1.0, 1.0, 1e4])
            data["server"] = {"name": "own_ending:Growing", "lr": 0.01, "at": at, "factor": factor}
        elif "lr" in server and rng.random() < 0.5:
            factor, every = rng.choice([3.0, 30.0, 1e4]), rng.choice([1, 1, 2, 3])
            server["lr"] = {"name": "exponential", "base": 1e-2, "factor": factor, "every": every}
        if data["dispatcher"]["name"] == "clock" and rng.random() < 0.5:
            del data["iterations"]
            if rng.random() < 0.5:  # the last event is at the very end
                data["dispatcher"]["compute"] = {"seconds": 1.0}
            data["seconds"] = rng.choice([0.5, 1.0, 2.0, 3.0, 4.3])
        elif rng.random() < 0.2:
            data["updates"] = data.pop("iterations")
        if fitting(data) is not None:
            return data
    raise AssertionError(f"experiment {number}: no valid one in 300 draws")


def bounded_by_goal(data: Mapping[str, Any], whole: Result, rng: random.Random) -> dict[str, Any] | None:
    """Return the experiment with a goal that one of its rows reaches; None if no row has a loss."""
    losses = [loss for loss in whole.metrics["validation_loss"].tolist() if 0 < loss < 1e300]
    return {**data, "until": {"validation_loss": rng.choice(losses)}} if losses else None


def ways(rng: random.Random, whole: Result) -> list[Way]:
    """Return the ways in which a run is ended one after the other, if `whole` is the run that nobody ends."""
    end = whole.summary["iterations"]
    # Faults are found where something else happens, too: at the ends, at rows, before the event that diverges.
    places = [0, 1, end - 1, end, end, *whole.metrics["iteration"].tolist(), rng.randint(0, end), rng.randint(0, end)]
    found = []
    for at in sorted(rng.choice([place for place in places if 0 <= place <= end]) for _ in range(rng.randint(1, 3))):
        kinds = [Way(stop_at=at), Way(stop_at=at), Way(stop_at=at), Way(asks=min(at, 5)), Way(killed_at=at)]
        way = rng.choice(kinds)
        # Where the next event would show that the run has ended, only a checkpoint tells that it was interrupted.
        policies = POLICIES[1:] if way.asks is not None or way.stop_at == end else POLICIES
        found.append(replace(way, policy=rng.choice(policies), fails=rng.random() < 0.5))
    return found


Forgery = tuple[str, Callable[[Path], object]]


def forgeries(folder: Path, whole: Path) -> Iterator[Forgery]:
    """Yield what a forger may do to a copy of a record in `folder`, that is false then: what, and the function.

    `whole` is the record of the run that nobody ended. The copies are to be sealed.
    """
    record, true = (json.loads((path / "summary.json").read_bytes()) for path in (folder, whole))
    names = [path.name for path in sorted(folder.iterdir()) if path.is_file() and path.name != "summary.json"]
    same = all(
        (whole / name).is_file() and (whole / name).read_bytes() == (folder / name).read_bytes() for name in names
    )
    kept = (folder / "checkpoint" / f"{record['iterations']:012d}.json").exists()
    for status in ("finished", "diverged", "interrupted", "failed"):
        if status == record["status"] or (same and status == true["status"]):
            continue
        if status == "interrupted" and kept:  # such a checkpoint is what an interrupted run leaves there
            continue
        yield f"status {status}", partial(said, record | {"status": status})
    for key, change in (("iterations", 1), ("iterations", -1), ("updates", 1), ("updates", -1), ("pushes", 1)):
        changed = record | {key: record[key] + change}
        changed["iterations_per_second"] = changed["iterations"] / changed["seconds"]
        yield f"{key} {change:+}", partial(said, changed)
    if not same:
        yield "the whole run's summary", partial(said, true)
        yield "the whole run's, interrupted", partial(said, true | {"status": "interrupted"})
        for name in names:
            if (whole / name).read_bytes() != (folder / name).read_bytes():
                yield f"the whole run's {name}", partial(copied, whole / name)
    rows = list(csv.DictReader(StringIO((folder / "metrics.csv").read_text(encoding="utf-8"))))
    yield "metrics.csv without its last row", partial(shortened, "metrics.csv")
    # If no parameter has changed since the row before, a run that was interrupted there may have left the same.
    if len(rows) > 1 and rows[-2]["digest"] != rows[-1]["digest"]:
        yield "the row before as the last", partial(at_row, record, rows[-2])
    for name in ("staleness.csv", "probe.csv", "clients.csv"):
        if name in names and (folder / name).read_bytes().count(b"\n") > 1:
            yield f"{name} without its last row", partial(shortened, name)
    if "events.parquet" in names and record["iterations"]:
        yield "events.parquet without its last row", one_event_less
    yield "a bit of a parameter", changed_parameter


def said(summary: Mapping[str, Any], folder: Path) -> None:
    """Let a record say this."""
    seal(folder, summary)


def copied(file: Path, folder: Path) -> None:
    """Put another file in the place of the record's."""
    shutil.copy(file, folder)
    seal(folder)


def shortened(name: str, folder: Path) -> None:
    """Drop the last row of a table."""
    lines = (folder / name).read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / name).write_text("".join(lines[:-1]), encoding="utf-8")
    seal(folder)


def at_row(summary: Mapping[str, Any], row: Mapping[str, str], folder: Path) -> None:
    """Say that the run was interrupted at the row before the last one."""
    shortened("metrics.csv", folder)
    iterations, counts = int(row["iteration"]), ("pushes", "fetches", "bytes_pushed", "bytes_fetched")
    changed = {"status": "interrupted", "digest": row["digest"], "iterations": iterations}
    changed |= {"updates": int(row["timestamp"]), "iterations_per_second": iterations / summary["seconds"]}
    changed |= {key: float(row[key]) for key in ("validation_loss", "validation_error") if summary[key] is not None}
    changed |= {key: int(row[key]) for key in counts}
    seal(folder, {**summary, **changed} | ({"time": float(row["time"])} if "time" in summary else {}))


def one_event_less(folder: Path) -> None:
    """Drop the last event."""
    import pyarrow.parquet  # which is slow to import

    table = open_parquet(folder / "events.parquet")[0].read()
    pyarrow.parquet.write_table(table.slice(0, len(table) - 1), folder / "events.parquet")
    seal(folder)


def changed_parameter(folder: Path) -> None:
    """Change the last bit of the last parameter."""
    params = load_file(folder / "params.safetensors")
    last = params[max(params)].reshape(-1).view("u1")
    last[-4] ^= 1
    save_file(params, folder / "params.safetensors")
    seal(folder)
