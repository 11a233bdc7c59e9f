"""A team of the threads of an OpenMP library that another library uses: they are awake when its own work is done.

Threads of a team of ours would have to wait for the processors on which those of the other library still spin.
"""

from __future__ import annotations

import time
from ctypes import CDLL, Structure, addressof, c_uint, c_void_p, cast

import numpy as np

from fredsim.jit.cache import Compiled
from fredsim.jit.pointers import call, int64s, item
from fredsim.jit.team import Team, address

__all__ = ["OpenMPTeam"]

# The layout of the board, an int64 array: the addresses of the two functions that tell a thread its rank and how many
# threads there are, of the barrier, of the kernel, and of its arguments.
RANK, SIZE, BARRIER, KERNEL, ARGUMENTS, WORDS = 0, 1, 2, 3, 4, 5
INT = 0xFFFFFFFF  # the bits of what C functions return that are declared int, and are called here as int64


def _work(board):
    """Run the kernel on one of the threads."""
    shared = int64s(board)
    rank, size = call(item(shared, RANK), ()) & INT, call(item(shared, SIZE), ()) & INT
    return call(item(shared, KERNEL), (rank, size, item(shared, BARRIER), item(shared, ARGUMENTS)))


work = Compiled(_work)


class OpenMPTeam(Team):
    """A team of an OpenMP library's threads, of which the calling one is the first."""

    def __init__(self, threads: int, library: CDLL) -> None:
        """Take the functions from a library that exports, or depends on one that exports, those of GCC's OpenMP.

        Raises AttributeError if it has them not.
        """
        self._parallel = library.GOMP_parallel
        self._parallel.argtypes, self._parallel.restype = [c_void_p, c_void_p, c_uint, c_uint], None
        super().__init__(1)
        self.size = threads
        self._shared = np.zeros(WORDS, np.int64)
        for place, function in ((RANK, library.omp_get_thread_num), (SIZE, library.omp_get_num_threads)):
            self._shared[place] = cast(function, c_void_p).value
        self._shared[BARRIER] = self._addresses[0]
        self._call = work.address, address(self._shared), threads, 0

    def _run_together(self, kernel: Compiled, arguments: Structure) -> None:
        began = time.perf_counter()
        self._shared[KERNEL], self._shared[ARGUMENTS] = kernel.address, addressof(arguments)
        self._parallel(*self._call)
        self.seconds += time.perf_counter() - began
