"""Draws from distributions in float64, by the contract's streams and elementary functions: the same bits everywhere.

    Distribution("gamma", (25.0, 0.04))    # shape and scale: mean 1, coefficient of variation 1/5
    draw(distribution, Streams(seed), Stream.TIME, steps, clients, element=0)

A draw is a function of (seed, stream, element, step, client). A draw at element e, a multiple of 8, uses the words of
the elements e … e + 7; the first three are called words 0, 1 and 2 below. A rejected draw is repeated with attempt 1,
then 2, and so on. The docstring of each function below says what it draws, the mean, and the words that it uses. Its
constants are computed once, by operations that IEEE 754 defines. fredsim.kernels.arrays.draws has the same expressions
for one draw.

    u = (word 0 >> 8)·2⁻²⁴, the contract's uniform number;   U = ((word 0 >> 5)·2²⁶ + (word 1 >> 6))·2⁻⁵³
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fredsim.numerics.arrays import Floats
from fredsim.numerics.elementary import exp64, log64
from fredsim.numerics.streams import Stream, Streams, Words, normal_quantile, philox4x32, uniform24

__all__ = ["BLOCK", "ELEMENTS_PER_DRAW", "FAMILIES", "Distribution", "Draw", "block_of", "draw"]

ELEMENTS_PER_DRAW = 8  # the number of a stream's elements that one draw uses
BLOCK = 2**14  # the number of draws that are made at once, so that intermediate arrays stay in a cache
SHAPE_RANGE = 0.01, 1e6  # of the gamma distribution: below, draws underflow; above, their rounding shows
#: The constant of the test by which Marsaglia and Tsang accept a draw without a logarithm.
SQUEEZE = 0.0331


@dataclass(frozen=True)
class Distribution:
    """A distribution, given by its kind and the kind's parameters (FAMILIES).

    Raises ValueError for an unknown kind, a wrong number of parameters, and parameters outside their ranges.
    """

    kind: str
    parameters: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in FAMILIES:
            raise ValueError(f"distribution is {self.kind!r}; it must be one of {', '.join(FAMILIES)}")
        family, count = FAMILIES[self.kind], len(self.parameters)
        if count != len(family.names):
            wanted = ", ".join(family.names) or "none"
            raise ValueError(f"distribution {self.kind} has {count} parameters; it takes {len(family.names)}: {wanted}")
        if not family.fits(*self.parameters):
            given = ", ".join(f"{name} {value}" for name, value in zip(family.names, self.parameters, strict=True))
            raise ValueError(f"distribution {self.kind} has {given}; it takes {family.ranges}")

    @property
    def mean(self) -> float:
        """The mean of a draw; it may be infinite."""
        return float(FAMILIES[self.kind].mean(*self.parameters))

    @cached_property
    def constants(self) -> Floats:
        """The constants that the kind's function takes besides the words, float64 (k,)."""
        constants = np.array(FAMILIES[self.kind].constants(*self.parameters), np.float64)
        constants.flags.writeable = False
        return constants


def draw(
    distribution: Distribution,
    streams: Streams,
    stream: Stream,
    steps: ArrayLike,
    clients: ArrayLike,
    element: int = 0,
) -> Floats:
    """Return one draw for each pair of `steps` and `clients`, float64 (n,).

    `steps` and `clients` are integers in 0 … 2³² − 1 that broadcast to (n,). Raises ValueError if `element` is not a
    multiple of 8.
    """
    block = block_of(element)
    steps, clients = np.broadcast_arrays(*(np.atleast_1d(np.asarray(x)).astype(np.uint64) for x in (steps, clients)))
    function, constants = FAMILIES[distribution.kind].function, distribution.constants.tolist()
    result = np.empty(len(steps), np.float64)
    for begin in range(0, len(steps), BLOCK):
        some = slice(begin, begin + BLOCK)
        result[some] = function(Counter(streams, stream, block, steps[some], clients[some]), *constants)
    return result


