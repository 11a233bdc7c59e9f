"""A team of threads that run one compiled kernel together, and the barrier at which they wait for each other inside it.

A kernel of a team takes (rank, size, barrier, arguments) and divides its work by rank. The calling thread has rank 0.
The other threads spin for a moment after a call, then sleep. The barrier takes well under a microsecond; OpenMP's takes
more, and a work queue takes a hundred microseconds. Which rank does what never changes a bit.

If other programs use the processors, a thread that has lost its own keeps the rest of the team waiting at every
barrier, for milliseconds. So of calls that come again and again, some are tried on the calling thread alone, and
whichever way took less time is taken (Pace).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from ctypes import Structure, addressof, c_char
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from fredsim.jit.cache import Compiled
from fredsim.jit.pointers import call, element_pointer, int64s, item, lowered, put, shift
from fredsim.jit.processor import pause, yield_processor
from fredsim.jit.subroutine import subroutine

__all__ = ["Team", "address", "addresses", "barrier_wait", "fetch_add", "share"]

SPINS = 2000  # after this many spins at the barrier, yield, so that a late thread can get the processor
MIN_WORK = 20_000  # with fewer multiply-adds, waking the other threads costs more than it saves
FIRST_TRIAL, LAST_TRIAL = 16, 1024  # calls between two trials of Pace, which become rarer while nothing changes
TRIAL = 2  # calls of a trial, unless the first takes WORSE times as long as a call usually does
WORSE = 3
SHARE = 50  # between two trials is at least so many times the time that the first one took
BETTER = 0.9  # what the other way must take of a call's time to be taken
YIELD = 64  # of a thread that waits for a call, one pause in so many lets another thread have its processor
IDLE_PAUSES = 30_000  # pauses before a thread sleeps: two milliseconds, enough for a few updates by a server in NumPy


def address(array: NDArray[Any]) -> int:
    """Return the memory address of an array's first element."""
    try:
        return addressof(c_char.from_buffer(array))  # type: ignore[arg-type]  # four times as fast as NumPy's way
    except (TypeError, ValueError):  # the array is read-only, empty, or not contiguous
        return int(array.__array_interface__["data"][0])


def addresses(arrays: Iterable[NDArray[Any]]) -> NDArray[np.int64]:
    """Return the memory addresses of n arrays, int64 (n,); the caller must keep the arrays alive."""
    return np.array([address(array) for array in arrays], np.int64)


@subroutine
def share(rank, size, count):
    """Return the begin and the end of a thread's share of `count` floats, whole vectors of 16 except at the end."""
    end = count if rank == size - 1 else count // 16 * (rank + 1) // size * 16
    return count // 16 * rank // size * 16, end


class Pace:
    """Whether calls of one kind are split over the threads: the way that took less time when both were last tried."""

    def __init__(self) -> None:
        self.split = True
        self._seconds = 0.0  # that a call takes this way: a moving average
        self._left = self._period = FIRST_TRIAL  # calls until, and between, trials of the other way
        self._wait = 0.0  # seconds until the next trial: on many threads, the other way may take many times as long
        self._trial = 0  # calls left of the trial under way
        self._spent = 0.0  # the seconds of the trial so far

    def next(self) -> bool:
        """Return whether to split the next call."""
        return self.split != (self._trial > 0)

    def note(self, seconds: float) -> None:
        """Note how long that call took."""
        if self._trial:
            self._trial -= 1
            self._spent += seconds
            if self._trial == 0 or seconds > WORSE * self._seconds:  # the calls before wake threads, and fill caches
                self._decide(seconds)
            return
        self._seconds = self._seconds + (seconds - self._seconds) / 8 if self._seconds else seconds
        self._left -= 1
        self._wait -= seconds
        if self._left <= 0 and self._wait <= 0:
            self._trial = TRIAL

    def _decide(self, seconds: float) -> None:
        if seconds < BETTER * self._seconds:
            self.split, self._seconds, self._period = not self.split, seconds, FIRST_TRIAL
        else:
            self._period = min(2 * self._period, LAST_TRIAL)
        self._left, self._wait = self._period, SHARE * self._spent
        self._trial, self._spent = 0, 0.0


