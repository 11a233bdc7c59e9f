"""Random draws from distributions: the expressions of fredsim.numerics.distributions, compiled for scalars.

Clocks use them (dispatchers/durations.py) through NumbaOperations.draw.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import doubles, int64s, item, put
from fredsim.jit.subroutine import subroutine
from fredsim.jit.team import Team, address
from fredsim.kernels.arrays.elementary import exp64, log64
from fredsim.kernels.arrays.streams import normal_quantile, philox, uniform24
from fredsim.numerics.distributions import SQUEEZE, Distribution, block_of
from fredsim.numerics.streams import Stream, Streams

__all__ = ["NumbaDraws"]

UNIFORM, EXPONENTIAL, NORMAL, HALF_NORMAL, LOGNORMAL, PARETO, BERNOULLI, GAMMA = range(8)
#: The number by which the kernel knows a kind of distribution; two kinds are one to it, with other constants.
NUMBERS = {
    "uniform": UNIFORM, "exponential": EXPONENTIAL, "shifted_exponential": EXPONENTIAL, "normal": NORMAL,
    "half_normal": HALF_NORMAL, "lognormal": LOGNORMAL, "pareto": PARETO, "bernoulli": BERNOULLI, "gamma": GAMMA,
}  # fmt: skip
DRAW_COST = 60  # about how many multiply-adds take as long as a draw


@kernel(
    kind=int, constants=doubles, seed=int, stream=int, block=int, count=int, many=int, steps=int, clients=int,
    out=doubles,
)  # fmt: skip
def draw_many(rank, size, barrier, a):
    """Write `count` draws of a distribution, float64, to `out`: fredsim.numerics.distributions.draw.

    `kind` is a number of NUMBERS, `constants` are Distribution.constants; the key is (seed, stream); `block` is
    block_of(element). If `many`, `steps` and `clients` are the addresses of int64 (count,), else one step and client.
    """
    k0, k1 = np.uint64(a.seed), np.uint64(a.stream)
    for i in range(a.count * rank // size, a.count * (rank + 1) // size):
        step = item(int64s(a.steps), i) if a.many else a.steps
        client = item(int64s(a.clients), i) if a.many else a.clients
        put(a.out, i, draw_one(a.kind, a.constants, a.block, step, client, k0, k1))


@subroutine
def draw_one(kind, constants, block, step, client, k0, k1):
    """Return one draw: the function of fredsim.numerics.distributions that has the kind's name."""
    if kind == GAMMA:
        return gamma(constants, block, step, client, k0, k1)
    w0, w1, _, _ = philox(block, step, client, 0, k0, k1)
    if kind == UNIFORM:
        return item(constants, 0) + item(constants, 1) * uniform24(w0)
    if kind == EXPONENTIAL:
        return item(constants, 0) + item(constants, 1) * -log64(1.0 - uniform24(w0))
    if kind == PARETO:
        return item(constants, 0) * exp64(-log64(1.0 - uniform53(w0, w1)) / item(constants, 1))
    if kind == BERNOULLI:
        return item(constants, 1) if uniform53(w0, w1) < item(constants, 0) else 1.0
    x = normal_quantile(w0)
    if kind == HALF_NORMAL:
        return abs(x)
    if kind == LOGNORMAL:
        return exp64(item(constants, 0) * x - item(constants, 1))
    return x  # NORMAL


@subroutine
def gamma(constants, block, step, client, k0, k1):
    """Return a draw from a gamma distribution: fredsim.numerics.distributions.gamma."""
    d, c, boosted = item(constants, 0), item(constants, 1), item(constants, 3)
    attempt = 0
    while True:
        w0, w1, w2, _ = philox(block, step, client, attempt, k0, k1)
        attempt += 1
        x, u = normal_quantile(w0), uniform24(w1)
        v = 1.0 + c * x
        v = v * v * v
        if v > 0.0:
            square = x * x
            if SQUEEZE * square * square < u or log64(1.0 - u) < 0.5 * square + d - d * v + d * log64(v):
                break
    result = d * v
    if boosted > 0.0:
        result = result * exp64(log64(1.0 - uniform24(w2)) / boosted)
    return item(constants, 2) * result


@subroutine
def uniform53(high, low):
    """Return U, a uniform number in [0, 1) with 53 bits, from two 32-bit words."""
    return (np.float64(high >> np.uint64(5)) * 2.0**26 + np.float64(low >> np.uint64(6))) * 2.0**-53


class NumbaDraws:
    """Draws on a team of threads. A single draw costs little more than the call of a kernel."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._distribution: Distribution | None = None  # the distribution of the last draw
        self._arguments = draw_many.pack(
            kind=0, constants=0, seed=0, stream=0, block=0, count=0, many=0, steps=0, clients=0, out=0
        )  # fmt: skip

    def draw(
        self,
        distribution: Distribution,
        streams: Streams,
        stream: Stream,
        steps: ArrayLike,
        clients: ArrayLike,
        element: int = 0,
    ) -> NDArray[np.float64]:
        """Draw, as fredsim.numerics.distributions.draw; this is fastest if step and client are Python integers.

        Raises NotImplementedError for a kind of distribution that the kernel does not have.
        """
        a: Any = self._arguments
        if distribution is not self._distribution:
            if distribution.kind not in NUMBERS:
                raise NotImplementedError(f"fredsim.kernels.arrays.draws has no distribution {distribution.kind!r}")
            a.kind, a.constants = NUMBERS[distribution.kind], address(distribution.constants)
            self._distribution = distribution
        a.seed, a.stream, a.block = streams.seed, stream, block_of(element)
        if type(steps) is int and type(clients) is int:
            out = np.empty(1)
            a.count, a.many, a.steps, a.clients, a.out = 1, 0, steps, clients, address(out)
            self._team.run_alone(draw_many, a)
            return out
        taken = [np.ascontiguousarray(counts, np.int64) for counts in np.broadcast_arrays(steps, clients)]  # (n,) each
        out = np.empty(len(taken[0]))
        a.count, a.many, a.steps, a.clients, a.out = len(out), 1, *map(address, taken), address(out)
        self._team.run(draw_many, a, DRAW_COST * len(out))
        return out
