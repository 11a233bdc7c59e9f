"""Draws of distributions by docs/numerics.md, on the numbers of `ieee`, and the records of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import count

from tests.vectors.contract import exp64, horner, log64, philox
from tests.vectors.ieee import FLOAT64, Number, number, sqrt
from tests.vectors.records import record

__all__ = ["distributions", "draw"]

INF = math.inf
A = (3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
     4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3)  # fmt: skip
B = (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3, 2.1213794301586595867e4,
     3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3)  # fmt: skip
C = (1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
     1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2,
     7.74545014278341407640e-4)  # fmt: skip
D = (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1, 1.48103976427480074590e-1,
     1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9)  # fmt: skip


def normal(word: int) -> Number:
    """AS 241 (Wichura 1988), PPND16, of (word + ½)·2⁻³²."""
    p = number(FLOAT64, Fraction(2 * word + 1, 2**33))
    q = p - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        return q * (horner(A, r) / horner(B, r))
    tail = p if q < 0 else 1.0 - p
    r = sqrt(-log64(tail)) - 1.6
    outer = horner(C, r) / horner(D, r)
    return -outer if q < 0 else outer


def unit(word: int) -> Number:
    return number(FLOAT64, Fraction(word >> 8, 2**24))


def draw(kind: str, parameters: Sequence[float], seed: int, element: int, step: int, client: int) -> Number:
    """Return a draw of a distribution from stream 7."""

    def block(attempt: int) -> list[int]:
        return philox((element // 4, step, client, attempt), (seed, 7))

    words = block(0)
    u, fine = unit(words[0]), number(FLOAT64, Fraction((words[0] >> 5 << 26) + (words[1] >> 6), 2**53))
    given = [number(FLOAT64, value) for value in parameters]
    match kind, given:
        case "uniform", [low, high]:
            return low + (high - low) * u
        case "exponential", []:
            return 0.0 + -log64(1.0 - u)
        case "shifted_exponential", [shift]:
            return shift + (1.0 - shift) * -log64(1.0 - u)
        case "normal", []:
            return normal(words[0])
        case "half_normal", []:
            return abs(normal(words[0]))
        case "lognormal", [sigma]:
            return exp64(sigma * normal(words[0]) - 0.5 * sigma * sigma)
        case "pareto", [alpha]:
            return (alpha - 1.0) / alpha * exp64(-log64(1.0 - fine) / alpha)
        case "bernoulli", [p, factor]:
            return factor if fine < p else number(FLOAT64, 1)
        case "gamma", [shape, scale]:
            result, taken = gamma(shape if shape >= 1 else shape + 1.0, block)
            if shape < 1:
                result = result * exp64(log64(1.0 - unit(block(taken)[2])) / shape)
            return scale * result
    raise ValueError(kind)


def gamma(shape: Number, block: Callable[[int], list[int]]) -> tuple[Number, int]:
    """Return a gamma draw (Marsaglia and Tsang 2000) for a shape of at least 1, and the number of its attempt."""
    d = shape - 1.0 / 3.0
    c = 1.0 / sqrt(9.0 * d)
    for attempt in count():
        first, second, *_ = block(attempt)
        x, u = normal(first), unit(second)
        root = 1.0 + c * x
        v = root * root * root
        if v > 0 and (0.0331 * (x * x) * (x * x) < u or log64(1.0 - u) < 0.5 * (x * x) + d - d * v + d * log64(v)):
            return d * v, attempt
    raise AssertionError


def distributions() -> Iterator[str]:
    """Yield records of draws of stream 7. The places of seed 14 were found by a search for rare values."""
    most, few = 2**32 - 1, [(step, client) for step in (0, 1, 2**31, 2**32 - 1) for client in (0, 1, 2**32 - 1)]
    ends = [(710_354_409, 0), (1_610_074_746, 0)]  # word 0 is 2³² − 1, and 0
    assert [philox((0, *place, 0), (14, 7))[0] for place in ends] == [most, 0]
    word0, word1, *_ = philox((0, 5, 6, 0), (14, 7))
    fine = Fraction((word0 >> 5 << 26) + (word1 >> 6), 2**53)  # what the draw at step 5, client 6 is compared with
    usual: list[tuple[str, Sequence[float], int, int, Sequence[tuple[int, int]]]] = [
        (kind, parameters, seed, element, places)
        for kind, parameters in (
            ("uniform", (0.5, 1.5)), ("uniform", (-1e-3, 1e300)), ("exponential", ()), ("shifted_exponential", (0.3,)),
            ("shifted_exponential", (1.0,)), ("normal", ()), ("half_normal", ()), ("lognormal", (0.5,)),
            ("lognormal", (100.0,)), ("pareto", (1.1,)), ("pareto", (2.5,)), ("bernoulli", (0.5, 10.0)),
            ("bernoulli", (0.25, INF)), ("gamma", (1e6, 1e-6)), ("gamma", (100.0, 0.01)), ("gamma", (0.36, 1 / 0.36)),
            ("gamma", (0.01, 100.0)),
        )
        for seed, element, places in ((14, 0, ends), (most, 8, few))
    ]  # fmt: skip
    rare = [
        *(("bernoulli", (float(p), INF), 14, 0, [(5, 6)]) for p in (fine, fine + Fraction(1, 2**53))),
        # Three and four rejections, of v below 0, by the logarithm, and what is accepted by it alone.
        *(("gamma", (k, 1.0), 14, 8, [(step, 3) for step in (5853, 199_259, 210, 96, 13)]) for k in (1.0, 100.0)),
        # No rejection, one and two; word 1 >> 8 is 0, then word 2 >> 8, and then this is 2²⁴ − 1.
        *(("gamma", (k, 2.0), 14, 8, [(step, 3) for step in (0, 60, 1659)]) for k in (0.1, 0.5)),
        *(("gamma", (k, 2.0), 14, 0, [(1_440_578, 1), (15_615_239, 0), (6_818_868, 0)]) for k in (0.1, 0.5)),
        # u is 0 and x near it: rounding alone says whether it is accepted, so that no order but one gives these.
        *(("gamma", (k, 1.0), 14, 0, [(682_214_572, 0), (1_522_506_468, 0), (1_845_981_743, 0), (3_671_914_894, 0),
                                      (410_653_606, 1), (223_347_356, 1)]) for k in (1e5, 1e6)),
    ]  # fmt: skip
    for kind, parameters, seed, element, places in [*usual, *rare]:
        steps, clients = zip(*places, strict=True)
        found = [draw(kind, parameters, seed, element, *place) for place in places]
        given = {"kind": kind, "seed": seed, "element": element, "steps": ("u32", steps), "clients": ("u32", clients)}
        given |= {"parameters": [number(FLOAT64, value) for value in parameters]} if parameters else {}
        name = "-".join([*(f"{value:g}" for value in parameters), "of", str(seed), str(element), str(steps[0])])
        yield record("draw", f"{kind}-{name}", given, {"draws": found})
