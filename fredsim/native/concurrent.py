"""Passes of several clients at the same time, for modules that PyTorch computes on a processor.

PyTorch's own threads divide an operation, which gains little if it is small. Passes of different clients need nothing
of each other. So each is computed by one thread, with a copy of the module, where PyTorch lets other threads of Python
run while it computes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from fredsim.errors import SimulationError
from fredsim.native.model import TorchModel
from fredsim.native.params import MANY
from fredsim.native.passes import Passes
from fredsim.numerics.ops.draws import Draws
from fredsim.plugins.failures import failed_on, is_interrupt
from fredsim.plugins.outside import Outside
from fredsim.plugins.seeding import generators_kept
from fredsim.system.memory import format_bytes

__all__ = ["ConcurrentPasses", "at_the_same_time"]

Array = NDArray[np.float32]
Arrays = Sequence[NDArray[Any]]
Compute = Callable[[Passes, int], Any]
Use = Callable[[int, Any], bool]

#: How many tasks, for each thread, may be begun before a result is used.
AHEAD = 3
#: The least seconds of a pass for which the threads' waiting for Python's lock does not matter.
LONG = 3e-3
#: About how many seconds a number of threads is tried, and how much of the time another one must save to be taken.
TRIED, SAVED = 0.02, 0.05
#: The fewest bytes that a forward pass must keep for its backward pass: that of fewer is mostly Python, of which one
#: thread runs at a time. And the most that all forward passes at the same time may keep.
LEAST_BYTES, MOST_BYTES = 2**18, 2**30
#: The most passes at the same time of a module that draws: one forward pass at a time does, which takes about a third
#: of both passes' time.
MOST_DRAWING = 3
#: How many backward passes of a module that draws are looked at: what it has drawn may decide what they do.
LOOKED_AT = 8


def at_the_same_time(
    passes: Passes, clients: int, threads: int, statistics: Arrays | None
) -> tuple[ConcurrentPasses | None, str]:
    """Return what computes passes of several clients at the same time; None if nothing can, and why.

    That depends on the experiment and the number of threads alone, as the number of threads of each pass does.
    `statistics`: the module's running statistics, if it has some.
    """
    model, most = passes.model, min(clients, threads, MOST_DRAWING if passes.draws else threads)
    if why := _obstacle(model, most):
        return None, why
    start, gradient = model.initial_params, partial(_gradient, statistics, np.arange(passes.mu))
    moved = start * np.float32(1 + 1 / 64)
    found = None
    try:
        most, why = _most_by_memory(passes, statistics, most)
        if why:
            return None, why
        outside = Outside(model.functions, partial(_shared, model))
        with generators_kept():
            alone = gradient([moved], passes, 0)
            twins = [passes.add_twin() for _ in range(most)]
            passes.own.copy(start)  # at which no copy must compute
            copied = gradient([moved], twins[0], 0)
        passes.own.forget_gradients()  # if the copy computes with its parameters
        if copied.tobytes() != alone.tobytes():
            why = "a copy of it computes another gradient"
        else:
            outside.take_state()  # now, as the last pass was at other parameters than those before
            found = ConcurrentPasses(twins, threads // most)
            with generators_kept():
                found.choose(partial(gradient, [start]))
                if not found.same(partial(gradient, [start, moved])):
                    why = "computed at the same time as another one, a gradient has other bits"
        if not why:
            outside.take_state()
    except SimulationError as error:
        why = str(error).partition(",")[0]
    except BaseException as error:  # of any type: the module is the user's
        why = f"a copy of it {failed_on(model.shape, error)}"
        if is_interrupt(error):
            _close(found)
            raise
    if why:
        _close(found)
        passes.leave_twins()
        return None, why
    return found, ""


def _obstacle(model: TorchModel, most: int) -> str:
    """Return why nothing can be computed at the same time, as far as that is known without computing; else ""."""
    if most < 2:
        return "no more are taken at once"
    if model.device.type != "cpu":
        return "a device computes it"
    if model.layout.size >= MANY:
        return f"it has {MANY:,} parameters or more"
    if any(part._forward_hooks or part._forward_pre_hooks for part in model.module.modules()):
        return "it has hooks, and copies would have the same ones"
    return ""


def _most_by_memory(passes: Passes, statistics: Arrays | None, most: int) -> tuple[int, str]:
    """Compute some gradients; return how many may be computed at the same time by what one keeps, and why none can."""
    start, rows = passes.model.initial_params, np.arange(passes.mu)
    with passes.drawing(Draws(0, 0, 0)), passes.following(statistics), RandomOperators() as drawn:
        kept = passes.kept_bytes(start, rows)
    if drawn.found and not passes.draws:
        return 1, "it draws random numbers, and puts the generator back"
    for number in range(LOOKED_AT if passes.draws else 0):
        with passes.drawing(Draws(0, 0, number)), passes.following(statistics):
            if passes.calls_python_back(start, rows):
                return 1, "it draws random numbers, and Python code of its backward pass may do so, too"
    if kept < LEAST_BYTES:
        return 1, f"what a forward pass keeps is less than {format_bytes(LEAST_BYTES)}"
    most = min(most, MOST_BYTES // max(1, kept))
    return most, f"what two forward passes keep is more than {format_bytes(MOST_BYTES)}" if most < 2 else ""


def _gradient(
    statistics: Arrays | None, rows: NDArray[np.int64], held: Sequence[Array], passes: Passes, i: int
) -> Array:
    """Return gradient number i, at one of some parameters (P,)."""
    with passes.drawing(Draws(0, 0, i)), passes.following(statistics):
        return passes.gradient(held[i % len(held)], rows)


class RandomOperators(TorchDispatchMode):  # type: ignore[misc]
    """Notes in a `with` block whether PyTorch draws random numbers, in this thread, from what all threads share."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operator of PyTorch's."""
        before = torch.get_rng_state() if torch.Tag.nondeterministic_seeded in func.tags else None
        result = func(*args, **(kwargs or {}))
        self.found |= before is not None and not torch.equal(before, torch.get_rng_state())
        return result


