"""Plain pointers for kernels: an array would be passed as seven values, and counted. Nothing is checked."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "ELEMENTS",
    "address_of",
    "call",
    "doubles",
    "floats",
    "integers",
    "item",
    "octets",
    "place_of",
    "put",
    "shift",
    "shorts",
]

INT64 = ir.IntType(64)


def place_of(builder, pointer, index, element=None):
    """Return the address `index` elements behind a pointer, as that of `element`, an LLVM type."""
    place = builder.gep(pointer, [index])
    return place if element is None else builder.bitcast(place, element.as_pointer())


def _at_address(element):
    def view(typingctx, address):
        def generate(context, builder, sig, args):
            return builder.inttoptr(args[0], context.get_value_type(sig.return_type))

        return types.CPointer(element)(types.intp), generate

    return intrinsic(view)


#: A pointer at a memory address: to float32, float64, int64, int32, uint8.
doubles = _at_address(types.float64)
floats = _at_address(types.float32)
integers = _at_address(types.int64)
shorts = _at_address(types.int32)
octets = _at_address(types.uint8)
#: What each of them points to.
ELEMENTS: dict[Any, Any] = {
    doubles: types.float64, floats: types.float32, integers: types.int64, shorts: types.int32, octets: types.uint8,
}  # fmt: skip


@intrinsic
def address_of(typingctx, pointer, index):
    """Return the memory address of pointer[index]."""

    def generate(context, builder, sig, args):
        return builder.ptrtoint(place_of(builder, *args), INT64)

    return types.int64(pointer, types.intp), generate


@intrinsic
def shift(typingctx, pointer, count):
    """Return the pointer `count` elements on."""
    return pointer(pointer, types.intp), lambda context, builder, sig, args: place_of(builder, *args)


@intrinsic
def item(typingctx, pointer, index):
    """Return pointer[index]."""

    def generate(context, builder, sig, args):
        return builder.load(place_of(builder, *args))

    return pointer.dtype(pointer, types.intp), generate


@intrinsic
def put(typingctx, pointer, index, value):
    """Set pointer[index]."""

    def generate(context, builder, sig, args):
        builder.store(args[2], place_of(builder, *args[:2]))
        return context.get_dummy_value()

    return types.none(pointer, types.intp, pointer.dtype), generate


@intrinsic
def call(typingctx, function, arguments):
    """Call a compiled function (fredsim.jit.cache.Compiled) by its address with a tuple of int64."""

    def generate(context, builder, sig, args):
        values = cgutils.unpack_tuple(builder, args[1])
        function = ir.FunctionType(INT64, [INT64] * len(values))
        return builder.call(builder.inttoptr(args[0], function.as_pointer()), values)

    return types.int64(types.int64, types.UniTuple(types.int64, len(arguments))), generate
