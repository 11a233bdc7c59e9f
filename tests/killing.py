"""Kills a run repeatedly, continues it each time, and compares its files with those of an uninterrupted run.

Each start is a process of its own: a fork of this one, which has imported fredsim and computed a few iterations of the
same experiment, so that a start takes a twentieth of a second. It ends by SIGKILL: at a random moment after a random
iteration; at a random one of the system calls that write, before it, after it or when a third of the bytes are written;
while it starts; or at the end of its run. The next start continues in the same folder.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fredsim
from fredsim import FredsimWarning
from fredsim.compute import storage
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
from fredsim.runs.folder import event_file
from fredsim.runs.many.runner import run_expansion
from fredsim.runs.processes.observer import Monitor, Observer
from fredsim.runs.single import execution, run
from fredsim.runs.single.opening import open_expansion
from fredsim.simulation.schedule import event_log
from tests.fatal_calls import FatalCalls, SharedState
from tests.kill_cells import Cell

__all__ = ["Killed", "files_in", "kill"]

PATIENCE = 120.0  # how many seconds to wait for a process
MOST_RUNS = 5
#: The shares of a run's kills while it starts, and at its end; all others are in between.
AT_STARTS, AT_ENDS = 0.15, 0.1
#: The number of system calls at the end of every run, before summary.json is in place.
AT_END = 12
#: The choices of the seconds between two checkpoints.
EVERY = (1e-9, 1e-9, 0.002, 0.02)
NEVER = sys.maxsize
#: The keys of summary.json, or their beginnings, that depend on how long things took, and its own digest.
SPENT = ("seconds", "iterations_per_second", "shares_kernels", "sha256")


@dataclass
class Plan:
    """When one start is killed."""

    after: int = NEVER
    """The iteration from which on it is killed; −1: from the start of the process."""
    delay: float | None = None
    """The seconds from then until it is killed; None: it is killed in a system call."""
    call: int = -1
    """The number of system calls from then until the fatal one; −1: none is fatal."""
    every: float = 1e-9
    """Seconds between two checkpoints."""


class Reporter(Monitor, Observer):
    """Reports to the other process how far the run has come, and arms the kill."""

    def __init__(self, plan: Plan, shared: SharedState, calls: FatalCalls, pipe: int) -> None:
        self._plan, self._shared, self._calls, self._pipe = plan, shared, calls, pipe
        self._arm_at(-1)

    def _arm_at(self, iteration: int) -> None:
        if iteration >= self._plan.after:
            self._plan.after = NEVER
            self._calls.left = self._plan.call
            os.write(self._pipe, b"!")

    def observer(self) -> Observer:
        return self

    def note(self, text: str) -> None:
        _, output, iteration = text.partition("continues from the checkpoint at iteration ")
        if output:
            self._shared.begun = int(iteration)
        elif not text.endswith("finished before, and is not run again"):
            print(text, flush=True)  # noqa: T201  into the log

    def advance(self, iteration: int, timestamp: int, time: float) -> None:
        self._shared.iteration = iteration
        self._shared.put()
        self._arm_at(iteration)


@dataclass
class Killed:
    """The result of killing one run."""

    cell: Cell
    path: str = ""
    at: list[int] = field(default_factory=list)
    """The iteration at each kill, −1 while the process started."""
    calls: list[str] = field(default_factory=list)
    """The system call at each kill, "" if it was in none."""
    runs: int = 0
    """How many runs were needed, since a run that has ended cannot be killed."""
    starts: int = 0
    resumed: int = 0
    """How many starts continued from a checkpoint."""
    result: str = ""
    seconds: float = 0.0

    @property
    def in_checkpoint(self) -> int:
        """The number of kills while a file of a checkpoint was written, renamed or removed."""
        return sum("checkpoint" in call for call in self.calls)

    @property
    def in_files(self) -> int:
        """The number of kills while another file was written, renamed or removed."""
        return sum(bool(call) for call in self.calls) - self.in_checkpoint


def start(data: Mapping[str, Any], folder: Path, plan: Plan, shared: SharedState, seed: float) -> tuple[int, str]:
    """Run in a process of its own; return the signal that ended it, 0 for none, and its output."""
    shared.clear()
    log = folder.with_suffix(".log")
    reader, writer = os.pipe()
    if not (child := os.fork()):
        code = 1
        try:
            with log.open("w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            monitor = Reporter(plan, shared, FatalCalls(folder, shared, random.Random(seed)), writer)
            run.MOST_CHECKPOINT_SHARE, event_file.FIRST_GROUP_ROWS, storage.FILE_BYTES = 1e9, 64, 2**20
            event_log.MOST = 2**12
            vars(execution)["must_be_apart"] = lambda _: False  # the process that computes is to be killed
            policy = CheckpointPolicy(plan.every)
            warnings.filterwarnings("ignore", "(?s).*about that of always giving one label", FredsimWarning)
            run_expansion(open_expansion(dict(data)), folder, resume=True, policy=policy, monitor=monitor)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(writer)
    armed = select.select([reader], [], [], PATIENCE)[0] and os.read(reader, 1)
    if armed and plan.delay is not None:
        time.sleep(plan.delay)
        os.kill(child, signal.SIGKILL)
    os.close(reader)
    return _wait_for(child), log.read_text(encoding="utf-8") if log.exists() else ""


def _wait_for(child: int) -> int:
    """Wait for a process; return the signal that ended it, or its exit code, negated; −1000 if it hung."""
    limit = time.monotonic() + PATIENCE
    while not (found := os.waitpid(child, os.WNOHANG))[0]:
        time.sleep(0.0005)
        if time.monotonic() > limit:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -1000
    return os.WTERMSIG(found[1]) if os.WIFSIGNALED(found[1]) else -os.WEXITSTATUS(found[1])


def plans(cell: Cell, length: int, kills: int, rng: random.Random) -> Iterator[Plan]:
    """Yield a plan for each start: kills by ascending iteration, then those at the run's end, then a plan without."""
    slow = 30 if cell.backend == "cuda" else 1
    at_end, at_start = (0, kills) if cell.sweep else (round(kills * AT_ENDS), round(kills * AT_STARTS))
    after = sorted(rng.randrange(int(0.85 * length)) for _ in range(kills - at_end - at_start))
    for _ in range(at_start):
        after.insert(rng.randrange(len(after) + 1), -1)
    calls, seconds = (60, 0.2) if cell.sweep else (12, 0.05 * slow)  # the ranges for kills while a process starts
    for begin in after:
        by_call, every = rng.random() < 0.6, rng.choice(EVERY) * min(slow, 10)
        delay = None if by_call else rng.random() * (seconds if begin < 0 else 0.01 * slow)
        yield Plan(begin, delay, rng.randrange(calls if begin < 0 else 30) if by_call else -1, every)
    for _ in range(at_end):
        yield Plan(length, None, rng.randrange(AT_END))
    yield Plan()