def _shared(model: TorchModel) -> dict[str, Any]:
    """Return what a module keeps, and its classes, whose methods may share variables of the function around them."""
    kinds = {type(part) for part in model.module.modules() if not type(part).__module__.startswith("torch.")}
    return model.kept() | {f"the class {kind.__qualname__} of {model.name}": kind for kind in kinds}


def _close(found: ConcurrentPasses | None) -> None:
    if found is not None:
        found.close()


def _note(arrays: dict[int, bytes], i: int, array: Array) -> bool:
    arrays[i] = array.tobytes()
    return True


@dataclass
class Tasks:
    """Numbered tasks, whose results are used one after the other, in order.

    They are begun in order, too, unless one has to wait: of those behind it, at most so many as `ahead` overtake it.
    """

    after: Sequence[int]
    compute: Compute
    use: Use | None
    ahead: int
    begun: set[int] = field(default_factory=set)  # of those whose results are not used yet
    used: int = 0
    running: int = 0
    using: bool = False
    stopped: bool = False
    results: dict[int, tuple[Any, BaseException | None]] = field(default_factory=dict)
    error: BaseException | None = None

    @property
    def over(self) -> bool:
        """Whether none is under way, and none is begun any longer."""
        return self.running == 0 and (self.stopped or self.used == len(self.after))

    def begin(self) -> int | None:
        """Begin the next one, and return its number; None if there is none that can be begun now."""
        end = self.used if self.stopped else min(self.used + self.ahead, len(self.after))
        for i in range(self.used, end):
            if i not in self.begun and self.after[i] <= self.used:
                self.begun.add(i)
                self.running += 1
                return i
        return None


