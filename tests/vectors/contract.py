"""A second implementation of docs/numerics.md, on the numbers of `ieee`, one value at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from tests.vectors.ieee import FLOAT32, FLOAT64, Format, Number, number, sqrt

__all__ = [
    "clipped",
    "codes",
    "decoded",
    "evaluated",
    "exp32",
    "exp64",
    "gradients",
    "horner",
    "log32",
    "log64",
    "mean",
    "philox",
    "rule_names",
    "scaler",
]

INVERSE_LN2, SQRT2 = 1.44269504088896338700, number(FLOAT64, 1.41421356237309514547)
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
P = (1.66666666666666019037e-01, -2.77777777770155933842e-03, 6.61375632143793436117e-05, -1.65339022054652515390e-06,
     4.13813679705723846039e-08)  # fmt: skip
L = (6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01, 2.222219843214978396e-01,
     1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860511658591e-01)  # fmt: skip
FLUSH = Fraction(1, 2**62)
ZERO, ONE, NAN = number(FLOAT32, 0), number(FLOAT32, 1), number(FLOAT32, math.nan)

Numbers = list[Number]


def horner(coefficients: Sequence[float], x: Number) -> Number:
    value = number(FLOAT64, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = coefficient + x * value
    return value


def exp32(x: Number) -> Number:
    if x.nan:
        return x
    if x < -87.0 or x > 88.72:
        return number(FLOAT32, 0 if x.negative else math.inf)
    return exponential(x.to(FLOAT64)).to(FLOAT32)


def exp64(x: Number) -> Number:
    assert not x.nan
    if x < -708.0 or x > 709.78:
        return number(FLOAT64, 0 if x.negative else math.inf)
    return exponential(x)


def exponential(y: Number) -> Number:
    k = math.trunc((y * INVERSE_LN2 + (-0.5 if y < 0 else 0.5)).exact)
    h, low = y - number(FLOAT64, k) * LN2_HIGH, number(FLOAT64, k) * LN2_LOW
    r = h - low
    t = r * r
    c = r - t * horner(P, t)
    value = 1.0 - ((low - (r * c) / (2.0 - c)) - h)
    return number(FLOAT64, value.exact * Fraction(2) ** k)


def log32(x: Number) -> Number:
    if x.nan or x.magnitude == 0 or x.negative or x.special:
        return number(FLOAT32, -math.inf) if x.magnitude == 0 else NAN if x.negative else x
    return log64(x.to(FLOAT64)).to(FLOAT32)


def log64(x: Number) -> Number:
    value = x.exact
    assert value > 0
    k = value.numerator.bit_length() - value.denominator.bit_length()
    k -= Fraction(2) ** k > value
    m = number(FLOAT64, value / Fraction(2) ** k)
    if m > SQRT2:
        m, k = 0.5 * m, k + 1
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    r, h = z * horner(L, z), 0.5 * f * f
    wide = number(FLOAT64, k)
    return wide * LN2_HIGH - ((h - (s * (h + r) + wide * LN2_LOW)) - f)


def tree(leaves: Sequence[Number], kind: Format = FLOAT32) -> Number:
    """Return the sum of pairs, then of pairs of pairs, and so on; zero leaves are left out (None) at their places."""
    level = [None if leaf.magnitude == 0 else leaf for leaf in leaves]
    while len(level) > 1:
        level += [None] * (len(level) % 2)
        level = [
            right if left is None else left if right is None else left + right
            for left, right in zip(level[::2], level[1::2], strict=True)
        ]
    return number(kind, 0) if not level or level[0] is None else level[0] + 0


def mean(values: Sequence[Number]) -> Number:
    return tree([x.to(FLOAT64) for x in values], FLOAT64) / len(values)


def combine(factors: Sequence[Number], rows: Sequence[Sequence[Number]], width: int) -> Numbers:
    """Return Σ_k factor_k · row_k, in ascending order from +0, without zero factors."""
    totals = [ZERO] * width
    for factor, row in zip(factors, rows, strict=True):
        if factor.magnitude != 0:
            totals = [total + factor * value for total, value in zip(totals, row, strict=True)]
    return totals


def softmax_cross_entropy(z: Numbers, label: int) -> tuple[Number, Numbers, int]:
    best = 0
    for j in range(1, len(z)):
        if z[j] > z[best]:
            best = j
    exponentials = [exp32(value - z[best]) for value in z]
    total = ZERO
    for value in exponentials:
        total = total + value
    errors = [value / total - (1 if j == label else 0) for j, value in enumerate(exponentials)]
    loss = log32(total) - (z[label] - z[best])
    return loss, [ZERO if abs(error) < FLUSH else error for error in errors], best


class Passes:
    """The forward and error passes of one sample: activations and errors of every layer, the first being the sample."""

    def __init__(self, weights: list[list[Numbers]], sample: Numbers, label: int) -> None:
        """`weights` holds a layer's rows, the biases last."""
        self.activations = [sample]
        for layer, (*rows, biases) in enumerate(weights):
            sums = combine(self.activations[-1], rows, len(biases))
            z = [total + bias for total, bias in zip(sums, biases, strict=True)]
            if layer < len(weights) - 1:
                self.activations.append([value if value > 0 else ZERO for value in z])
        self.logits = z
        self.loss, errors, self.best = softmax_cross_entropy(z, label)
        self.errors = [errors]
        for layer in range(len(weights) - 1, 0, -1):
            rows = weights[layer][:-1]
            sums = combine(self.errors[0], [list(column) for column in zip(*rows, strict=True)], len(rows))
            entered = self.activations[layer]
            self.errors.insert(0, [x if a > 0 else ZERO for x, a in zip(sums, entered, strict=True)])


