"""A vector type for numba: sixteen float32 lanes, so that a loop over many arrays is sure to run in vector registers.

LLVM refuses to vectorise such a loop by itself (it would have to check every pair of arrays for overlap). The type
knows only what the numerics contract allows: + − × ÷ √, comparisons and selection, each rounded lane by lane as a
scalar would be, so the bits do not depend on the machine's vector width. A Python number beside a vector is rounded
to float32 first, as NumPy rounds it beside a float32 array.
"""

from __future__ import annotations

import operator

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, lower_cast, models, overload, register_model

from fredsim.numerics import rules

__all__ = ["LANES", "floats", "load", "load_part", "store", "store_part", "zeros16"]

LANES = 16
FLOATS = ir.VectorType(ir.FloatType(), LANES)
BOOLS = ir.VectorType(ir.IntType(1), LANES)
INT32 = ir.IntType(32)


class VectorType(types.Type):
    """Sixteen float32."""

    def __init__(self):
        super().__init__(name="fredsim_float32x16")


class MaskType(types.Type):
    """Sixteen truth values, the result of comparing two vectors."""

    def __init__(self):
        super().__init__(name="fredsim_bool1x16")


vector = VectorType()
mask = MaskType()


@register_model(VectorType)
class VectorModel(models.PrimitiveModel):
    """A vector is one LLVM value."""

    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, FLOATS)


@register_model(MaskType)
class MaskModel(models.PrimitiveModel):
    """A mask is one LLVM value."""

    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, BOOLS)


def _splat(builder, value):
    one = builder.insert_element(ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined), value, INT32(0))
    zeros = ir.Constant(ir.VectorType(INT32, LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(one.type, ir.Undefined), zeros)


def _below(builder, count):
    """Return the mask of the lanes whose index is below `count`."""
    lanes = ir.Constant(ir.VectorType(INT32, LANES), list(range(LANES)))
    return builder.icmp_signed("<", lanes, _splat(builder, builder.trunc(count, INT32)))


@lower_cast(types.Number, vector)
def _cast(context, builder, fromty, toty, value):
    return _splat(builder, context.cast(builder, value, fromty, types.float32))


def _register(function, arity, emit, result=vector):
    """Let `function` take vectors, or vectors and numbers, and be `emit(builder, *values)`."""

    @infer_global(function)
    class Template(AbstractTemplate):
        def generic(self, args, kws):
            fitting = len(args) == arity and all(isinstance(a, VectorType | types.Number) for a in args)
            if fitting and any(isinstance(a, VectorType) for a in args):
                return signature(result, *[vector] * arity)
            return None

    @lower_builtin(function, *[vector] * arity)
    def lower(context, builder, sig, args):
        return emit(builder, *args)


_register(operator.add, 2, lambda b, x, y: b.fadd(x, y))
_register(operator.sub, 2, lambda b, x, y: b.fsub(x, y))
_register(operator.mul, 2, lambda b, x, y: b.fmul(x, y))
_register(operator.truediv, 2, lambda b, x, y: b.fdiv(x, y))
_register(operator.neg, 1, lambda b, x: b.fneg(x))
for _symbol, _operator in {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
                           "==": operator.eq}.items():  # fmt: skip
    _register(_operator, 2, lambda b, x, y, symbol=_symbol: b.fcmp_ordered(symbol, x, y), mask)
_register(operator.ne, 2, lambda b, x, y: b.fcmp_unordered("!=", x, y), mask)


def _call(name, result, *arguments):
    def emit(builder, *values):
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)
        return builder.call(function, values)

    return emit


@intrinsic
def _sqrt(typingctx, x):
    return vector(vector), lambda context, builder, sig, args: _call("llvm.sqrt.v16f32", FLOATS, FLOATS)(builder, *args)


@intrinsic
def _absolute(typingctx, x):
    return vector(vector), lambda context, builder, sig, args: _call("llvm.fabs.v16f32", FLOATS, FLOATS)(builder, *args)


