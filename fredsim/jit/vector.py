"""A vector type for numba, of 8 to 120 float32 lanes, which guarantees SIMD in a loop over many arrays.

LLVM does not vectorise such a loop by itself (it would have to check every pair of arrays for overlap). The type has
only the operations that docs/numerics.md allows: + − × ÷ √, comparisons and selection. Each is rounded lane by lane, as
for a scalar, so the bits do not depend on the machine's vector width. A Python number used with a vector is first
rounded to float32, as NumPy does with a number used with a float32 array. The operations are also those of vectors of
float64 (fredsim.jit.doubles), which are never mixed with vectors of float32.

`load` and similar functions take a pointer (fredsim.jit.pointers) and an example of a vector, `like`, for the number of
lanes: `load(zeros(16), pointer, index)`. Bounds are not checked.
"""

from __future__ import annotations

import operator

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, lower_cast, overload

from fredsim.jit.lanes import DoublesType, MaskType, VectorType
from fredsim.jit.pointers import INT64, element_pointer, lowered
from fredsim.jit.processor import WIDE
from fredsim.numerics import rules

__all__ = [
    "INT32",
    "below",
    "broadcast",
    "call_llvm",
    "elementwise",
    "load",
    "load_at",
    "load_part",
    "mark_changed_bits",
    "no_bit_set",
    "no_nan",
    "of_bits",
    "splat",
    "store",
    "store_at",
    "store_first",
    "store_part",
    "zeros",
]

INT32 = ir.IntType(32)


def splat(builder, value, lanes):
    """Return the LLVM vector with a value in every lane."""
    one = builder.insert_element(ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined), value, INT32(0))
    zeros = ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes)
    return builder.shuffle_vector(one, ir.Constant(one.type, ir.Undefined), zeros)


def below(builder, count, lanes):
    """Return the mask of the lanes whose index is below `count`."""
    index = ir.Constant(ir.VectorType(INT32, lanes), list(range(lanes)))
    return builder.icmp_signed("<", index, splat(builder, builder.trunc(count, INT32), lanes))


@lower_cast(types.Number, DoublesType)
@lower_cast(types.Number, VectorType)
def _cast(context, builder, fromty, toty, value):
    number = context.cast(builder, value, fromty, toty.number)
    return toty.join(builder, [splat(builder, number, kind.count) for _, kind in toty.parts])


def _register(function, arity, emit, result=lambda vector: vector):
    """Let a Python operator or function take vectors, or vectors and numbers; emit(builder, *values) is its code."""

    @infer_global(function)
    class Template(AbstractTemplate):
        def generic(self, args, kws):
            vectors = [a for a in args if isinstance(a, VectorType | DoublesType)]
            fitting = len(args) == arity and all(a in vectors[:1] or isinstance(a, types.Number) for a in args)
            if fitting and vectors:
                return signature(result(vectors[0]), *vectors[:1] * arity)
            return None

    @lower_builtin(function, *[DoublesType] * arity)
    @lower_builtin(function, *[VectorType] * arity)
    def lower(context, builder, sig, args):
        return by_parts(builder, emit, sig, args)


def by_parts(builder, emit, sig, args):
    """Apply emit(builder, *vectors) to each part of the arguments; return the value that the results represent."""
    parts = zip(*(kind.split(builder, value) for kind, value in zip(sig.args, args, strict=True)), strict=True)
    return sig.return_type.join(builder, [emit(builder, *vectors) for vectors in parts])


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


def call_llvm(builder, name, result, *values):
    """Emit a call of an LLVM function."""
    function_type = ir.FunctionType(result, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), values)


def elementwise(signature, emit):
    """Return what numba expects of an intrinsic that applies emit(builder, *vectors) to each part of its arguments."""
    return signature, lambda context, builder, sig, args: by_parts(builder, emit, sig, args)


def _named(name, x):
    """Return what numba expects of an intrinsic that calls the LLVM function of this name for vectors like x."""
    bits = x.number.bitwidth
    return elementwise(x(x), lambda b, part: call_llvm(b, f"llvm.{name}.v{part.type.count}f{bits}", part.type, part))


@intrinsic
def _sqrt(typingctx, x):
    return _named("sqrt", x)


@intrinsic
def _absolute(typingctx, x):
    return _named("fabs", x)


@intrinsic
def _where(typingctx, condition, x, y):
    vector = x if isinstance(x, VectorType | DoublesType) else y
    if not isinstance(
        vector, VectorType | DoublesType
    ):  # both are numbers: the result has as many lanes as the condition
        vector = VectorType(condition.lanes)
    return elementwise(vector(condition, vector, vector), lambda b, *parts: b.select(*parts))


@overload(rules.sqrt)
def _overload_sqrt(x):
    return (lambda x: _sqrt(x)) if isinstance(x, VectorType | DoublesType) else None


@overload(rules.absolute)
def _overload_absolute(x):
    return (lambda x: _absolute(x)) if isinstance(x, VectorType | DoublesType) else None


@overload(rules.where)
def _overload_where(condition, x, y):
    return (lambda condition, x, y: _where(condition, x, y)) if isinstance(condition, MaskType) else None


@intrinsic(prefer_literal=True)
def zeros(typingctx, lanes):
    """Return a vector of +0; `lanes` is a literal, a multiple of 16 up to 112."""
    vector = VectorType(lanes.literal_value)
    return lowered(vector(lanes), lambda b, lanes: ir.Constant(vector.llvm, None))


