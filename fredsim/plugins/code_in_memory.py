"""A digest of code that is in no file, such as a notebook's: of the functions and classes that an experiment uses.

It is the same in another process, and after the same cells were run again. It is of what functions do, of the functions
and classes of the notebook that they use in turn, and of the numbers, texts, arrays, and lists, dicts and sets of such
that these name, but for what they assign or, where that is plain, change: to run them would change the digest.
"""

from __future__ import annotations

import dis
import functools
import hashlib
from collections.abc import Iterable
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from fredsim.plugins.state.fingerprints import PLAIN, attributes_of

__all__ = ["digest_of_code"]

CONTAINERS = {tuple, list, dict, set, frozenset}
LOADS = {"LOAD_GLOBAL", "LOAD_NAME"}
#: Methods that change a container or an array.
CHANGES = {
    "add", "append", "appendleft", "clear", "discard", "extend", "fill", "insert", "pop", "popitem", "popleft",
    "remove", "reverse", "setdefault", "sort", "update",
}  # fmt: skip
PUTS = {"STORE_SUBSCR", "DELETE_SUBSCR"}
STORES = {"STORE_GLOBAL", "STORE_NAME", "STORE_ATTR"}


def digest_of_code(module: ModuleType, names: Iterable[str]) -> str:
    """Return the SHA-256 of what a module without a file holds under these names."""
    walk = _Walk(module)
    for name in sorted({*names}):
        walk.add_variable(name)
    return walk.end()


class _Walk:
    """Goes through functions and classes, and what they use."""

    def __init__(self, module: ModuleType) -> None:
        self._digest, self._module = hashlib.sha256(), module
        self._met: dict[int, Any] = {}  # by id: functions and classes
        self._values: dict[str, str] = {}  # numbers, texts and so on that are used, by name: what they are
        self._stored: set[str] = set()  # the names that are assigned somewhere

    def end(self) -> str:
        for name, value in sorted(self._values.items()):
            if name.rpartition(".")[2] not in self._stored:
                self._say(f"{name} {value}")
        return self._digest.hexdigest()

    def add_variable(self, name: str) -> None:
        """Add what a name means in the module, if anything."""
        if name in vars(self._module):
            self._say(name)
            self._add(name, vars(self._module)[name])

    def _say(self, text: str) -> None:
        self._digest.update(f"{len(text)} {text}".encode(errors="surrogatepass"))

    def _add(self, name: str, value: Any) -> None:
        if _is_constant(value):
            self._values[name] = _text(value)
        elif isinstance(value, staticmethod | classmethod):
            self._add(name, value.__func__)
        elif isinstance(value, property):
            for part in filter(None, (value.fget, value.fset, value.fdel)):
                self._add(name, part)
        elif isinstance(value, functools.partial):
            given = {"": value.func} | {str(n): one for n, one in enumerate(value.args)} | value.keywords
            for place, part in given.items():
                self._say(place)
                self._add(f"{place}.{name}", part)
        elif id(value) not in self._met:
            self._met[id(value)] = value  # which keeps it alive, so that its id stays its own
            if isinstance(value, FunctionType) and value.__globals__ is vars(self._module):
                self._add_function(name, value)
            elif isinstance(value, type) and value.__module__ == self._module.__name__:
                self._add_class(value)
            else:
                of = value if isinstance(value, type | FunctionType) else type(value)
                self._say(f"{of.__module__}.{of.__qualname__}")

    def _add_function(self, name: str, function: FunctionType) -> None:
        self._add_code(function.__code__)
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for number, value in enumerate(defaults):
            self._add(f"{name} default {number}", value)
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if variable != "__class__":  # which super() refers to
                self._add(f"{name} cell {variable}", cell.cell_contents)

    def _add_class(self, cls: type) -> None:
        for base in cls.__bases__:
            self._add(cls.__qualname__, base)
        for name, value in sorted(attributes_of(cls)):
            self._say(name)
            self._add(f"{cls.__qualname__}.{name}", value)

    def _add_code(self, code: CodeType) -> None:
        self._say(f"{code.co_name} {code.co_varnames} {code.co_names} {code.co_code.hex()}")
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._add_code(constant)
            else:
                self._say(_text(constant))
        steps = [*dis.get_instructions(code)]
        for step in steps:
            if step.opname in STORES:
                self._stored.add(str(step.argval))
            elif step.opname in LOADS:
                self.add_variable(str(step.argval))
        for step, after, then in zip(steps, steps[1:], steps[2:], strict=False):
            if step.opname in LOADS and (after.argval in CHANGES or then.opname in PUTS):
                self._stored.add(str(step.argval))


def _is_constant(value: Any, around: tuple[int, ...] = ()) -> bool:
    """Return whether a value is a number, a text, an array, or a container of such. `around`: ids of those it is in."""
    if isinstance(value, np.ndarray | np.generic):
        return type(value).__module__ == "numpy" and not value.dtype.hasobject
    if type(value) not in CONTAINERS:
        return type(value) in PLAIN
    within = (*value, *value.values()) if type(value) is dict else value
    return id(value) not in around and all(_is_constant(part, (*around, id(value))) for part in within)


def _text(value: Any) -> str:
    """Return a constant as text: of a set in an order that does not depend on the process."""
    if isinstance(value, np.ndarray | np.generic):
        content = hashlib.sha256(np.ascontiguousarray(value).view(np.uint8).data).hexdigest()
        return f"{value.dtype.str} {value.shape} {content}"
    if type(value) not in CONTAINERS:
        return repr(value)
    parts = [f"{_text(key)}: {_text(one)}" for key, one in value.items()] if type(value) is dict else map(_text, value)
    return f"{type(value).__name__} {sorted(parts) if isinstance(value, set | frozenset) else [*parts]}"
