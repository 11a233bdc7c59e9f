"""Fingerprints of what a user's class keeps: in an object, in its classes, and in its modules.

Two fingerprints of a value differ if the value has changed in between, however it was changed. They are compared within
one process only. A value that does not show all that it holds, such as a generator under way, makes its fingerprint
opaque; it differs if what can be seen has changed. Fredsim's own functions, and objects that it gives to a class, count
as unchanged.
"""

from __future__ import annotations

import contextvars
import copyreg
import decimal
import functools
import hashlib
import io
import itertools
import mmap
import random
import sys
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from operator import itemgetter
from pathlib import Path
from types import (
    CellType,
    CodeType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.plugins.discovery import is_built_in
from fredsim.plugins.failures import LIBRARIES
from fredsim.plugins.state.packing import MAPPINGS
from fredsim.plugins.state.state_arrays import span

__all__ = [
    "PLAIN",
    "Known",
    "attributes_of",
    "changed_names",
    "fingerprint",
    "imported_since",
    "in_python",
    "is_installed",
    "is_opaque",
    "is_users_object",
    "kept_by_modules",
    "kept_elsewhere",
    "modules_of",
    "slots_of",
    "used_of",
    "users_modules",
    "with_paths",
]

#: CPython's flag of classes that are written in Python; others have members that are no slots.
HEAP_TYPE = 1 << 9
OPAQUE = "?"  # at the end of a fingerprint that does not show all
PLAIN = {bool, int, float, complex, str, bytes, type(None), type(Ellipsis)}
#: What Python itself keeps in a module, and changes when a module warns.
OF_MODULES = {
    "__annotate__", "__builtins__", "__cached__", "__conditional_annotations__", "__file__", "__loader__", "__name__",
    "__package__", "__path__", "__spec__", "__warningregistry__",
}  # fmt: skip
#: What Python itself keeps in a class, in part only once somebody asks for it.
OF_CLASSES = {
    "__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__dict__", "__firstlineno__",
    "__module__", "__orig_bases__", "__parameters__", "__qualname__", "__signature__", "__slotnames__", "__slots__",
    "__static_attributes__", "__weakref__",
}  # fmt: skip

_looks = itertools.count()  # at files that do not tell how far they have been read


class Known:
    """Values that are looked after elsewhere: where a fingerprint meets them, or memory of theirs, it says which."""

    def __init__(self, owner: Any, values: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Know an object itself, and all that is in `values`, by name."""
        walk = _Walk(None, contents=False)
        walk.met[id(owner)] = 0
        self._walk = walk  # keeps what it met alive, so that ids stay unique
        self._paths = {id(owner): ""}
        self._arrays: list[tuple[str, NDArray[Any]]] = []  # which get their content back in place
        met = set[int]()
        for name, value in sorted(values.items(), key=itemgetter(0)):
            for path, part in with_paths(value, name, met):
                before = len(walk.arrays)
                self._paths |= dict.fromkeys(map(id, walk.parts_of(part)), path)
                self._arrays += [(path, array) for array in walk.arrays[before:] if array.size and array.flags.forc]
        self._spans = [(*span(array), path) for path, array in self._arrays]

    def place_of(self, value: Any) -> str | None:
        """Return which of these a value is, or is in, or which part of the memory of one; None if it is none.

        Two arrays of one path are told apart if one could not be put back in the memory of the other.
        """
        path = self._paths.get(id(value))
        if not isinstance(value, np.ndarray):
            return path
        if path is not None and not value.flags.forc:  # it is made anew when it is put back
            return None
        if path is None:
            begin, end = span(value)
            within = (f"{p} {begin - a} {value.flags.writeable}" for a, b, p in self._spans if a <= begin < end <= b)
            path = next(within, None)
        return path and f"{path} {_form_of(value)}"

    def within(self, array: NDArray[Any]) -> list[tuple[str, NDArray[Any]]]:
        """Return the contiguous arrays of these, each with its path, that are in the memory of an array."""
        return [(path, other) for path, other in self._arrays if np.may_share_memory(array, other)]

    def unknown(self, array: NDArray[Any]) -> tuple[str, NDArray[np.uint8]]:
        """Return which of these are in the memory of an array, and its bytes, of which theirs are 0."""
        content = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        inside = self.within(array)
        if not inside:
            return "", content
        known, begin = [other for _, other in inside], span(array)[0]
        where = [f"{path} {span(other)[0] - begin} {_form_of(other)}" for path, other in inside]
        spans = [span(one) for one in (array, *known)]
        first = min(begin for begin, _ in spans)
        marks = np.zeros(max(end for _, end in spans) - first, bool)

        def marks_of(one: NDArray[Any]) -> NDArray[np.bool_]:
            place = one.ctypes.data - first
            return np.ndarray((*one.shape, one.itemsize), np.bool_, marks, place, (*one.strides, 1))

        for one in known:
            marks_of(one)[...] = True
        return " ".join(where), np.where(marks_of(array).reshape(-1), 0, content).astype(np.uint8)


def with_paths(value: Any, path: str, met: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield what is in containers and users' objects within a value, with the path to it, and then these.

    What is in several places is yielded once, and what was `met` not at all.
    """
    left = [(path, value, False)]
    while left:
        path, value, entered = left.pop()
        if entered:
            yield path, value
        elif type(value) not in PLAIN and id(value) not in met:
            met.add(id(value))
            left.append((path, value, True))
            left += [(f"{path}.{step}", part, False) for step, part in reversed(_parts(value))]


def _parts(value: Any) -> list[tuple[str, Any]]:
    """Return what is in a container or an object, but for numbers and texts, each with the last step of its path."""
    if type(value) in MAPPINGS.values():
        items = [entry for entry in enumerate(list(value.items())) if type(entry[1][1]) not in PLAIN]
        return [(repr(key if type(key) in PLAIN else i), part) for i, (key, part) in items]
    if type(value) in {list, tuple, deque}:
        return [(str(i), part) for i, part in enumerate(list(value)) if type(part) not in PLAIN]
    if is_users_object(value):
        with suppress(Exception):  # it may refuse to be looked at
            return _attributes_in(value)
    return []


def _attributes_in(value: Any) -> list[tuple[str, Any]]:
    """Return what is in the attributes and the slots of an object, by name."""
    names = [name for name in slots_of(type(value)) if hasattr(value, name)]
    return [*getattr(value, "__dict__", {}).items(), *((name, getattr(value, name)) for name in names)]


def is_users_object(value: Any) -> bool:
    """Return whether a value is an object of a user's class."""
    return type(value) is not ModuleType and is_users(sys.modules.get(type(value).__module__))


def _form_of(array: NDArray[Any]) -> str:
    """Return an array's type and shape, and its order in memory, which sums may depend on."""
    return f"{array.dtype.str} {array.shape} {array.strides}"


def fingerprint(value: Any, known: Known | None = None) -> str:
    """Return a value's fingerprint."""
    walk = _Walk(known)
    walk.add(value)
    return walk.digest.hexdigest() + OPAQUE * walk.opaque


def is_opaque(found: str) -> bool:
    """Return whether a fingerprint does not show all of its value."""
    return found.endswith(OPAQUE)


def modules_of(found: Any) -> list[ModuleType]:
    """Return the modules of an object's class and of what it holds, and those of the user's that these use."""
    names = {base.__module__ for base in type(found).__mro__} | _Walk(None, contents=False).modules_in(found)
    return [*users_modules(map(sys.modules.get, names))]


def imported_since(loaded: Collection[str]) -> list[str]:
    """Return the names of what users' modules hold that are not `loaded`: what it was when they were imported is lost.

    Their functions and texts, and the classes that they have imported, do not count.
    """
    return sorted(
        f"{module.__name__}.{name}"
        for module in [sys.modules[name] for name in sys.modules.keys() - loaded]
        if is_users(module) and getattr(module, "__file__", None)
        for name, value in _variables_of(module)
        if not isinstance(value, ModuleType | FunctionType | str | None)
        and not (isinstance(value, type) and value.__module__ != module.__name__)
    )


def kept_elsewhere(found: Any, modules: Iterable[ModuleType], known: Known | None = None) -> dict[str, str]:
    """Return the fingerprints of what a user's object may keep outside itself, by the name to give in an error.

    These are the attributes of its class and of that one's bases, the global variables of its modules (`modules_of`),
    and what is kept for everybody, such as random generators.
    """
    own = {
        f"{base.__name__}.{name}": fingerprint(value, known)
        for base in type(found).__mro__[:-1]
        for name, value in attributes_of(base)
    }
    return own | kept_by_modules(modules, [found], known)


def kept_by_modules(modules: Iterable[ModuleType], users: Iterable[Any], known: Known | None = None) -> dict[str, str]:
    """Return the fingerprints of modules' global variables, and of what everybody shares, by the name for an error.

    Of a script or a notebook, these are the variables that the objects and functions `users` use: others may change
    while it waits for the run.
    """
    found = {name: fingerprint(value) for name, value in _shared().items()}
    for module in modules:
        used = used_of(module, users) if module.__name__ == "__main__" else None
        for name, value in _variables_of(module):
            if not isinstance(value, ModuleType) and (used is None or name in used):
                found[f"{module.__name__}.{name}"] = fingerprint(value, known)
    return found


def used_of(module: ModuleType, users: Iterable[Any]) -> set[str]:
    """Return the names of a module that the code of values, of their classes and of what these use may mean."""
    variables, walk, found = vars(module), _Walk(None, contents=False), set[str]()
    left = list(users)
    while left:
        parts = walk.parts_of(left.pop())
        left += [kind for part in parts if (kind := type(part)).__module__ == module.__name__]
        functions = [part for part in parts if isinstance(part, FunctionType) and part.__module__ == module.__name__]
        names = {name for function in functions for name in _named_by(function) if name in variables} - found
        left += [variables[name] for name in names]
        found |= names
    return found


def _shared() -> dict[str, Any]:
    """Return what Python, NumPy and PyTorch keep for everybody and a user's class may change and compute with."""
    context = decimal.getcontext()
    torch: Any = sys.modules.get("torch")
    generator: Any = None if torch is None else torch.get_rng_state().numpy()
    if torch is not None and np.array_equal(generator, torch.Generator().get_state().numpy()):
        generator = None  # as after its import: it may have been imported since the last look
    return {
        "the generator of random": random.getstate(),
        "the generator of np.random": np.random.get_state(legacy=False),  # noqa: NPY002  a user's class may use it
        "the generator of torch": generator,
        "the decimal context": [context.prec, context.rounding, context.Emin, context.Emax, repr(context.traps)],
        "what NumPy does about floating-point errors": np.geterr(),
    }


def changed_names(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names of what has changed, appeared or gone."""
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


@functools.lru_cache(1024)
def in_python(cls: type) -> bool:
    """Return whether a class itself, not its bases, is written in Python, so that all is in attributes and slots."""
    if not cls.__flags__ & HEAP_TYPE:
        return False
    pointers = [isinstance(kind, MemberDescriptorType) for kind in vars(cls).values()]
    pointers += [name in vars(cls) for name in ("__dict__", "__weakref__")]
    more = cls.__basicsize__ - (cls.__base__ or cls).__basicsize__
    return more <= sum(pointers) * np.dtype(np.intp).itemsize


def slots_of(cls: type) -> list[str]:
    """Return the names of a class's slots, as its objects have them."""
    return [
        name
        for base in cls.__mro__
        if in_python(base)
        for name, kind in vars(base).items()
        if isinstance(kind, MemberDescriptorType)
    ]


def attributes_of(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a class, but for those that Python itself keeps there."""
    for name, value in list(vars(cls).items()):
        unasked = name == "__annotations__" and not value  # Python makes it for whoever asks
        if name not in OF_CLASSES and not name.startswith(("_abc_", "__pydantic_")) and not unasked:
            yield name, value


def _variables_of(module: ModuleType) -> list[tuple[str, Any]]:
    """Return a module's global variables, in the order of their names."""
    return [(name, value) for name, value in sorted(vars(module).items(), key=itemgetter(0)) if name not in OF_MODULES]


def is_users(module: ModuleType | None) -> bool:
    """Return whether a module is neither fredsim's nor of an installed package."""
    if module is None or module.__name__.partition(".")[0] == "fredsim" or module.__name__ in sys.builtin_module_names:
        return False
    file = getattr(module, "__file__", None)
    return file is None or not is_installed(str(file))


@functools.lru_cache(4096)
def is_installed(file: str) -> bool:
    """Return whether a file is of Python itself or of an installed package."""
    path = Path(file)  # it may be of the user's or the system's packages, beside those of a virtual environment
    return str(path).startswith(LIBRARIES) or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def users_modules(modules: Iterable[ModuleType | None]) -> Iterator[ModuleType]:
    """Yield those of these modules, and of those that they use, that are the user's."""
    left, walk = list(modules), _Walk(None, contents=False)
    seen = set[int]()
    while left:
        module = left.pop()
        if module is None or id(module) in seen or not is_users(module):
            continue
        seen.add(id(module))
        yield module
        left += [value for value in list(vars(module).values()) if isinstance(value, ModuleType)]
        left += map(sys.modules.get, walk.modules_in([value for _, value in _variables_of(module)]))


def _named_by(function: FunctionType) -> Iterator[str]:
    """Yield names that a function's code may import modules by, with those of the functions within it."""
    package = function.__globals__.get("__package__")
    left = [function.__code__]
    while left:
        code = left.pop()
        left += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        for name in (*code.co_names, *(text for text in code.co_consts if type(text) is str)):
            yield from (name, f"{package}.{name}")


def _place_in(file: Any) -> str:
    """Return how far a file has been read, another text each time if it does not tell; "" if it is only written."""
    if file.closed or not file.readable() or file.writable():  # such as a log
        return ""
    try:
        return str(file.tell())
    except OSError:  # a loop or `next` goes through its lines, of which many are read from the disk at once
        return f"look {next(_looks)}"


class _Walk:
    """Goes through a value and all that is in it."""

    def __init__(self, known: Known | None, *, contents: bool = True) -> None:
        self.digest = hashlib.sha256()
        self.opaque = False  # whether there was something that does not show what it holds
        self._contents = contents
        self.met: dict[int, int] = {}  # by id: which one it was
        self.arrays: list[NDArray[Any]] = []
        self._alive: list[Any] = []
        self._known = known

    def add(self, value: Any) -> None:
        kind = type(value)
        self._say(kind.__qualname__)
        if kind in PLAIN:
            self._say(hex(value) if kind is int else repr(value))  # of any length
            return
        if self._known is not None and (place := self._known.place_of(value)) is not None:
            self._say(f"known {place}")
            return
        if id(value) in self.met:
            self._say(f"again {self.met[id(value)]}")
            return
        self.met[id(value)] = len(self.met)
        self._alive.append(value)
        try:
            if not self._add_whole(value):
                if not isinstance(value, np.memmap):  # whose content is that of its mmap
                    self._add_attributes(value)  # first: to ask an exception for them changes what it is pickled by
                self._add_content(value)
        except Exception:  # a user's object may refuse to be looked at
            self.opaque = True
            self._say(f"at {id(value)}")

    def _say(self, text: str) -> None:
        self.digest.update(f"{len(text)} {text}".encode(errors="surrogatepass"))

    def parts_of(self, value: Any) -> list[Any]:
        """Return a value and what is in it, besides what was met before."""
        begin = len(self._alive)
        self.add(value)
        return self._alive[begin:]

    def modules_in(self, value: Any) -> set[str]:
        """Return the names of the modules of the classes and functions in a value, besides those met before.

        Some of them may be no module's names.
        """
        found = set[str]()
        for part in self.parts_of(value):
            found.add(str((part if isinstance(part, type | FunctionType) else type(part)).__module__))
            if isinstance(part, FunctionType) and is_users(sys.modules.get(part.__module__)):
                found |= {*_named_by(part)}
        return found

    def _all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.add(value)

    def _add_whole(self, value: Any) -> bool:
        """Go through a value whose attributes do not count one by one; return whether it is such a value."""
        kind = type(value)
        match value:
            case np.ndarray() | np.generic() | Enum():
                return False
            case FunctionType():
                self._add_function(value)
            case ModuleType():
                self._say(value.__name__)
            case type():
                self._add_class(value)
            case np.ufunc():
                self._say(f"at {id(value)}")
            case _ if is_built_in(kind) and hasattr(kind, "UNCHANGING"):
                self._say(f"at {id(value)}")
            case _ if kind.__module__.startswith("numba.") and hasattr(value, "py_func"):
                self.add(value.py_func)
            case _ if _is_array_of_library(kind) and kind.__module__.partition(".")[0] == "pandas":
                self._add_reduced(value)  # its labels, too
            case _ if _is_array_of_library(kind):
                self._add_array(np.asarray(value.detach().cpu() if hasattr(value, "detach") else value))
            case _:
                return False
        return True

    def _add_content(self, value: Any) -> None:
        """Go through what a value holds besides its attributes."""
        match value:
            case np.ndarray() | np.generic():
                self._add_array(np.asarray(value))
            case np.random.Generator():
                self.add(value.bit_generator)
            case np.random.BitGenerator():
                self._all([value.state, value.seed_seq])
            case np.random.RandomState():
                self.add(value.get_state(legacy=False))
            case random.Random():
                self.add(value.getstate())
            case dict():
                self._all(item for pair in list(value.items()) for item in pair)
                self.add(value.default_factory if isinstance(value, defaultdict) else None)
            case list() | tuple() | deque():
                self._all([*value, getattr(value, "maxlen", None)])
            case set() | frozenset():
                self._all(sorted(fingerprint(item, self._known) for item in value))
            case bytearray() | memoryview():
                self.add(bytes(value))
            case mmap.mmap():
                self._say(f"at {id(value)}")
                self.digest.update(value if self._contents else b"")
            case MappingProxyType():
                self.add(dict(value))
            case weakref.ref():
                self.add(value())
            case CellType():
                self._all([value.cell_contents])
            case MethodType():
                self._all([value.__self__, value.__func__])
            case functools.partial():
                self._all([value.func, value.args, value.keywords])
            case functools._lru_cache_wrapper():
                self._say(f"at {id(value)}")
            case staticmethod() | classmethod():
                self.add(value.__func__)
            case property():
                self._all([value.fget, value.fset, value.fdel])
            case GeneratorType():  # how far it is, which is not all: another one cannot be brought there
                self.opaque = True
                if (frame := value.gi_frame) is not None:
                    self._say(f"{frame.f_lasti}")
                    self._all([dict(frame.f_locals), value.gi_yieldfrom])
            case io.StringIO() | io.BytesIO():
                self._all([] if value.closed else [value.getvalue(), value.tell()])
            case io.IOBase():
                self._say(f"at {id(value)} {_place_in(value)}")
            case contextvars.ContextVar():
                self.add(value.get(None))
            case Enum():
                self._say(f"at {id(value)}")
            case threading.local():
                pass
            case _ if any(not in_python(base) for base in type(value).__mro__[:-1]):
                self._add_reduced(value)

    def _add_array(self, array: NDArray[Any]) -> None:
        self.arrays.append(array)
        self._say(f"{_form_of(array)} {array.flags.writeable}")
        if array.dtype.hasobject:
            self.add(array.tolist())
        elif self._contents and array.size:
            known = self._known
            where, content = ("", np.ascontiguousarray(array)) if known is None else known.unknown(array)
            self._say(where)
            self.digest.update(content.view(np.uint8).data)

    def _add_function(self, function: FunctionType) -> None:
        if str(function.__module__).partition(".")[0] == "fredsim":
            self._say(f"at {id(function)}")
            return
        self._say(f"{function.__module__}.{function.__qualname__} {id(function.__code__)}")
        self._all([function.__defaults__, function.__kwdefaults__, function.__doc__, vars(function)])
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._all(cell for name, cell in cells if name != "__class__")  # which super() refers to

    def _add_class(self, cls: type) -> None:
        self._say(f"{cls.__module__}.{cls.__qualname__}")
        if is_users(sys.modules.get(cls.__module__)):
            opaque = self.opaque  # what a class holds is no part of its objects
            self._add_named(attributes_of(cls))
            self.opaque = opaque

    def _add_attributes(self, value: Any) -> None:
        kind = type(value)
        self._add_named(_attributes_in(value))
        if self._contents and kind.__flags__ & HEAP_TYPE:  # a helper class of the user's may count, too
            self._all(base for base in kind.__mro__[:-1] if is_users(sys.modules.get(base.__module__)))

    def _add_named(self, values: Iterable[tuple[str, Any]]) -> None:
        for name, value in values:
            self._say(name)
            self.add(value)

    def _add_reduced(self, value: Any) -> None:
        """Go through what an object of a library in C would be pickled by."""
        reducer = copyreg.dispatch_table.get(type(value))
        reduced = value.__reduce_ex__(2) if reducer is None else reducer(value)
        self.opaque |= not isinstance(reduced, tuple)
        self._all(reduced[1:])


def _is_array_of_library(kind: type) -> bool:
    """Return whether objects of PyTorch, pandas or another library are of this type, and can be read as arrays."""
    owner = next((base for base in kind.__mro__ if "__array__" in vars(base)), None)
    return owner is not None and not is_users(sys.modules.get(owner.__module__))
