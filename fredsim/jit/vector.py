"""A vector type for numba: 16, 32 or 64 float32 lanes, so that a loop over many arrays is sure to run in registers.

LLVM refuses to vectorise such a loop by itself (it would have to check every pair of arrays for overlap). The type
knows only what the numerics contract allows: + − × ÷ √, comparisons and selection, each rounded lane by lane as a
scalar would be, so the bits do not depend on the machine's vector width. A Python number beside a vector is rounded
to float32 first, as NumPy rounds it beside a float32 array. LLVM splits a vector over as many registers as it takes.

`load` and its kin take a pointer (fredsim.jit.pointers) and an example of a vector, `like`, for the number of lanes:
`load(zeros(16), pointer, index)`. Nothing is checked.
"""

from __future__ import annotations

import operator

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, lower_cast, models, overload, register_model

from fredsim.jit.pointers import element_pointer, lowered
from fredsim.numerics import rules

__all__ = [
    "LANES",
    "add_pairs",
    "broadcast",
    "load",
    "load_part",
    "no_nan",
    "store",
    "store_part",
    "transpose16",
    "zeros",
]

LANES = 16  # of the narrowest vector, to which rows are padded
INT32 = ir.IntType(32)


class VectorType(types.Type):
    """A vector of `lanes` float32."""

    def __init__(self, lanes):
        super().__init__(name=f"fredsim_float32x{lanes}")
        self.lanes = lanes
        self.llvm = ir.VectorType(ir.FloatType(), lanes)


class MaskType(types.Type):
    """A vector of `lanes` truth values, the result of comparing two vectors."""

    def __init__(self, lanes):
        super().__init__(name=f"fredsim_bool1x{lanes}")
        self.llvm = ir.VectorType(ir.IntType(1), lanes)


class _Model(models.PrimitiveModel):
    """A vector is one LLVM value."""

    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, fe_type.llvm)


register_model(VectorType)(_Model)
register_model(MaskType)(_Model)


def _splat(builder, value, lanes):
    one = builder.insert_element(ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined), value, INT32(0))
    zeros = ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes)
    return builder.shuffle_vector(one, ir.Constant(one.type, ir.Undefined), zeros)


def _below(builder, count, lanes):
    """Return the mask of the lanes whose index is below `count`."""
    index = ir.Constant(ir.VectorType(INT32, lanes), list(range(lanes)))
    return builder.icmp_signed("<", index, _splat(builder, builder.trunc(count, INT32), lanes))


@lower_cast(types.Number, VectorType)
def _cast(context, builder, fromty, toty, value):
    return _splat(builder, context.cast(builder, value, fromty, types.float32), toty.lanes)


def _register(function, arity, emit, result=lambda vector: vector):
    """Let `function` take vectors, or vectors and numbers, and be `emit(builder, *values)`."""

    @infer_global(function)
    class Template(AbstractTemplate):
        def generic(self, args, kws):
            vectors = [a for a in args if isinstance(a, VectorType)]
            fitting = len(args) == arity and all(a in vectors or isinstance(a, types.Number) for a in args)
            if fitting and vectors:
                return signature(result(vectors[0]), *vectors[:1] * arity)
            return None

    @lower_builtin(function, *[VectorType] * arity)
    def lower(context, builder, sig, args):
        return emit(builder, *args)


_register(operator.add, 2, lambda b, x, y: b.fadd(x, y))
_register(operator.sub, 2, lambda b, x, y: b.fsub(x, y))
_register(operator.mul, 2, lambda b, x, y: b.fmul(x, y))
_register(operator.truediv, 2, lambda b, x, y: b.fdiv(x, y))
_register(operator.neg, 1, lambda b, x: b.fneg(x))
for _symbol, _operator in {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
                           "==": operator.eq}.items():  # fmt: skip
    _register(
        _operator,
        2,
        lambda b, x, y, symbol=_symbol: b.fcmp_ordered(symbol, x, y),
        lambda vector: MaskType(vector.lanes),
    )
_register(operator.ne, 2, lambda b, x, y: b.fcmp_unordered("!=", x, y), lambda vector: MaskType(vector.lanes))


def _call(builder, name, result, *values):
    function_type = ir.FunctionType(result, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), values)


@intrinsic
def _sqrt(typingctx, x):
    return lowered(x(x), lambda b, value: _call(b, f"llvm.sqrt.v{x.lanes}f32", x.llvm, value))


@intrinsic
def _absolute(typingctx, x):
    return lowered(x(x), lambda b, value: _call(b, f"llvm.fabs.v{x.lanes}f32", x.llvm, value))


@intrinsic
def _where(typingctx, condition, x, y):
    vector = x if isinstance(x, VectorType) else y
    if not isinstance(vector, VectorType):  # numbers on both sides: as many as the condition's lanes
        vector = VectorType(condition.llvm.count)
    return lowered(vector(condition, vector, vector), lambda b, *values: b.select(*values))


@overload(rules.sqrt)
def _overload_sqrt(x):
    return (lambda x: _sqrt(x)) if isinstance(x, VectorType) else None


@overload(rules.absolute)
def _overload_absolute(x):
    return (lambda x: _absolute(x)) if isinstance(x, VectorType) else None


