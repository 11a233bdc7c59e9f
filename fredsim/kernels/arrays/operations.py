"""The operations of the numba backend that do not depend on the model: fredsim.numerics.operations on threads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fredsim.compute.storage import Limits, Pool
from fredsim.jit.team import Team, address
from fredsim.kernels.arrays.draws import NumbaDraws
from fredsim.kernels.arrays.reductions import BLOCK, all_finite, duplicate, duplicate_finite, mean64
from fredsim.kernels.arrays.ternary import NumbaTernary
from fredsim.kernels.arrays.update import RuleInParts, TeamRule
from fredsim.numerics.arrays import MARGIN, Array, aligned
from fredsim.numerics.distributions import Draw
from fredsim.numerics.rules import Rule
from fredsim.numerics.ternary import Ternary
from fredsim.system.limits import default_threads

__all__ = ["NumbaOperations"]

#: Arrays of up to this many floats are checked by a single thread.
ONE_THREAD_FLOATS = 2**19


class NumbaOperations:
    """Operations on whole float32 arrays, on a team of threads; `threads` None means one thread per processor.

    A `team` that is given is used instead. The bits are those of fredsim.numerics.operations.NumpyOperations.
    """

    device_name: str | None = None

    def __init__(self, threads: int | None, team: Team | None = None) -> None:
        self._team = team or Team(threads or default_threads())
        self.threads = self._team.size
        self.ternary: Ternary = NumbaTernary(self._team)
        self.draw: Draw = NumbaDraws(self._team).draw
        self._finite = np.ones(self.threads, np.int64)
        nothing = np.empty(0, np.float32)
        self._check = all_finite.pack(array=nothing, count=0, result=self._finite)
        self._copy = duplicate.pack(array=nothing, count=0, out=nothing)
        self._copy_checked = duplicate_finite.pack(array=nothing, count=0, out=nothing, result=self._finite)
        self._mean_call: _MeanCall | None = None  # kept for the next call, which mostly has the same array

    @property
    def seconds(self) -> float:
        """The seconds spent in kernels so far."""
        return self._team.seconds

    def zeros(self, size: int) -> Array:
        """Return zeros (size,)."""
        return aligned(size)

    def pool(self, size: int, limits: Limits) -> Pool:
        """Return a pool of arrays (size,) for what clients hold."""
        return Pool(size, MARGIN, limits)

    def compile_rule(self, rule: Rule) -> TeamRule:
        """Return the rule compiled for whole arrays; see Operations."""
        return TeamRule(self._team, rule)

    def rule_in_parts(self, rule: Rule, arrays: Sequence[Array], sizes: Sequence[int]) -> RuleInParts:
        """Return the rule compiled for gradients in parts of these sizes; `arrays` are θ and the state, (P,) each."""
        return RuleInParts(self._team, rule, arrays, sizes)

    def do_alone(self) -> None:
        """Let all be done by the thread that calls from now on."""
        self._team.size = 1

    def mean(self, array: Array) -> float:
        """Return the mean of an array (n,) in float64; see Operations."""
        if self._mean_call is None or self._mean_call.array is not array:
            self._mean_call = _MeanCall(array, self.threads)
        self._team.run(mean64, self._mean_call.arguments, len(array))
        return float(self._mean_call.result[0])

    def finite(self, array: Array) -> bool:
        """Return whether every element of an array (n,) is finite."""
        given, array = self._check, np.ascontiguousarray(array, np.float32)
        given.array, given.count = address(array), len(array)
        if len(array) <= ONE_THREAD_FLOATS:  # the calling thread has mostly written the array, and has it in its cache
            self._team.run_alone(all_finite, given)
            return bool(self._finite[0])
        self._team.run(all_finite, given)
        return 0 not in self._finite.tolist()

    def duplicate(self, array: Array, out: Array) -> None:
        """Copy an array (n,) to `out`."""
        given, array = self._copy, np.ascontiguousarray(array, np.float32)
        given.array, given.count, given.out = address(array), len(array), address(out)
        self._team.run(duplicate, given)

    def duplicate_finite(self, array: Array, out: Array) -> bool:
        """Copy an array (n,) to `out`; return whether every element is finite."""
        given, array = self._copy_checked, np.ascontiguousarray(array, np.float32)
        given.array, given.count, given.out = address(array), len(array), address(out)
        self._team.run(duplicate_finite, given)
        return 0 not in self._finite.tolist()

    def close(self) -> None:
        """End the threads."""
        self._team.close()


class _MeanCall:
    """The arguments of `mean64` for an array, float32 (n,), and `result`, to which it writes the mean."""

    def __init__(self, array: Array, threads: int) -> None:
        self.array = array
        self.result = np.empty(1)
        self.arguments = mean64.pack(
            array=array, count=len(array), sums=np.empty(-(-len(array) // BLOCK) + 1),
            scratch=np.empty((threads, 2 * BLOCK)), result=self.result,
        )  # fmt: skip
