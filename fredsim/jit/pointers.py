"""Plain C pointers for kernels, since numba passes an array as seven values and counts references.

Indices and counts are in elements. No bounds are checked.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["address_of", "call", "doubles", "floats", "int32s", "int64s", "item", "put", "shift", "uint8s"]

INT64 = ir.IntType(64)


def lowered(signature, emit):
    """Return what numba expects of an intrinsic: its signature, and a function that generates its code.

    emit(builder, *values) emits LLVM code for the arguments, and returns the result.
    """

    def generate(context, builder, sig, args):
        value = emit(builder, *args)
        return context.get_dummy_value() if sig.return_type == types.none else value

    return signature, generate


def element_pointer(builder, pointer, index, element=None):
    """Return the LLVM pointer `index` elements behind a pointer, cast to a pointer to `element` if that is given."""
    place = builder.gep(pointer, [index])
    return place if element is None else builder.bitcast(place, element.as_pointer())


def _at_address(element):
    def pointer(typingctx, address):
        def generate(context, builder, sig, args):
            return builder.inttoptr(args[0], context.get_value_type(sig.return_type))

        return types.CPointer(element)(types.intp), generate

    return intrinsic(pointer)


_KINDS = types.float64, types.float32, types.int64, types.int32, types.uint8
#: Each converts a memory address to a pointer to float64, float32, int64, int32 or uint8. They are also the kinds of
#: array arguments in Fields.
doubles, floats, int64s, int32s, uint8s = _POINTERS = [_at_address(kind) for kind in _KINDS]
#: The numba type of the elements that each of them points to.
ELEMENTS = dict(zip(_POINTERS, _KINDS, strict=True))


@intrinsic
def address_of(typingctx, pointer, index):
    """Return the memory address of pointer[index]."""
    return lowered(types.int64(pointer, types.intp), lambda b, *place: b.ptrtoint(element_pointer(b, *place), INT64))


@intrinsic
def shift(typingctx, pointer, count):
    """Return the pointer `count` elements after `pointer`."""
    return lowered(pointer(pointer, types.intp), element_pointer)


@intrinsic
def item(typingctx, pointer, index):
    """Return pointer[index]."""
    return lowered(pointer.dtype(pointer, types.intp), lambda b, *place: b.load(element_pointer(b, *place)))


@intrinsic
def put(typingctx, pointer, index, value):
    """Set pointer[index] to `value`."""
    signature = types.none(pointer, types.intp, pointer.dtype)
    return lowered(signature, lambda b, p, i, x: b.store(x, element_pointer(b, p, i)))


@intrinsic
def call(typingctx, function, arguments):
    """Call a compiled function (fredsim.jit.cache.Compiled) by its address, with a tuple of int64 as arguments."""

    def emit(builder, address, arguments):
        values = cgutils.unpack_tuple(builder, arguments)
        function = ir.FunctionType(INT64, [INT64] * len(values))
        return builder.call(builder.inttoptr(address, function.as_pointer()), values)

    return lowered(types.int64(types.int64, types.UniTuple(types.int64, len(arguments))), emit)