class ConcurrentPasses:
    """One thread for each of some copies of a module; see Passes.add_twin."""

    def __init__(self, each: Sequence[Passes], threads: int) -> None:
        """`threads`: by how many threads of PyTorch's each pass is computed, on which its bits depend."""
        self.threads, self.most, self.at_once = threads, len(each), len(each)
        self._long = False
        self._lock = threading.Lock()
        self._changed, self._ended = threading.Condition(self._lock), threading.Condition(self._lock)
        self._tasks: Tasks | None = None
        self._closed = False
        self._each = [
            threading.Thread(target=self._serve, args=(number, one), name=f"fredsim-passes-{number}", daemon=True)
            for number, one in enumerate(each)
        ]
        for thread in self._each:
            thread.start()

    def run(self, after: Sequence[int], compute: Compute, use: Use | None = None) -> int:
        """Do n tasks; return how many results were used before `use` said to stop, else n.

        `compute(passes, i)` returns the result of task i. It is called once the results of `after[i]` tasks are used.
        `use(i, result)` is called in the order of the tasks, for one at a time, and returns whether to go on. Both are
        called in threads. An exception of either is raised once the results of the tasks before are used.
        """
        tasks = Tasks(after, compute, use, AHEAD * self.at_once)
        with self._lock:
            self._tasks = tasks
            self._changed.notify_all()
            try:
                while not tasks.over:
                    self._ended.wait()
            finally:
                tasks.stopped = True
                while tasks.running:  # also after an interrupt: they read what the caller may change
                    with suppress(KeyboardInterrupt):
                        self._ended.wait()
                self._tasks = None
        if tasks.error is not None:
            raise tasks.error
        return tasks.used

    def choose(self, compute: Compute) -> None:
        """Choose how many passes are computed at once, which changes no bit, by the time that some take.

        Passes of less than a millisecond are mostly Python, of which one thread runs at a time.
        """
        self.at_once = 1
        fastest = self._time_of_one(compute, 1)
        count = max(1, int(TRIED / fastest))
        fastest = self._time_of_one(compute, count)
        chosen, tried = 1, 1
        while fastest < LONG and tried < self.most:
            tried = self.at_once = min(2 * tried, self.most)
            if (found := self._time_of_one(compute, max(count, 4 * tried))) > (1 - SAVED) * fastest:
                break
            fastest, chosen = found, tried
        self._long = fastest >= LONG
        self.at_once = self.most if self._long else chosen

    def same(self, compute: Compute) -> bool:
        """Return whether some arrays are the same bytes if they are computed one after the other."""
        at_once, found = self.at_once, []
        if at_once == 1:
            return True
        for self.at_once in (1, at_once):
            arrays: dict[int, bytes] = {}
            self.run([0] * self.most * (1 if self._long else 8), compute, partial(_note, arrays))
            found.append(arrays)
        return found[0] == found[1]

    def _time_of_one(self, compute: Compute, count: int) -> float:
        begin = time.perf_counter()
        self.run([0] * count, compute)
        return (time.perf_counter() - begin) / count

    def close(self) -> None:
        """End the threads."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        for thread in self._each:
            thread.join()

    def _serve(self, number: int, passes: Passes) -> None:
        """Do one task after the other."""
        torch.get_num_threads()  # a thread's first use of its number makes it the one that was set last in any thread
        torch.set_num_threads(self.threads)  # of this thread alone
        with self._lock:
            while not self._closed:
                tasks = self._tasks if number < self.at_once else None
                if tasks is None or (i := tasks.begin()) is None:
                    self._changed.wait()
                    continue
                tasks.results[i] = self._unlocked(tasks.compute, passes, i)
                if not tasks.using:
                    self._use(tasks)
                tasks.running -= 1
                if tasks.over:
                    self._ended.notify_all()

    def _use(self, tasks: Tasks) -> None:
        """Use the results that are next."""
        tasks.using = True
        while not tasks.stopped and tasks.used in tasks.results:
            result, error = tasks.results.pop(tasks.used)
            go_on = True
            if error is None and tasks.use is not None:
                go_on, error = self._unlocked(tasks.use, tasks.used, result)
            if error is not None:
                tasks.error, tasks.stopped = error, True
            elif go_on:
                tasks.begun.discard(tasks.used)
                tasks.used += 1
            else:
                tasks.stopped = True
            self._changed.notify_all()
        tasks.using = False

    def _unlocked(self, function: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
        """Return what a function returns, or the exception that it raises, while other threads may go on."""
        self._lock.release()
        try:
            return function(*arguments), None
        except BaseException as error:  # of any type: the module is the user's
            return None, error
        finally:
            self._lock.acquire()