def block_of(element: int) -> int:
    """Return the number of the first block of four words that a draw uses. Raises ValueError like `draw`."""
    if element % ELEMENTS_PER_DRAW:
        raise ValueError(f"element is {element}; the elements of a draw begin at a multiple of {ELEMENTS_PER_DRAW}")
    return element // 4


class Draw(Protocol):
    """The type of a backend's function that draws."""

    def __call__(
        self,
        distribution: Distribution,
        streams: Streams,
        stream: Stream,
        steps: ArrayLike,
        clients: ArrayLike,
        element: int = 0,
    ) -> Floats:
        """Draw; see fredsim.numerics.distributions.draw."""


class Counter:
    """The Philox counters of n draws: the number of a block of words, and steps and clients, uint64 (n,) each."""

    def __init__(
        self, streams: Streams, stream: Stream, block: int, steps: NDArray[np.uint64], clients: NDArray[np.uint64]
    ) -> None:
        self.steps, self.clients = steps, clients
        self._key, self._block = (streams.seed, int(stream)), block

    def words(self, attempt: int = 0, some: Any = slice(None)) -> tuple[Words, Words, Words, Words]:
        """Return the words 0 … 3 of all draws, or of some, uint32 (n,) each."""
        return philox4x32((self._block, self.steps[some], self.clients[some], attempt), self._key)

    def uniform24(self) -> Floats:
        """Return u (n,): uniform with 24 bits, from word 0."""
        return uniform24(self.words()[0])

    def uniform53(self) -> Floats:
        """Return U (n,): uniform with 53 bits, from words 0 and 1, for heavy tails and small probabilities."""
        high, low, *_ = self.words()
        return ((high >> np.uint32(5)) * 2.0**26 + (low >> np.uint32(6))) * 2.0**-53


def uniform(at: Counter, low: float, width: float) -> Floats:
    """Uniform on [low, high): low + (high − low)·u; mean (low + high)/2; word 0.

    Rounding gives `high` itself only if high − low is less than 2⁻²⁸ times the larger of the two.
    """
    return low + width * at.uniform24()


def exponential(at: Counter, shift: float, rest: float) -> Floats:
    """Exponential, E = −log(1 − u), and shifted exponential, s + (1 − s)·E, 0 ≤ s ≤ 1; mean 1 either; word 0.

    The largest E is 24·log 2. Dutta et al. 2018, arXiv:1803.01113.
    """
    return shift + rest * -log64(1.0 - at.uniform24())


def normal(at: Counter) -> Floats:
    """N, standard normal: Wichura's AS 241 of (word 0 + ½)·2⁻³²; mean 0; word 0."""
    return normal_quantile(at.words()[0])


def half_normal(at: Counter) -> Floats:
    """Half normal, |N|; mean √(2/π); word 0."""
    return np.abs(normal(at))


def lognormal(at: Counter, sigma: float, shift: float) -> Floats:
    """Lognormal, exp(σ·N − σ²/2), σ ≥ 0; mean 1; word 0."""
    return exp64(sigma * normal(at) - shift)


def pareto(at: Counter, scale: float, alpha: float) -> Floats:
    """Pareto, (α − 1)/α·(1 − U)^(−1/α), α > 1; mean 1, less what lies beyond U: 4·10⁻⁶ at α = 1.5; words 0 and 1."""
    return scale * exp64(-log64(1.0 - at.uniform53()) / alpha)


def bernoulli(at: Counter, p: float, factor: float) -> Floats:
    """`factor`, which may be infinite, if U < p, else 1; mean 1 − p + p·factor; words 0 and 1.

    Maranjyan et al. 2025, "MindFlayer", arXiv:2410.04285.
    """
    return np.where(at.uniform53() < p, factor, 1.0)


