"""A run is killed again and again, and goes on each time: is what it leaves in the end what it leaves if nobody does?

Each start is a process of its own: a fork of this one, which has imported fredsim and computed a few iterations of the
same experiment, so that a start takes a twentieth of a second. It ends by SIGKILL: at a random moment after a random
iteration; by a random one of the system calls that write, before it, after it or when a third of the bytes are written;
while it starts; or at the end of its run. The next start goes on in the same folder.
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fredsim
from fredsim.compute import storage
from fredsim.runs import event_file, run
from fredsim.runs.checkpoints import CheckpointPolicy
from fredsim.runs.observer import Monitor, Observer
from fredsim.runs.opening import open_expansion
from fredsim.runs.runner import run_expansion
from fredsim.simulation import event_log
from tests.fatal_calls import FatalCalls, Scene
from tests.kill_cells import Cell

__all__ = ["Killed", "kill"]

PATIENCE = 120.0  # seconds
MOST_RUNS = 5
#: Of the kills of a run: while it starts, and at its end; all others on the way.
AT_STARTS, AT_ENDS = 0.15, 0.1
#: System calls that every run ends with before it has ended.
AT_END = 12
#: Seconds between two checkpoints, one of these at random.
EVERY = (1e-9, 1e-9, 0.002, 0.02)
NEVER = sys.maxsize
#: What of summary.json tells how long things took, and its own digest.
SPENT = ("seconds", "iterations_per_second", "shares_kernels", "sha256")


@dataclass
class Plan:
    """How one start is to end."""

    after: int = NEVER
    """From which iteration on, −1 from the start of the process."""
    delay: float | None = None
    """Seconds until it is killed; None: by one of its calls."""
    call: int = -1
    """By which, from then on; −1 by none."""
    every: float = 1e-9
    """Seconds between two checkpoints."""


class Watched(Monitor, Observer):
    """Tells the other process how far the run is, and arms what is to end it."""

    def __init__(self, plan: Plan, scene: Scene, calls: FatalCalls, pipe: int) -> None:
        self._plan, self._scene, self._calls, self._pipe = plan, scene, calls, pipe
        self._arm_at(-1)

    def _arm_at(self, iteration: int) -> None:
        if iteration >= self._plan.after:
            self._plan.after = NEVER
            self._calls.left = self._plan.call
            os.write(self._pipe, b"!")

    def observer(self) -> Observer:
        return self

    def note(self, text: str) -> None:
        _, said, iteration = text.partition("goes on from the checkpoint at iteration ")
        if said:
            self._scene.begun = int(iteration)
        elif not text.endswith("finished before, and is not run again"):
            print(text, flush=True)  # noqa: T201  into the log

    def advance(self, iteration: int, timestamp: int, time: float) -> None:
        self._scene.iteration = iteration
        self._scene.put()
        self._arm_at(iteration)


@dataclass
class Killed:
    """What became of a run."""

    cell: Cell
    path: str = ""
    at: list[int] = field(default_factory=list)
    """The iterations at kills, −1 while it started."""
    calls: list[str] = field(default_factory=list)
    """The system call that it was in at each of them, or nothing."""
    runs: int = 0
    """How many runs it took: one that has ended is not killed."""
    starts: int = 0
    resumed: int = 0
    """How many starts went on from a checkpoint."""
    result: str = ""
    seconds: float = 0.0

    @property
    def in_checkpoint(self) -> int:
        """Kills while a file of a checkpoint was being written, renamed or removed."""
        return sum("checkpoint" in call for call in self.calls)

    @property
    def in_files(self) -> int:
        """Kills while another file was."""
        return sum(bool(call) for call in self.calls) - self.in_checkpoint


def start(data: Mapping[str, Any], folder: Path, plan: Plan, scene: Scene, seed: float) -> tuple[int, str]:
    """Run in a process of its own; return the signal that ended it, 0 for none, and what it said."""
    scene.clear()
    log = folder.with_suffix(".log")
    reader, writer = os.pipe()
    if not (child := os.fork()):
        code = 1
        try:
            with log.open("w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            monitor = Watched(plan, scene, FatalCalls(folder, scene, random.Random(seed)), writer)
            run.MOST_CHECKPOINT_SHARE, event_file.FIRST_GROUP_ROWS, storage.FILE_BYTES = 1e9, 64, 2**20
            event_log.MOST = 2**12
            policy = CheckpointPolicy(plan.every)
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
    return _ended(child), log.read_text(encoding="utf-8") if log.exists() else ""


def _ended(child: int) -> int:
    """Wait for a process; return the signal that it died of, or its exit code, negated; −1000 where it hung."""
    limit = time.monotonic() + PATIENCE
    while not (found := os.waitpid(child, os.WNOHANG))[0]:
        time.sleep(0.0005)
        if time.monotonic() > limit:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -1000
    return os.WTERMSIG(found[1]) if os.WIFSIGNALED(found[1]) else -os.WEXITSTATUS(found[1])


def plans(cell: Cell, length: int, kills: int, rng: random.Random) -> Iterator[Plan]:
    """Yield how starts are to end: those on the way by their iterations, those at the run's end last, then none."""
    slow = 30 if cell.backend == "cuda" else 1
    at_end, at_start = (0, kills) if cell.sweep else (round(kills * AT_ENDS), round(kills * AT_STARTS))
    after = sorted(rng.randrange(int(0.85 * length)) for _ in range(kills - at_end - at_start))
    for _ in range(at_start):
        after.insert(rng.randrange(len(after) + 1), -1)
    calls, seconds = (60, 0.2) if cell.sweep else (12, 0.05 * slow)  # of those that start
    for begin in after:
        by_call, every = rng.random() < 0.6, rng.choice(EVERY) * min(slow, 10)
        delay = None if by_call else rng.random() * (seconds if begin < 0 else 0.01 * slow)
        yield Plan(begin, delay, rng.randrange(calls if begin < 0 else 30) if by_call else -1, every)
    for _ in range(at_end):
        yield Plan(length, None, rng.randrange(AT_END))
    yield Plan()


