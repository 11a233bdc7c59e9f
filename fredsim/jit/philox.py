"""Random words of Philox4x32-10 (fredsim.numerics.streams.philox4x32), 16 blocks at a time, in vector registers."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fredsim.jit.pointers import INT64, element_pointer, lowered
from fredsim.jit.vector import splat, store_at
from fredsim.numerics.streams import MULTIPLIERS, WEYL

__all__ = ["BLOCKS", "store_kept"]

BLOCKS = 16
ROUNDS = 10
INT32, FLOAT = ir.IntType(32), ir.FloatType()
WIDE, FLOATS = (ir.VectorType(kind, BLOCKS) for kind in (INT64, FLOAT))
LOW = 0xFFFF_FFFF


def _constant(number):
    return ir.Constant(WIDE, [number] * BLOCKS)


def _words(builder, counter, key):
    """Return the four words of 16 blocks, vectors of 64-bit numbers below 2³²; likewise the counter; `key` scalars."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = builder.mul(_constant(int(MULTIPLIERS[0])), c0), builder.mul(_constant(int(MULTIPLIERS[1])), c2)
        high0, high1 = (builder.lshr(p, _constant(32)) for p in (p0, p1))
        c0 = builder.xor(builder.xor(high1, c1), splat(builder, k0, BLOCKS))
        c2 = builder.xor(builder.xor(high0, c3), splat(builder, k1, BLOCKS))
        c1, c3 = builder.and_(p1, _constant(LOW)), builder.and_(p0, _constant(LOW))
        k0, k1 = (builder.and_(builder.add(k, INT64(step)), INT64(LOW)) for k, step in zip((k0, k1), WEYL, strict=True))
    return c0, c1, c2, c3


def _interleaved(builder, x, y):
    """Return x[0], y[0], x[1], y[1] and so on."""
    count = x.type.count
    order = ir.Constant(ir.VectorType(INT32, 2 * count), [i // 2 + i % 2 * count for i in range(2 * count)])
    return builder.shuffle_vector(x, y, order)


@intrinsic
def store_kept(typingctx, out, index, block, number, client, place, seed, stream, threshold, scale):
    """Set the 64 numbers at out[index :]: `scale` where word >> 8 is at least `threshold`, else +0.

    The words are those of the 16 blocks from `block` on, with the counter (block, number, client, place) and the key
    (seed, stream).
    """

    def emit(builder, out, index, block, number, client, place, seed, stream, threshold, scale):
        ascending = ir.Constant(WIDE, list(range(BLOCKS)))
        first = builder.add(splat(builder, block, BLOCKS), ascending)
        counter = (first, *(splat(builder, each, BLOCKS) for each in (number, client, place)))
        parts = []
        for word in _words(builder, counter, (seed, stream)):
            stays = builder.icmp_unsigned(">=", builder.lshr(word, _constant(8)), splat(builder, threshold, BLOCKS))
            parts.append(builder.select(stays, splat(builder, scale, BLOCKS), ir.Constant(FLOATS, [0.0] * BLOCKS)))
        w0, w1, w2, w3 = parts
        whole = _interleaved(builder, _interleaved(builder, w0, w2), _interleaved(builder, w1, w3))
        store_at(builder, whole, element_pointer(builder, out, index, whole.type))

    integers = [types.int64] * 8
    return lowered(types.none(out, types.intp, *integers[:7], types.float32), emit)
