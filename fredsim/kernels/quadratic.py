"""The engine of a quadratic on the numba backend, and the kernel of its gradients, with their noise.

The results have the same bits as those of quadratic_gradient, quadratic_noise and quadratic_value of
fredsim.numerics.squares.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.quadratic_engine import QuadraticEvaluation
from fredsim.data.problems import Quadratic
from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import doubles, floats, int64s, item, put, shift
from fredsim.jit.subroutine import subroutine
from fredsim.jit.team import addresses
from fredsim.kernels.arrays.operations import NumbaOperations
from fredsim.kernels.arrays.reductions import tree_sum
from fredsim.kernels.arrays.streams import normal_quantile, philox
from fredsim.numerics.arrays import LINE, MARGIN, Array, aligned
from fredsim.numerics.ops.draws import Keys
from fredsim.numerics.streams import Stream

__all__ = ["NumbaQuadratic"]

ELEMENT_COST = 60  # about how many multiply-adds take as long as an element with its noise
CHUNK = 256  # the number of elements of a gradient that a thread computes at once
HALF, QUARTER = np.float32(0.5), np.float32(0.25)
NOISE = np.uint64(Stream.NOISE)


@kernel(
    tasks=int64s, held=int64s, batches=int, size=int, seed=int, noise=doubles, losses=floats, out=floats,
    out_stride=int, scratch=doubles, scratch_stride=int,
)  # fmt: skip
def gradients(rank, size, barrier, a):
    """Write the gradients A·x − b + noise, float32 (batches, size), and the quadratic's values as `losses` (batches,).

    Gradient b is at the parameters at the address held[b], and is written to out[b·out_stride :]. tasks[b] determines
    its noise: a client and the number of its task, as one integer (fredsim.data.sampling). `noise` (1,) is the standard
    deviation. Workspace of each thread: `scratch`, somewhat more than 2·(size + 1) float64.
    """
    chunks = (a.size + CHUNK - 1) // CHUNK
    for task in range(a.batches * chunks * rank // size, a.batches * chunks * (rank + 1) // size):
        b, begin = task // chunks, task % chunks * CHUNK
        end, out = min(begin + CHUNK, a.size), shift(a.out, b * a.out_stride)
        gradient_elements(floats(item(a.held, b)), begin, end, a.size, out)
        if item(a.noise, 0) != 0.0:
            add_noise(item(a.tasks, b), np.uint64(a.seed), item(a.noise, 0), begin, end, out)
    for b in range(a.batches * rank // size, a.batches * (rank + 1) // size):
        value = quadratic_value(floats(item(a.held, b)), a.size, shift(a.scratch, rank * a.scratch_stride))
        put(a.losses, b, np.float32(value))


@subroutine
def gradient_elements(x, begin, end, size, out):
    """Write elements begin … end − 1 of A·x − b: fredsim.numerics.squares.quadratic_gradient."""
    for i in range(begin, end):
        total = HALF * item(x, i)
        if i > 0:
            total = total - QUARTER * item(x, i - 1)
        if i < size - 1:
            total = total - QUARTER * item(x, i + 1)
        put(out, i, total + QUARTER if i == 0 else total)


@subroutine
def add_noise(task, seed, sd, begin, end, out):
    """Add the noise of a task's gradient, N(0, sd²) each, to elements begin … end − 1; `begin` is a multiple of 4."""
    client, number = task >> 32, task & 0xFFFF_FFFF
    for i in range(begin, end, 4):
        for lane, word in enumerate(philox(i // 4, number, client, 0, seed, NOISE)):
            if i + lane < end:
                put(out, i + lane, item(out, i + lane) + np.float32(normal_quantile(word) * sd))


@subroutine
def quadratic_value(x, size, scratch):
    """Return ½·xᵀA·x − bᵀx: the tree sum in float64 of the squared differences of (0, x, 0) ÷ 8, + ¼·x[0]."""
    before = 0.0
    for i in range(size):
        here = np.float64(item(x, i))
        put(scratch, i, (here - before) * (here - before))
        before = here
    put(scratch, size, before * before)
    return tree_sum(scratch, shift(scratch, size + 1), size + 1) / 8.0 + 0.25 * np.float64(item(x, 0))


class NumbaQuadratic(QuadraticEvaluation, NumbaOperations):
    """Computes many gradients at once, on a team of threads; see Engine."""

    def __init__(self, dataset: Quadratic, threads: int | None) -> None:
        super().__init__(threads)
        self._dataset = dataset
        self._allocate(0)
        # Compile, or load from the cache, by a call on empty arrays, so that it is not counted in the run's time.
        self.gradients([], np.empty((0, 1), np.int64))

    def gradients(
        self, held: Sequence[Array], rows: NDArray[np.int64], keys: Keys | None = None
    ) -> tuple[Array, Array]:
        """Compute all gradients together; `rows` (B, 1) encode client and number (data.sampling.TaskSampler)."""
        batches, size = len(rows), self._dataset.inputs
        if batches > len(self._grads):
            self._allocate(batches)
        arguments = self._arguments
        arguments.set(batches=batches, held=addresses(held), tasks=np.ascontiguousarray(rows, np.int64))
        self._team.run(gradients, arguments, batches * size * (ELEMENT_COST if self._dataset.noise else 1))
        return self._grads[:batches, :size], self._losses[:batches]

    def _allocate(self, batches: int) -> None:
        """Allocate workspace for this many gradients at a time."""
        data, floats = self._dataset, LINE // 4
        stride = -(-data.inputs // floats) * floats
        self._grads, self._losses = aligned(batches, stride), np.empty((batches, 1), np.float32)
        room = 2 * (data.inputs + 1) + MARGIN
        self._arguments = gradients.pack(
            tasks=0, held=0, batches=0, size=data.inputs, seed=data.seed, noise=np.array([data.noise]),
            losses=self._losses, out=self._grads, out_stride=stride,
            scratch=aligned(self.threads, room, dtype=np.float64), scratch_stride=room,
        )  # fmt: skip
