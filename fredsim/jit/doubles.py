"""Vectors of float64: made from vectors of float32, and rounded to such; powers of two and others; what masks say.

+ − × ÷ √, comparisons, absolute value and selection are those of fredsim.jit.vector.
"""

from __future__ import annotations

from llvmlite import ir
from numba.extending import intrinsic

from fredsim.jit.lanes import DoublesType, VectorType
from fredsim.jit.pointers import INT64, lowered
from fredsim.jit.vector import call_llvm, elementwise, of_bits, splat
from fredsim.numerics.elementary import MANTISSA, ONE_BITS

__all__ = ["both", "exponent", "fill", "mantissa", "narrow", "power_of_two", "some", "truncate", "widen"]

EXPONENT_BIAS = 1023.0
LOWEST_BIT_1 = 2.0**52  # the lowest bit of a float64 between this and twice as much counts ones
MANTISSA_BITS = 52


@intrinsic
def widen(typingctx, x):
    """Return a vector of float32 as one of float64, exactly."""
    wide = DoublesType(x.lanes)
    return elementwise(wide(x), lambda b, part: b.fpext(part, ir.VectorType(ir.DoubleType(), part.type.count)))


@intrinsic
def narrow(typingctx, x):
    """Return a vector of float64 rounded to float32, to nearest even."""
    near = VectorType(x.lanes)
    return elementwise(near(x), lambda b, part: b.fptrunc(part, ir.VectorType(ir.FloatType(), part.type.count)))


@intrinsic
def truncate(typingctx, x):
    """Return x without its fraction, towards zero."""
    return elementwise(x(x), lambda b, part: call_llvm(b, f"llvm.trunc.v{part.type.count}f64", part.type, part))


@intrinsic
def fill(typingctx, like, number):
    """Return a vector like another with a number in every lane."""
    return lowered(like(like, like), lambda b, _, number: number)


@intrinsic
def power_of_two(typingctx, k):
    """Return 2^k for whole numbers k from −1022 to 1023, and something arbitrary for others."""

    def emit(builder, part):
        bits = ir.VectorType(INT64, part.type.count)
        biased = builder.fadd(part, ir.Constant(part.type, [LOWEST_BIT_1 + EXPONENT_BIAS] * part.type.count))
        shifted = builder.shl(builder.bitcast(biased, bits), splat(builder, INT64(MANTISSA_BITS), part.type.count))
        return builder.bitcast(shifted, part.type)

    return elementwise(k(k), emit)


@intrinsic
def exponent(typingctx, x):
    """Return the whole numbers k, 2^k ≤ x < 2^(k + 1), of normal numbers above 0; something arbitrary of others."""

    def emit(builder, part):
        lanes, bits = part.type.count, ir.VectorType(INT64, part.type.count)
        biased = builder.lshr(builder.bitcast(part, bits), splat(builder, INT64(MANTISSA_BITS), lanes))
        lowest = builder.bitcast(ir.Constant(part.type, [LOWEST_BIT_1] * lanes), bits)
        near = builder.bitcast(builder.or_(biased, lowest), part.type)
        return builder.fsub(near, ir.Constant(part.type, [LOWEST_BIT_1 + EXPONENT_BIAS] * lanes))

    return elementwise(x(x), emit)


@intrinsic
def mantissa(typingctx, x):
    """Return x/2^k from 1 to 2, of normal numbers above 0 with that exponent k; something arbitrary of others."""

    def emit(builder, part):
        lanes, bits = part.type.count, ir.VectorType(INT64, part.type.count)
        low = builder.and_(builder.bitcast(part, bits), splat(builder, INT64(MANTISSA), lanes))
        return builder.bitcast(builder.or_(low, splat(builder, INT64(ONE_BITS), lanes)), part.type)

    return elementwise(x(x), emit)


@intrinsic
def both(typingctx, one, other):
    """Return the mask of the lanes in which both masks are true."""
    return elementwise(one(one, other), lambda b, x, y: b.and_(x, y))


@intrinsic
def some(typingctx, mask):
    """Return whether a mask is true in any lane."""
    signature, in_none = of_bits(mask, lambda b, part: part, 0)
    return signature, lambda context, builder, sig, args: builder.not_(in_none(context, builder, sig, args))