def layers(sizes: Sequence[int], params: Numbers) -> list[list[Numbers]]:
    """Return each layer's rows, the biases last."""
    found, at = [], 0
    for inputs, width in pairwise(sizes):
        found.append([params[at + width * k : at + width * (k + 1)] for k in range(inputs + 1)])
        at += width * (inputs + 1)
    assert at == len(params)
    return found


def gradients(sizes: Sequence[int], params: Numbers, x: list[Numbers], labels: list[int]) -> tuple[Numbers, Any]:
    """Return the flat mean gradient of a minibatch, and its samples' passes."""
    passes = [Passes(layers(sizes, params), sample, label) for sample, label in zip(x, labels, strict=True)]
    flat = []
    for layer, (inputs, width) in enumerate(pairwise(sizes)):
        for k in range(inputs + 1):
            for j in range(width):
                leaves = []
                for one in passes:
                    error = one.errors[layer][j]
                    factor = one.activations[layer][k] if k < inputs else ONE
                    zero = 0 in (factor.magnitude, error.magnitude)
                    leaves.append(ZERO if zero else factor * error)
                flat.append(tree(leaves) / len(x))
    return flat, passes


def evaluated(sizes: Sequence[int], params: Numbers, x: list[Numbers], labels: list[int]) -> tuple[Number, int]:
    """Return the mean loss in float64, and how many argmaxes miss their label."""
    passes = [Passes(layers(sizes, params), sample, label) for sample, label in zip(x, labels, strict=True)]
    return mean([one.loss for one in passes]), sum(one.best != label for one, label in zip(passes, labels, strict=True))


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10 (Salmon et al. 2011)."""
    (c0, c1, c2, c3), (k0, k1), low = counter, key, 2**32 - 1
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & low, p0 >> 32 ^ c3 ^ k1, p0 & low
        k0, k1 = k0 + 0x9E3779B9 & low, k1 + 0xBB67AE85 & low
    return [c0, c1, c2, c3]


def scaler(g: Numbers) -> Number:
    largest = ZERO
    for x in g:
        if x.nan:
            return x
        largest = abs(x) if abs(x) > largest else largest
    return largest


def clipped(g: Numbers, sigmas: float) -> Numbers:
    centre = mean(g)
    apart = [x.to(FLOAT64) - centre for x in g]
    bound = (sigmas * sqrt(tree([x * x for x in apart], FLOAT64) / len(g))).to(FLOAT32)
    return g if bound == 0 else [bound if x > bound else -bound if x < -bound else x for x in g]


def codes(g: Numbers, s: Number, seed: int, begin: int, step: int, client: int) -> list[int]:
    """Return the bytes of g quantised with the scaler s: 00 is −1, 01 is 0, 10 is +1, lowest bits first."""
    slots = [1] * (-(-len(g) // 4) * 4)
    for i, x in enumerate(g):
        element = begin + i
        word = philox((element // 4, step, client, 0), (seed, 6))[element % 4]
        if Fraction(word >> 8, 2**24) * s.exact < abs(x).exact:  # in float64 the product is exact too
            slots[i] = 0 if x.negative else 2
    return [sum(slots[4 * i + j] << 2 * j for j in range(4)) for i in range(len(slots) // 4)]


def decoded(packed: Sequence[int], count: int, s: Number) -> Numbers:
    return [s * ((packed[i // 4] >> 2 * (i % 4) & 3) - 1) for i in range(count)]


def rule_names() -> dict[str, Any]:
    """Return the functions that a rule's source may call, by name."""

    def where(condition: bool, x: Any, y: Any) -> Number:
        chosen = x if condition else y
        return chosen if isinstance(chosen, Number) else number(FLOAT32, chosen)

    return {
        "sqrt": sqrt,
        "absolute": abs,
        "where": where,
        "flush": lambda x: ZERO if abs(x) < FLUSH else x,
        "positive_part": lambda x: ZERO if x < 0 else x,
        "sign": lambda x: x if x.nan else number(FLOAT32, (x > 0) - (x < 0)),
    }