@overload(rules.where)
def _overload_where(condition, x, y):
    return (lambda condition, x, y: _where(condition, x, y)) if isinstance(condition, MaskType) else None


@intrinsic(prefer_literal=True)
def zeros(typingctx, lanes):
    """Return a vector of +0; `lanes`, 16, 32 or 64, is a literal."""
    vector = VectorType(lanes.literal_value)
    return lowered(vector(lanes), lambda b, lanes: ir.Constant(vector.llvm, [0.0] * vector.lanes))


@intrinsic(prefer_literal=True)
def broadcast(typingctx, lanes, number):
    """Return a vector of a number, rounded to float32; `lanes` is a literal."""
    vector = VectorType(lanes.literal_value)
    return lowered(vector(lanes, vector), lambda b, lanes, number: number)


@intrinsic
def no_nan(typingctx, x):
    """Return whether no lane is NaN."""

    def emit(builder, value):
        bits = builder.bitcast(builder.fcmp_ordered("==", value, value), ir.IntType(x.lanes))
        return builder.icmp_unsigned("==", bits, ir.Constant(bits.type, 2**x.lanes - 1))

    return lowered(types.boolean(x), emit)


def _load(builder, place):
    """Load a vector that need not be aligned more than a float."""
    value = builder.load(place)
    value.align = 4
    return value


def _store(builder, value, place):
    builder.store(value, place).align = 4


@intrinsic
def load(typingctx, like, pointer, index):
    """Return pointer[index : index + lanes]."""
    signature = like(like, pointer, types.intp)
    return lowered(signature, lambda b, _, *place: _load(b, element_pointer(b, *place, like.llvm)))


@intrinsic
def store(typingctx, pointer, index, value):
    """Set pointer[index : index + lanes] to the vector `value`."""
    signature = types.none(pointer, types.intp, value)
    return lowered(signature, lambda b, p, i, x: _store(b, x, element_pointer(b, p, i, value.llvm)))


@intrinsic
def load_part(typingctx, like, pointer, index, count):
    """Return pointer[index : index + count] in the first lanes, +0 in the others; the others are not read."""

    def emit(builder, _, pointer, index, count):
        place = element_pointer(builder, pointer, index, like.llvm)
        mask, zero = _below(builder, count, like.lanes), ir.Constant(like.llvm, [0.0] * like.lanes)
        return _call(builder, f"llvm.masked.load.v{like.lanes}f32.p0", like.llvm, place, INT32(4), mask, zero)

    return lowered(like(like, pointer, types.intp, types.intp), emit)


@intrinsic
def store_part(typingctx, pointer, index, value, count):
    """Set pointer[index : index + count] from the first lanes; nothing else is touched."""

    def emit(builder, pointer, index, x, count):
        place, mask = element_pointer(builder, pointer, index, value.llvm), _below(builder, count, value.lanes)
        _call(builder, f"llvm.masked.store.v{value.lanes}f32.p0", ir.VoidType(), x, place, INT32(4), mask)

    return lowered(types.none(pointer, types.intp, value, types.intp), emit)


@intrinsic
def transpose16(typingctx, source, index, stride, out, at, out_stride):
    """Set out[at + i·out_stride + j] = source[index + j·stride + i] for i, j < 16."""
    like = VectorType(16)

    def row(builder, pointer, begin, stride, i):
        place = builder.add(begin, builder.mul(stride, ir.Constant(begin.type, i)))
        return element_pointer(builder, pointer, place, like.llvm)

    def emit(builder, source, index, stride, *target):
        rows = [_load(builder, row(builder, source, index, stride, i)) for i in range(16)]
        for half in (8, 4, 2, 1):  # exchange the off-diagonal halves of blocks of 2·half
            low = [lane if not lane & half else lane - half + 16 for lane in range(16)]
            high = [lane + half if not lane & half else lane + 16 for lane in range(16)]
            masks = [ir.Constant(ir.VectorType(INT32, 16), lanes) for lanes in (low, high)]
            for i in range(16):
                if not i & half:
                    pair = rows[i], rows[i + half]
                    rows[i], rows[i + half] = (builder.shuffle_vector(*pair, mask) for mask in masks)
        for i, value in enumerate(rows):
            _store(builder, value, row(builder, *target, i))

    integer = types.intp
    return lowered(types.none(source, integer, integer, out, integer, integer), emit)


@intrinsic
def add_pairs(typingctx, source, index, out, at):
    """Set out[at + i] = source[index + 2i] + source[index + 2i + 1] in float64 for i < 16."""
    doubles = ir.VectorType(ir.DoubleType(), 16)
    narrow = source.dtype == types.float32
    kind = ir.VectorType(ir.FloatType(), 16) if narrow else doubles

    def emit(builder, source, index, out, at):
        places = index, builder.add(index, ir.Constant(index.type, 16))
        halves = [_load(builder, element_pointer(builder, source, place, kind)) for place in places]
        masks = [ir.Constant(ir.VectorType(INT32, 16), list(range(odd, 32, 2))) for odd in (0, 1)]
        sides = [builder.shuffle_vector(*halves, mask) for mask in masks]
        total = builder.fadd(*(builder.fpext(side, doubles) if narrow else side for side in sides))
        _store(builder, total, element_pointer(builder, out, at, doubles))

    return lowered(types.none(source, types.intp, out, types.intp), emit)