@intrinsic
def fetch_add(typingctx, pointer, index, value):
    """Add `value` to pointer[index], int64, atomically; return what was there before."""
    signature = types.int64(pointer, types.intp, types.int64)
    return lowered(signature, lambda b, p, i, x: b.atomic_rmw("add", element_pointer(b, p, i), x, "seq_cst"))


@intrinsic
def _atomic_load(typingctx, pointer, index):
    signature = types.int64(pointer, types.intp)
    return lowered(signature, lambda b, *place: b.load_atomic(element_pointer(b, *place), "seq_cst", 8))


@intrinsic
def _atomic_store(typingctx, pointer, index, value):
    signature = types.none(pointer, types.intp, types.int64)
    return lowered(signature, lambda b, p, i, x: b.store_atomic(x, element_pointer(b, p, i), "seq_cst", 8))


@subroutine
def barrier_wait(size, barrier):
    """Wait for all `size` threads. `barrier` is the address of int64 (16,): [0] counts waiting threads, [8] rounds."""
    if size > 1:
        counts = int64s(barrier)
        rounds = _atomic_load(counts, 8)
        if fetch_add(counts, 0, 1) == size - 1:
            _atomic_store(counts, 0, 0)
            fetch_add(counts, 8, 1)
        else:
            spins = 0
            while _atomic_load(counts, 8) == rounds:
                spins += 1
                if spins > SPINS:
                    yield_processor()


# The layout of the board, an int64 array that the threads share: the number of calls so far, the address of the kernel,
# that of its arguments, and whether rank 0 has yet to begin the call; then for each rank, STRIDE (two cache lines)
# apart, whether it sleeps, and the last call that it has seen.
CALLS, KERNEL, ARGUMENTS, PENDING, RANKS = 0, 1, 2, 3, 16
ASLEEP, SEEN, STRIDE = 0, 1, 16


def _serve(rank, size, barrier, board):
    """Run every kernel that is called; return 0 if there has been no call for a while, 1 if the team is closed."""
    shared = int64s(board)
    own = shift(shared, RANKS + STRIDE * rank)
    idle = 0
    while True:
        calls = _atomic_load(shared, CALLS)
        if calls != item(own, SEEN):
            put(own, SEEN, calls)
            if item(shared, KERNEL) == 0:
                return 1
            call(item(shared, KERNEL), (rank, size, barrier, item(shared, ARGUMENTS)))
            idle = 0
            continue
        idle += 1
        if idle % YIELD:
            pause()
        else:
            yield_processor()
        if idle > IDLE_PAUSES:
            _atomic_store(own, ASLEEP, 1)
            if _atomic_load(shared, CALLS) == calls:
                return 0
            _atomic_store(own, ASLEEP, 0)  # a call came just now
            idle = 0


def _begin(size, barrier, board, kernel, arguments):
    """Announce a call of a kernel to the other threads. If none of them sleeps, run it; else return how many do."""
    shared = int64s(board)
    put(shared, KERNEL, kernel)
    put(shared, ARGUMENTS, arguments)
    put(shared, PENDING, 1)
    fetch_add(shared, CALLS, 1)
    asleep = 0
    for rank in range(1, size):
        asleep += _atomic_load(shared, RANKS + STRIDE * rank + ASLEEP)
    if asleep == 0:
        put(shared, PENDING, 0)
        call(kernel, (0, size, barrier, arguments))
    return asleep


def _join(size, barrier, board):
    """Run, as rank 0, the kernel that was announced; the other threads are awake."""
    shared = int64s(board)
    put(shared, PENDING, 0)
    call(item(shared, KERNEL), (0, size, barrier, item(shared, ARGUMENTS)))
    return 0