def gamma(at: Counter, d: float, c: float, scale: float, boosted: float) -> Floats:
    """Gamma with shape k and a scale; mean k·scale; of each attempt words 0 and 1, and word 2 if k < 1.

    Marsaglia and Tsang 2000, "A simple method for generating gamma variables": d = k − 1/3, c = 1/√(9d); with x = N and
    v = (1 + c·x)³, accept d·v if v > 0 and (u > 0.0331·x⁴ or log(1 − u) < x²/2 + d − d·v + d·log v), u of word 1. For
    k < 1, draw with shape k + 1 and multiply by (1 − u)^(1/k), u of word 2; a factor below e^−708 is 0.
    """
    result = np.empty(at.steps.shape, np.float64)
    left = np.arange(len(result))
    attempt = 0
    while len(left):
        first, second, third, _ = at.words(attempt, left)
        x, u = normal_quantile(first), uniform24(second)
        v = 1.0 + c * x
        v = v * v * v
        positive = v > 0.0
        v = np.where(positive, v, 1.0)
        square = x * x
        squeezed = SQUEEZE * square * square < u
        accepted = positive & (squeezed | (log64(1.0 - u) < 0.5 * square + d - d * v + d * log64(v)))
        result[left[accepted]] = d * v[accepted]
        if boosted > 0.0:
            result[left[accepted]] *= exp64(log64(1.0 - uniform24(third[accepted])) / boosted)
        left, attempt = left[~accepted], attempt + 1
    return scale * result


def _gamma_constants(shape: float, scale: float) -> tuple[float, ...]:
    d = (shape if shape >= 1.0 else shape + 1.0) - 1.0 / 3.0
    return d, 1.0 / math.sqrt(9.0 * d), scale, shape if shape < 1.0 else 0.0


def _mean_one(*parameters: float) -> float:
    del parameters
    return 1.0


class Family(NamedTuple):
    """Describes a kind of distribution.

    Attributes:
        names: the names of its parameters.
        ranges: their ranges, for messages; `fits` says whether given parameters are in them.
        mean: the mean of a draw, by the parameters.
        function: draws, given a Counter and the constants.
        constants: the function's constants, by the parameters.

    """

    names: tuple[str, ...]
    ranges: str
    fits: Callable[..., bool]
    mean: Callable[..., float]
    function: Callable[..., Floats]
    constants: Callable[..., tuple[float, ...]]


_NONE: tuple[tuple[str, ...], str, Callable[..., bool]] = (), "no parameters", lambda: True
FAMILIES: dict[str, Family] = {
    "uniform": Family(
        ("low", "high"), "finite low < high", lambda a, b: -math.inf < a < b < math.inf and b - a < math.inf,
        lambda a, b: 0.5 * a + 0.5 * b, uniform, lambda a, b: (a, b - a),
    ),
    "exponential": Family(*_NONE, _mean_one, exponential, lambda: (0.0, 1.0)),
    "shifted_exponential": Family(
        ("shift",), "0 <= shift <= 1", lambda s: 0.0 <= s <= 1.0, _mean_one, exponential, lambda s: (s, 1.0 - s)
    ),
    "normal": Family(*_NONE, lambda: 0.0, normal, lambda: ()),
    "half_normal": Family(*_NONE, lambda: math.sqrt(2.0 / math.pi), half_normal, lambda: ()),
    "lognormal": Family(
        ("sigma",), "0 <= sigma <= 100", lambda s: 0.0 <= s <= 100.0, _mean_one, lognormal, lambda s: (s, 0.5 * s * s)
    ),
    "pareto": Family(
        ("alpha",), "1 < alpha < inf", lambda a: 1.0 < a < math.inf, _mean_one, pareto, lambda a: ((a - 1.0) / a, a)
    ),
    "bernoulli": Family(
        ("p", "factor"), "0 <= p <= 1 and factor > 0", lambda p, f: 0.0 <= p <= 1.0 and f > 0.0,
        lambda p, f: 1.0 - p + p * f if p > 0.0 else 1.0, bernoulli, lambda p, f: (p, f),
    ),
    "gamma": Family(
        ("shape", "scale"), f"{SHAPE_RANGE[0]:g} <= shape <= {SHAPE_RANGE[1]:g} and 0 < scale < inf",
        lambda k, scale: SHAPE_RANGE[0] <= k <= SHAPE_RANGE[1] and 0.0 < scale < math.inf,
        lambda k, scale: k * scale, gamma, _gamma_constants,
    ),
}  # fmt: skip
