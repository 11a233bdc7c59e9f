"""IEEE 754 arithmetic on exact fractions, independent of NumPy, LLVM and GPUs, which are compared with it.

A result is computed exactly and rounded once, to nearest even, by `rounded`: subnormals are kept, zeros have a sign,
and numbers that are too large become infinite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["FLOAT32", "FLOAT64", "Format", "Number", "number", "of_bits", "rounded", "sqrt"]

Exact = Fraction | int | float


@dataclass(frozen=True)
class Format:
    """A binary format: bits in all, bits of a significand, and the exponents of the least and beyond the largest."""

    bits: int
    precision: int
    least: int
    beyond: int


FLOAT32 = Format(32, 24, -149, 128)
FLOAT64 = Format(64, 53, -1074, 1024)


@dataclass(frozen=True, eq=False)
class Number:
    """A number of a format: a sign, and a magnitude that is a fraction, math.inf or math.nan."""

    kind: Format
    negative: bool
    magnitude: Fraction | float

    @property
    def special(self) -> bool:
        """Whether it is infinite or NaN."""
        return isinstance(self.magnitude, float)

    @property
    def nan(self) -> bool:
        """Whether it is NaN."""
        return self.special and math.isnan(self.magnitude)

    @property
    def exact(self) -> Fraction:
        """The value of a finite number."""
        assert isinstance(self.magnitude, Fraction)
        return -self.magnitude if self.negative else self.magnitude

    def to(self, kind: Format) -> Number:
        """Return the number rounded to another format."""
        if isinstance(self.magnitude, float):
            return Number(kind, self.negative, self.magnitude)
        return rounded(kind, self.magnitude, self.negative)

    def bits(self) -> int:
        """Return its encoding; every NaN becomes the quiet NaN without payload."""
        kind, fraction = self.kind, self.kind.precision - 1
        sign = int(self.negative and not self.nan) << (kind.bits - 1)
        top = (1 << (kind.bits - 1)) - (1 << fraction)
        if isinstance(self.magnitude, float):
            return sign | top | (1 << (fraction - 1) if self.nan else 0)
        units = self.magnitude / Fraction(2) ** kind.least
        assert units.denominator == 1
        shift = max(0, units.numerator.bit_length() - kind.precision)
        # The hidden bit of a normal number adds one to the exponent field, which is therefore one less here.
        return sign | ((shift << fraction) + (units.numerator >> shift))

    def __neg__(self) -> Number:
        return Number(self.kind, not self.negative, self.magnitude)

    def __abs__(self) -> Number:
        return Number(self.kind, False, self.magnitude)

    def __add__(self, other: Number | Exact) -> Number:
        other = self._like(other)
        if self.nan or other.nan or (self.special and other.special and self.negative != other.negative):
            return Number(self.kind, False, math.nan)
        if self.special or other.special:
            return self if self.special else other
        total = self.exact + other.exact
        return rounded(self.kind, abs(total), total < 0 or (total == 0 and self.negative and other.negative))

    def __sub__(self, other: Number | Exact) -> Number:
        return self + -self._like(other)

    def __mul__(self, other: Number | Exact) -> Number:
        other = self._like(other)
        negative = self.negative != other.negative
        if not self.special and not other.special:
            return rounded(self.kind, abs(self.exact * other.exact), negative)
        if self.nan or other.nan or 0 in (self.magnitude, other.magnitude):
            return Number(self.kind, False, math.nan)
        return Number(self.kind, negative, math.inf)

    def __truediv__(self, other: Number | Exact) -> Number:
        other = self._like(other)
        negative = self.negative != other.negative
        zeros, infinite = self.magnitude == other.magnitude == 0, self.special and other.special
        if self.nan or other.nan or zeros or infinite:
            return Number(self.kind, False, math.nan)
        if self.special or other.magnitude == 0:
            return Number(self.kind, negative, math.inf)
        if other.special:
            return Number(self.kind, negative, Fraction(0))
        return rounded(self.kind, abs(self.exact / other.exact), negative)

    def __radd__(self, other: Exact) -> Number:
        return self._like(other) + self

    def __rsub__(self, other: Exact) -> Number:
        return self._like(other) - self

    def __rmul__(self, other: Exact) -> Number:
        return self._like(other) * self

    def __rtruediv__(self, other: Exact) -> Number:
        return self._like(other) / self

    def __lt__(self, other: Number | Exact) -> bool:
        return self._key() < self._like(other)._key()  # comparisons with a NaN are false in Python too

    def __le__(self, other: Number | Exact) -> bool:
        return self._key() <= self._like(other)._key()

    def __gt__(self, other: Number | Exact) -> bool:
        return self._key() > self._like(other)._key()

    def __ge__(self, other: Number | Exact) -> bool:
        return self._key() >= self._like(other)._key()

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Number | Fraction | int | float)
        return self._key() == self._like(other)._key()

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def _key(self) -> Fraction | float:
        return -self.magnitude if self.negative else self.magnitude

    def _like(self, other: Number | Exact) -> Number:
        """Return an operand in this format; a plain number of a formula is rounded to it."""
        if isinstance(other, Number):
            assert other.kind == self.kind
            return other
        return number(self.kind, other)


def rounded(kind: Format, magnitude: Fraction, negative: bool = False) -> Number:
    """Return the number nearest to a magnitude; of two equally near ones, the even one."""
    if magnitude == 0:
        return Number(kind, negative, Fraction(0))
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - kind.precision + 1, kind.least)
    count, rest = divmod(magnitude, unit)
    if 2 * rest > unit or (2 * rest == unit and count % 2):
        count += 1
    result = count * unit
    return Number(kind, negative, result if result < Fraction(2) ** kind.beyond else math.inf)


def number(kind: Format, value: Exact) -> Number:
    """Return the number nearest to a value: a fraction, an integer, or the exact value of a float."""
    if isinstance(value, float) and not math.isfinite(value):
        return Number(kind, value < 0, abs(value))
    negative = math.copysign(1.0, value) < 0 if isinstance(value, float) else value < 0
    return rounded(kind, abs(Fraction(value)), negative)


def of_bits(kind: Format, bits: int) -> Number:
    """Return the number with this encoding."""
    fraction = kind.precision - 1
    negative, field = bool(bits >> (kind.bits - 1)), bits >> fraction & (1 << (kind.bits - 1 - fraction)) - 1
    rest = bits & (1 << fraction) - 1
    if field == (1 << (kind.bits - 1 - fraction)) - 1:
        return Number(kind, negative, math.nan if rest else math.inf)
    units = rest if field == 0 else (rest | 1 << fraction) << (field - 1)
    return Number(kind, negative, units * Fraction(2) ** kind.least)


def sqrt(x: Number) -> Number:
    """Return √x."""
    if x.nan or x.magnitude == 0:
        return x
    if x.negative:
        return Number(x.kind, False, math.nan)
    if x.special:
        return x
    shift = 2 * (x.kind.precision - x.kind.least)  # more bits of the root than a significand has
    square = x.exact * Fraction(2) ** (2 * shift)
    root = math.isqrt(square.numerator // square.denominator)
    inexact = root * root != square
    return rounded(x.kind, (root + Fraction(int(inexact), 2)) / Fraction(2) ** shift)  # a half stands for the rest
