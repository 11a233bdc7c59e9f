"""Kernels for a team of threads, their named arguments, and copies of kernels specialised for other constants.

A kernel's fields list its arguments by name and kind. The caller packs the arguments by these names, and the kernel
reads them as attributes of `a`:

    @kernel(array=floats, count=int, result=doubles)
    def largest(rank, size, barrier, a): ...  # a.array, a.count, a.result

    team.run(largest, largest.pack(array=array, count=len(array), result=result))
"""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Sequence
from ctypes import Structure, addressof, c_int64
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any, ClassVar

import numpy as np
from numba import types
from numba.core.dispatcher import Dispatcher
from numba.extending import intrinsic
from numba.np import numpy_support

from fredsim.jit.cache import Compiled
from fredsim.jit.pointers import ELEMENTS, INT64, element_pointer
from fredsim.jit.subroutine import subroutine
from fredsim.jit.team import address, barrier_wait

__all__ = ["Arguments", "Fields", "Kernel", "kernel", "specialise", "with_functions"]

DTYPES = {kind: numpy_support.as_dtype(element) for kind, element in ELEMENTS.items()}


class Arguments(Structure):
    """A kernel's arguments, packed into 64 bits per field."""

    __slots__ = ("_values",)
    _kinds: ClassVar[dict[str, Any]]

    def set(self, **values):
        """Set some fields, by name; arrays are kept alive. Integers may also be set as attributes.

        Raises TypeError for an array whose dtype is not the one that the kernel reads.
        """
        for name, value in values.items():
            setattr(self, name, _word(name, value, self._kinds[name]))
        self._values.update(values)


class Fields:
    """The names and kinds of a kernel's arguments.

    A kind is `int` for a number or an address; a pointer type of fredsim.jit.pointers for an array; or other Fields.
    """

    def __init__(self, **fields):
        self._fields = fields
        self.type = types.NamedTuple([_type_of(kind) for kind in fields.values()], namedtuple("Fields", fields))
        members = {"__slots__": (), "_kinds": fields, "_fields_": [(name, c_int64) for name in fields]}
        self._structure = type("Arguments", (Arguments,), members)

    def pack(self, **values):
        """Return Arguments with a value for each field. Raises TypeError if names differ, and like Arguments.set."""
        if values.keys() != self._fields.keys():
            missing, unknown = self._fields.keys() - values.keys(), values.keys() - self._fields.keys()
            raise TypeError(f"arguments missing: {sorted(missing)}; unknown: {sorted(unknown)}")
        packed = self._structure()
        packed._values = {}
        packed.set(**values)
        return packed

    def load(self, context, builder, pointer):
        """Return the named tuple `type`, an LLVM value, read from packed Arguments at a pointer to int64."""
        values = []
        for i, kind in enumerate(self._fields.values()):
            word = builder.load(element_pointer(builder, pointer, INT64(i)))
            if isinstance(kind, Fields):
                word = kind.load(context, builder, builder.inttoptr(word, INT64.as_pointer()))
            elif kind is not int:
                word = builder.inttoptr(word, context.get_value_type(_type_of(kind)))
            values.append(word)
        return context.make_tuple(builder, self.type, values)


def _type_of(kind):
    """Return the numba type of a field of this kind."""
    if isinstance(kind, Fields):
        return kind.type
    return types.int64 if kind is int else types.CPointer(ELEMENTS[kind])


def _word(name, value, kind):
    """Return an argument as 64 bits: a number, or an array's or structure's address."""
    if isinstance(value, np.ndarray):
        if kind is not int and value.dtype != DTYPES[kind]:
            raise TypeError(f"argument {name} is an array of {value.dtype}; the kernel reads {DTYPES[kind]}")
        return address(value)
    return addressof(value) if isinstance(value, Structure) else int(value)


body: Any = None  # placeholders: Kernel makes a copy of `_entry` with its own `body` and `read` among the globals
read: Any = None


def _entry(rank, size, barrier, arguments):
    body(rank, size, barrier, read(arguments))
    barrier_wait(size, barrier)
    return 0


class Kernel(Compiled):
    """A compiled function (rank, size, barrier, arguments) that the threads of a team run; they synchronise at its end.

    `function` is the Python function (rank, size, barrier, a), `fields` are its arguments.
    """

    def __init__(self, function, fields):
        self.function, self.fields = function, fields

        @intrinsic
        def read(typingctx, arguments):
            def generate(context, builder, sig, args):
                return fields.load(context, builder, builder.inttoptr(args[0], INT64.as_pointer()))

            return fields.type(types.int64), generate

        body = subroutine(function, forceinline=True)
        names = {"__name__": function.__module__, "body": body, "read": read, "barrier_wait": barrier_wait}
        entry = FunctionType(_entry.__code__, names, function.__name__)
        entry.__qualname__ = function.__qualname__  # together with the module's name it is the entry's key in the cache
        super().__init__(entry)

    def pack(self, **values):
        """Return the packed arguments; see Fields.pack."""
        return self.fields.pack(**values)


def kernel(given=None, /, **fields):
    """Return a decorator that makes a function a Kernel with these fields, or with the given Fields."""
    return lambda function: Kernel(function, given or Fields(**fields))


def specialise(names: Sequence[str], **constants: object) -> ModuleType:
    """Return a copy of the last of these modules whose functions are compiled with other values of module constants.

    All named modules are copied. Each may import from those before it, and then uses the functions of their copies. A
    copy is made once, so that several last modules share the subroutines of those before them: a module must be named
    after the same others each time. `constants` replace the module-level names of each module that has them. Constants
    that a module has computed from others keep their values.
    """
    copies: dict[int, object] = {}  # copies of functions, by the id of the original
    module = ModuleType("")
    for name in names:
        general = {key: value for key, value in vars(import_module(name)).items() if not key.startswith("__")}
        copied = "_".join([name, *map(str, constants.values())])
        if copied in sys.modules:
            module = sys.modules[copied]
            copies |= {id(value): getattr(module, key) for key, value in general.items() if _is_of(value, name)}
        else:
            module = ModuleType(copied)
            _fill(vars(module), name, general, copies, constants)
            sys.modules[copied] = module
    return module


def _fill(namespace, name, general, copies, constants):
    """Make copies of what `general`, the content of a module, defines; add them to the namespace and to `copies`."""
    for key, value in general.items():
        if _is_of(value, name):
            if isinstance(value, Kernel):
                copies[id(value)] = Kernel(_with_globals(value.function, namespace), value.fields)
            else:
                inline = value.targetoptions["forceinline"]
                copies[id(value)] = subroutine(_with_globals(value.py_func, namespace), forceinline=inline)
        namespace[key] = copies.get(id(value), value)
    namespace.update({key: value for key, value in constants.items() if key in general})


def _is_of(value, name):
    """Return whether a value is a kernel or a subroutine that the module of this name defines."""
    function = getattr(value, "function" if isinstance(value, Kernel) else "py_func", None)
    return isinstance(value, Kernel | Dispatcher) and function.__module__ == name


def with_functions(template: Any, **functions: Any) -> Any:
    """Return a copy of a plain function that calls other functions: its globals of these names are `functions`.

    numba cannot cache a kernel that gets a function as an argument, but one that has it as a global.
    """
    copy = _with_globals(template, template.__globals__ | functions)
    copy.__qualname__ = "_".join([template.__name__, *(function.__name__ for function in functions.values())])
    return copy


def _with_globals(function, names):
    """Return a copy of a function with other globals."""
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__)