@intrinsic
def _where(typingctx, condition, x, y):
    return vector(mask, vector, vector), lambda context, builder, sig, args: builder.select(*args)


@overload(rules.sqrt)
def _overload_sqrt(x):
    return (lambda x: _sqrt(x)) if isinstance(x, VectorType) else None


@overload(rules.absolute)
def _overload_absolute(x):
    return (lambda x: _absolute(x)) if isinstance(x, VectorType) else None


@overload(rules.where)
def _overload_where(condition, x, y):
    return (lambda condition, x, y: _where(condition, x, y)) if isinstance(condition, MaskType) else None


@intrinsic
def zeros16(typingctx):
    """Return sixteen +0."""
    return vector(), lambda context, builder, sig, args: ir.Constant(FLOATS, [0.0] * LANES)


@intrinsic
def broadcast(typingctx, x):
    """Return `x`, rounded to float32, in every lane."""

    def generate(context, builder, sig, args):
        return _splat(builder, context.cast(builder, args[0], sig.args[0], types.float32))

    return vector(x), generate


@intrinsic
def all_equal_itself(typingctx, x):
    """Return whether no lane is NaN."""

    def generate(context, builder, sig, args):
        ordered = builder.fcmp_ordered("==", args[0], args[0])
        bits = builder.bitcast(ordered, ir.IntType(LANES))
        return builder.icmp_unsigned("==", bits, ir.Constant(bits.type, 2**LANES - 1))

    return types.boolean(vector), generate


def _address(context, builder, array_type, array, index, element=FLOATS):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), element.as_pointer())


@intrinsic
def load(typingctx, array, index):
    """Return array[index : index + 16] of a contiguous float32 array; nothing is checked."""

    def generate(context, builder, sig, args):
        value = builder.load(_address(context, builder, sig.args[0], *args))
        value.align = 4
        return value

    return vector(array, types.intp), generate


@intrinsic
def store(typingctx, array, index, value):
    """Set array[index : index + 16]; nothing is checked."""

    def generate(context, builder, sig, args):
        builder.store(args[2], _address(context, builder, sig.args[0], *args[:2])).align = 4
        return context.get_dummy_value()

    return types.none(array, types.intp, vector), generate


@intrinsic
def load_part(typingctx, array, index, count):
    """Return array[index : index + count] in the first lanes, +0 in the others; the others are not read."""

    def generate(context, builder, sig, args):
        pointer = _address(context, builder, sig.args[0], *args[:2])
        emit = _call("llvm.masked.load.v16f32.p0", FLOATS, pointer.type, INT32, BOOLS, FLOATS)
        return emit(builder, pointer, INT32(4), _below(builder, args[2]), ir.Constant(FLOATS, [0.0] * LANES))

    return vector(array, types.intp, types.intp), generate


@intrinsic
def store_part(typingctx, array, index, value, count):
    """Set array[index : index + count] from the first lanes; nothing else is touched."""

    def generate(context, builder, sig, args):
        pointer = _address(context, builder, sig.args[0], *args[:2])
        emit = _call("llvm.masked.store.v16f32.p0", ir.VoidType(), FLOATS, pointer.type, INT32, BOOLS)
        emit(builder, args[2], pointer, INT32(4), _below(builder, args[3]))
        return context.get_dummy_value()

    return types.none(array, types.intp, vector, types.intp), generate


@intrinsic
def floats(typingctx, address, count):
    """Return the float32 array of `count` elements at a memory address, which the caller keeps alive."""
    array_type = types.Array(types.float32, 1, "C")

    def generate(context, builder, sig, args):
        array = context.make_array(array_type)(context, builder)
        size = context.get_constant(types.intp, 4)
        context.populate_array(
            array,
            data=builder.inttoptr(args[0], array.data.type),
            shape=[args[1]],
            strides=[size],
            itemsize=size,
            meminfo=None,
        )
        return array._getvalue()

    return array_type(types.intp, types.intp), generate
