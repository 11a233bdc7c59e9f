"""A few threads that run one compiled kernel together, and the barrier at which they meet inside it.

A kernel of a team takes (rank, size, barrier, arguments) and divides its work by rank. The calling thread is rank 0. The others sleep between calls and spin, briefly, inside one: a barrier costs well under a
microsecond where OpenMP's costs more and a work queue's costs a hundred. Which rank does what never changes a bit.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from fredsim.kernels.cache import Compiled
from fredsim.kernels.vector import integers

__all__ = ["Team", "address", "cycles", "default_threads", "meet", "pack"]

INT64 = ir.IntType(64)
SPINS = 2000  # then yield: another process may hold the processor that a late thread needs


Argument = int | NDArray[Any]


def address(array: NDArray[Any]) -> int:
    """Return the memory address of an array's first element."""
    return int(array.__array_interface__["data"][0])


def pack(*arguments: Argument) -> NDArray[np.int64]:
    """Return what a kernel takes: integers, and addresses of arrays, which the caller keeps alive."""
    return np.array([address(a) if isinstance(a, np.ndarray) else a for a in arguments], np.int64)


def default_threads() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@intrinsic
def _fetch_add(typingctx, pointer, index, value):
    def generate(context, builder, sig, args):
        return builder.atomic_rmw("add", builder.gep(args[0], [args[1]]), args[2], "seq_cst")

    return types.int64(pointer, types.intp, types.int64), generate


@intrinsic
def _atomic_load(typingctx, pointer, index):
    def generate(context, builder, sig, args):
        return builder.load_atomic(builder.gep(*args[:1], [args[1]]), "seq_cst", 8)

    return types.int64(pointer, types.intp), generate


@intrinsic
def _atomic_store(typingctx, pointer, index, value):
    def generate(context, builder, sig, args):
        builder.store_atomic(args[2], builder.gep(args[0], [args[1]]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.none(pointer, types.intp, types.int64), generate


@intrinsic
def _give_way(typingctx):
    def generate(context, builder, sig, args):
        if sys.platform != "win32":
            function = ir.FunctionType(ir.IntType(32), [])
            builder.call(cgutils.get_or_insert_function(builder.module, function, "sched_yield"), [])
        return context.get_dummy_value()

    return types.none(), generate


@intrinsic
def cycles(typingctx):
    """Return the processor's cycle counter."""

    def generate(context, builder, sig, args):
        function = ir.FunctionType(INT64, [])
        return builder.call(cgutils.get_or_insert_function(builder.module, function, "llvm.readcyclecounter"), [])

    return types.int64(), generate


@njit
def meet(size, barrier):
    """Wait until all `size` threads have come here. `barrier` is the address of int64 (16,): arrivals at 0, rounds at 8."""
    if size > 1:
        counts = integers(barrier)
        turn = _atomic_load(counts, 8)
        if _fetch_add(counts, 0, 1) == size - 1:
            _atomic_store(counts, 0, 0)
            _fetch_add(counts, 8, 1)
        else:
            spins = 0
            while _atomic_load(counts, 8) == turn:
                spins += 1
                if spins > SPINS:
                    _give_way()


class Team:
    """`threads` threads for team kernels; close it, or use it as a context, to end them."""

    def __init__(self, threads: int) -> None:
        self.size = threads
        self._barrier = np.zeros(16, np.int64)
        self._call: Callable[..., Any] | None = None
        self._arguments = np.empty(0, np.int64)
        self._starts = [threading.Semaphore(0) for _ in range(threads - 1)]
        self._threads = [
            threading.Thread(target=self._work, args=(rank,), name=f"fredsim-{rank}", daemon=True)
            for rank in range(1, threads)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, kernel: Compiled, arguments: NDArray[np.int64]) -> None:
        """Call the kernel with packed arguments on every thread; it must end with `meet`."""
        self._call, self._arguments = kernel.call, arguments
        for start in self._starts:
            start.release()
        self._call(0, self.size, address(self._barrier), address(arguments))

    def alone(self, kernel: Compiled, arguments: NDArray[np.int64]) -> None:
        """Call the kernel on the calling thread only, as a team of one."""
        kernel.call(0, 1, address(self._barrier), address(arguments))

    def close(self) -> None:
        """End the threads."""
        self._call = None
        for start in self._starts:
            start.release()
        for thread in self._threads:
            thread.join()
        self._starts, self._threads, self.size = [], [], 1

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _work(self, rank: int) -> None:
        while True:
            self._starts[rank - 1].acquire()
            if self._call is None:
                return
            self._call(rank, self.size, address(self._barrier), address(self._arguments))