def files_in(folder: Path) -> dict[str, object]:
    """Return the files of a run, or of a sweep's runs, by name; of summary.json only what depends on no time."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    found: dict[str, object] = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    for path in paths:
        if path.name == "summary.json":
            summary = json.loads(path.read_text(encoding="utf-8"))
            plain = {name: value for name, value in summary.items() if not name.startswith(SPENT)}
            found[str(path.relative_to(folder))] = plain
    return found


def kill(cell: Cell, kills: int, work: Path, seed: str) -> Killed:
    """Kill a run `kills` times, and let it end; if it ends too soon, another run takes the remaining kills.

    The runs are in the folder `work`, in which the cell before left the trace that this one may replay.
    """
    rng, killed, began, reference = random.Random(seed), Killed(cell), time.monotonic(), work / cell.dispatcher
    data = dict(cell.data)
    if cell.replays:
        kept = {key: data["dispatcher"].get(key) for key in ("push", "dropped_push") if key in data["dispatcher"]}
        data["dispatcher"] = kept | {"name": "trace", "file": str(work / "clock" / "events.parquet")}
    few = {key: value for key, value in data.items() if key != "sweep"} | {"iterations": 3}
    fredsim.run(few, out=work / f"{cell.dispatcher} warm", checkpoint=0)
    number, output = start(data, reference, Plan(every=0.0), SharedState(), 0)
    if number or output:
        killed.result = f"failed: {number} {output.strip().splitlines()[-1:]}"
        return killed
    while killed.result in {"", "same"} and len(killed.at) < kills and killed.runs < MOST_RUNS:
        killed.runs += 1
        killed.result = _killed_once(
            data, reference, reference.with_name(f"{reference.name} {killed.runs}"), killed, kills, rng
        )
    killed.seconds = time.monotonic() - began
    return killed


def _killed_once(
    data: Mapping[str, Any], reference: Path, folder: Path, killed: Killed, kills: int, rng: random.Random
) -> str:
    """Kill one run until all kills have hit or it ends; return how its files differ from `reference`, or `same`."""
    expected, shared = files_in(reference), SharedState()
    ends = [name for name in expected if name.endswith("summary.json")]
    summary = json.loads((reference / ends[0]).read_text(encoding="utf-8"))
    killed.path = summary["path"]
    late = False  # whether it was killed after all its files were written
    for plan in plans(killed.cell, summary["iterations"], kills - len(killed.at), rng):
        number, output = start(data, folder, plan, shared, rng.random())
        shared.get()
        killed.starts += 1
        killed.resumed += shared.begun >= 0
        if output or number not in {0, signal.SIGKILL}:
            return f"start {killed.starts}: {number} {output.strip().splitlines()[-1:]}"
        if not number:
            break
        late = all((folder / name).exists() for name in ends)
        if not late:
            killed.at.append(shared.iteration)
            killed.calls.append(shared.call)
    found = files_in(folder)
    names = [name for name in {**expected, **found} if not (late and name.startswith("checkpoint"))]
    different = [name for name in names if expected.get(name) != found.get(name)]
    return f"different: {', '.join(different)}" if different else "same"