def _end(board):
    """Announce that the team is closed."""
    shared = int64s(board)
    put(shared, KERNEL, 0)
    fetch_add(shared, CALLS, 1)
    return 0


serve = Compiled(_serve)
begin = Compiled(_begin)
join = Compiled(_join)
end = Compiled(_end)


class Team:
    """Several threads, the calling one included, that run kernels together; `close`, or a `with` block, ends them.

    `size` is the number of threads; `seconds` the time spent in kernels so far.
    """

    def __init__(self, threads: int) -> None:
        self.size = threads
        self._barrier = np.zeros(16, np.int64)
        self._board = np.zeros(RANKS + STRIDE * threads, np.int64)
        self._addresses = address(self._barrier), address(self._board)
        self.seconds = 0.0  # the seconds spent in kernels so far
        self._paces: dict[tuple[int, int], Pace] = {}
        self._begin, self._join, self._serve = begin.call, join.call, serve.call
        self._arguments: Structure | None = None  # those of the call under way, which must live until it is done
        self._starts = [threading.Semaphore(0) for _ in range(threads - 1)]
        self._threads = [
            threading.Thread(target=self._work, args=(rank,), name=f"fredsim-{rank}", daemon=True)
            for rank in range(1, threads)
        ]
        self._board[RANKS + ASLEEP :: STRIDE] = 1
        for thread in self._threads:
            thread.start()

    def run(self, kernel: Compiled, arguments: Structure, work: int | None = None) -> None:
        """Run a kernel (fredsim.jit.kernel) with packed arguments on all threads; return when all are done.

        `work` is about how many multiply-adds it does. With fewer than MIN_WORK, only the calling thread runs it. Calls
        of a kernel with equal work run on that thread alone, too, while this takes less time; None: never.
        """
        if self.size == 1 or (work is not None and work < MIN_WORK):
            self.run_alone(kernel, arguments)
            return
        if work is None:
            self._run_together(kernel, arguments)
            return
        key = kernel.address, work
        if (pace := self._paces.get(key)) is None:
            pace = self._paces[key] = Pace()
        before = self.seconds
        (self._run_together if pace.next() else self.run_alone)(kernel, arguments)
        pace.note(self.seconds - before)

    def _run_together(self, kernel: Compiled, arguments: Structure) -> None:
        began = time.perf_counter()
        self._arguments = arguments
        if self._begin(self.size, *self._addresses, kernel.address, addressof(arguments)):
            self._wake()
            self._join(self.size, *self._addresses)
        self._arguments = None
        self.seconds += time.perf_counter() - began

    def run_alone(self, kernel: Compiled, arguments: Structure) -> None:
        """Run a kernel on the calling thread only, as a team of one."""
        began = time.perf_counter()
        kernel.call(0, 1, self._addresses[0], addressof(arguments))
        self.seconds += time.perf_counter() - began

    def close(self) -> None:
        """End the threads. If an interrupt (Ctrl-C) came while a call was announced, they wait for rank 0 in it."""
        if self._board[PENDING]:
            self._release()
            self._join(self.size, *self._addresses)
        end.call(self._addresses[1])
        self._release()
        for thread in self._threads:
            thread.join()
        self._starts, self._threads, self.size = [], [], 1

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _release(self) -> None:
        """Wake every thread that sleeps, or is about to."""
        for start in self._starts:
            start.release()

    def _wake(self) -> None:
        """Wake the threads that sleep. A thread that is woken without need sleeps again."""
        for rank, start in enumerate(self._starts, 1):
            place = RANKS + STRIDE * rank + ASLEEP
            if self._board[place]:
                self._board[place] = 0
                start.release()

    def _work(self, rank: int) -> None:
        """Run on a thread of the team: sleep until a call, serve calls, and so on until the team is closed."""
        closed = 0
        while not closed:
            self._starts[rank - 1].acquire()
            closed = self._serve(rank, self.size, *self._addresses)