def _left_in(folder: Path) -> dict[str, object]:
    """Return what a run has left, or those of a sweep: files by name, and of summary.json what tells no time."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    found: dict[str, object] = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    for path in paths:
        if path.name == "summary.json":
            summary = json.loads(path.read_text(encoding="utf-8"))
            plain = {name: value for name, value in summary.items() if not name.startswith(SPENT)}
            found[str(path.relative_to(folder))] = plain
    return found


def kill(cell: Cell, kills: int, work: Path, seed: str) -> Killed:
    """Kill a run so many times, and let it end; where it ends too soon, another one for the kills that are left.

    In the folder `work`, where the cell before left what it replays.
    """
    rng, killed, began, whole = random.Random(seed), Killed(cell), time.monotonic(), work / cell.dispatcher
    data = dict(cell.data)
    if cell.replays:
        kept = {key: data["dispatcher"].get(key) for key in ("push", "dropped_push") if key in data["dispatcher"]}
        data["dispatcher"] = kept | {"name": "trace", "file": str(work / "clock" / "events.parquet")}
    few = {key: value for key, value in data.items() if key != "sweep"} | {"iterations": 3}
    fredsim.run(few, out=work / f"{cell.dispatcher} warm", checkpoint=0)
    number, said = start(data, whole, Plan(every=0.0), Scene(), 0)
    if number or said:
        killed.result = f"failed: {number} {said.strip().splitlines()[-1:]}"
        return killed
    while killed.result in {"", "same"} and len(killed.at) < kills and killed.runs < MOST_RUNS:
        killed.runs += 1
        killed.result = _killed_once(data, whole, whole.with_name(f"{whole.name} {killed.runs}"), killed, kills, rng)
    killed.seconds = time.monotonic() - began
    return killed


def _killed_once(
    data: Mapping[str, Any], whole: Path, folder: Path, killed: Killed, kills: int, rng: random.Random
) -> str:
    """Kill one run until so many kills have hit; return how what it leaves differs from `whole`, or `same`."""
    expected, scene = _left_in(whole), Scene()
    ends = [name for name in expected if name.endswith("summary.json")]
    summary = json.loads((whole / ends[0]).read_text(encoding="utf-8"))
    killed.path = summary["path"]
    late = False  # whether it was killed when all was written
    for plan in plans(killed.cell, summary["iterations"], kills - len(killed.at), rng):
        number, said = start(data, folder, plan, scene, rng.random())
        scene.get()
        killed.starts += 1
        killed.resumed += scene.begun >= 0
        if said or number not in {0, signal.SIGKILL}:
            return f"start {killed.starts}: {number} {said.strip().splitlines()[-1:]}"
        if not number:
            break
        late = all((folder / name).exists() for name in ends)
        if not late:
            killed.at.append(scene.iteration)
            killed.calls.append(scene.call)
    found = _left_in(folder)
    names = [name for name in {**expected, **found} if not (late and name.startswith("checkpoint"))]
    different = [name for name in names if expected.get(name) != found.get(name)]
    return f"different: {', '.join(different)}" if different else "same"