@intrinsic(prefer_literal=True)
def broadcast(typingctx, lanes, number):
    """Return a vector with a number, rounded to float32, in every lane; `lanes` is a literal."""
    vector = VectorType(lanes.literal_value)
    return lowered(vector(lanes, vector), lambda b, lanes, number: number)


def of_bits(kind, bits_of, number):
    """Return what numba expects of an intrinsic: whether the bits of each part of its argument are those of a number.

    bits_of(builder, part) is the part's LLVM vector of bits, or of whole numbers.
    """

    def emit(builder, value):
        found = ir.Constant(ir.IntType(1), 1)
        for part in kind.split(builder, value):
            vector = bits_of(builder, part)
            bits = builder.bitcast(vector, ir.IntType(vector.type.element.width * vector.type.count))
            found = builder.and_(found, builder.icmp_unsigned("==", bits, ir.Constant(bits.type, number)))
        return found

    return lowered(types.boolean(kind), emit)


@intrinsic
def no_nan(typingctx, x):
    """Return whether no lane is NaN."""
    return of_bits(x, lambda b, part: b.fcmp_ordered("==", part, part), -1)


@intrinsic
def no_bit_set(typingctx, x):
    """Return whether all bits of all lanes are 0."""
    return of_bits(x, lambda b, part: b.bitcast(part, _bits_of(part.type)), 0)


@intrinsic
def mark_changed_bits(typingctx, found, x, y):
    """Return the vector `found` with all bits set in addition that differ between x and y."""

    def emit(builder, found, x, y):
        kind = found.type
        found, x, y = (builder.bitcast(part, _bits_of(kind)) for part in (found, x, y))
        return builder.bitcast(builder.or_(found, builder.xor(x, y)), kind)

    return elementwise(found(found, x, y), emit)


def _bits_of(kind):
    return ir.VectorType(INT32, kind.count)


def load_at(builder, place):
    """Load a vector, which needs no more alignment than a float."""
    value = builder.load(place)
    value.align = 4
    return value


def store_at(builder, value, place):
    """Store a vector, which needs no more alignment than a float."""
    builder.store(value, place).align = 4


def store_first(builder, value, place, count):
    """Store the first `count` lanes of a vector: none if it is negative, all if there are fewer.

    Without AVX-512 a masked store takes as long as a dozen others. So there some lanes are stored by halves.
    """
    lanes = value.type.count
    if WIDE:
        name = f"llvm.masked.store.v{lanes}f32.p0"
        call_llvm(builder, name, ir.VoidType(), value, place, INT32(4), below(builder, count, lanes))
        return
    with builder.if_else(builder.icmp_signed(">=", count, INT64(lanes))) as (whole, some):
        with whole:
            store_at(builder, value, place)
        with some:
            while lanes > 1:
                lanes //= 2
                low, high = (_lanes(builder, value, first, lanes) for first in (0, lanes))
                place = builder.bitcast(place, low.type.as_pointer())
                fits = builder.icmp_signed(">=", count, INT64(lanes))
                with builder.if_then(fits):
                    store_at(builder, low, place)
                value = builder.select(fits, high, low)
                place = builder.select(fits, builder.gep(place, [INT32(1)]), place)
                count = builder.select(fits, builder.sub(count, INT64(lanes)), count)


def _lanes(builder, value, first, count):
    """Return `count` lanes of a vector, from `first` on."""
    places = ir.Constant(ir.VectorType(INT32, count), list(range(first, first + count)))
    return builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), places)


def _places(builder, kind, pointer, index):
    """Yield for each part of a vector its first lane, its LLVM type, and the pointer to it in pointer[index :]."""
    begin = builder.gep(pointer, [index])
    for lane, part in kind.parts:
        yield lane, part, element_pointer(builder, begin, INT32(lane), part)


@intrinsic
def load(typingctx, like, pointer, index):
    """Return pointer[index : index + lanes]."""

    def emit(builder, _, pointer, index):
        return like.join(builder, [load_at(builder, place) for *_, place in _places(builder, like, pointer, index)])

    return lowered(like(like, pointer, types.intp), emit)


@intrinsic
def store(typingctx, pointer, index, value):
    """Set pointer[index : index + lanes] to the vector `value`."""

    def emit(builder, pointer, index, x):
        parts = value.split(builder, x)
        for part, (*_, place) in zip(parts, _places(builder, value, pointer, index), strict=True):
            store_at(builder, part, place)

    return lowered(types.none(pointer, types.intp, value), emit)


@intrinsic
def load_part(typingctx, like, pointer, index, count):
    """Return pointer[index : index + count] in the first lanes and +0 in the others, for which nothing is read."""

    def emit(builder, _, pointer, index, count):
        parts = []
        for lane, kind, place in _places(builder, like, pointer, index):
            mask = below(builder, builder.sub(count, INT64(lane)), kind.count)
            name = f"llvm.masked.load.v{kind.count}f32.p0"
            parts.append(call_llvm(builder, name, kind, place, INT32(4), mask, ir.Constant(kind, None)))
        return like.join(builder, parts)

    return lowered(like(like, pointer, types.intp, types.intp), emit)


@intrinsic
def store_part(typingctx, pointer, index, value, count):
    """Set pointer[index : index + count] from the first lanes; nothing else is written."""

    def emit(builder, pointer, index, x, count):
        parts = value.split(builder, x)
        for part, (lane, _, place) in zip(parts, _places(builder, value, pointer, index), strict=True):
            store_first(builder, part, place, builder.sub(count, INT64(lane)))

    return lowered(types.none(pointer, types.intp, value, types.intp), emit)
