"""Operations of kernels that move numbers between the lanes of vectors: transposition, and sums of pairs."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fredsim.jit.lanes import VectorType
from fredsim.jit.pointers import element_pointer, lowered
from fredsim.jit.vector import INT32, load_at, store_at

__all__ = ["add_pairs", "transpose16"]


@intrinsic
def transpose16(typingctx, source, index, stride, out, at, out_stride):
    """Transpose 16 × 16 float32: set out[at + i·out_stride + j] = source[index + j·stride + i] for i, j < 16."""
    like = VectorType(16)

    def row(builder, pointer, begin, stride, i):
        place = builder.add(begin, builder.mul(stride, ir.Constant(begin.type, i)))
        return element_pointer(builder, pointer, place, like.llvm)

    def emit(builder, source, index, stride, *target):
        rows = [load_at(builder, row(builder, source, index, stride, i)) for i in range(16)]
        for half in (8, 4, 2, 1):  # exchange the off-diagonal halves of blocks of 2·half
            low = [lane if not lane & half else lane - half + 16 for lane in range(16)]
            high = [lane + half if not lane & half else lane + 16 for lane in range(16)]
            masks = [ir.Constant(ir.VectorType(INT32, 16), lanes) for lanes in (low, high)]
            for i in range(16):
                if not i & half:
                    pair = rows[i], rows[i + half]
                    rows[i], rows[i + half] = (builder.shuffle_vector(*pair, mask) for mask in masks)
        for i, value in enumerate(rows):
            store_at(builder, value, row(builder, *target, i))

    integer = types.intp
    return lowered(types.none(source, integer, integer, out, integer, integer), emit)


@intrinsic
def add_pairs(typingctx, source, index, out, at):
    """Set out[at + i] = source[index + 2i] + source[index + 2i + 1] in float64, i < 16, of float32 or float64."""
    doubles = ir.VectorType(ir.DoubleType(), 16)
    narrow = source.dtype == types.float32
    kind = ir.VectorType(ir.FloatType(), 16) if narrow else doubles

    def emit(builder, source, index, out, at):
        places = index, builder.add(index, ir.Constant(index.type, 16))
        halves = [load_at(builder, element_pointer(builder, source, place, kind)) for place in places]
        masks = [ir.Constant(ir.VectorType(INT32, 16), list(range(odd, 32, 2))) for odd in (0, 1)]
        sides = [builder.shuffle_vector(*halves, mask) for mask in masks]
        total = builder.fadd(*(builder.fpext(side, doubles) if narrow else side for side in sides))
        store_at(builder, total, element_pointer(builder, out, at, doubles))

    return lowered(types.none(source, types.intp, out, types.intp), emit)
