"""The state of an object: its attributes' values, as one flat mapping of names to arrays, numbers and texts.

A class says which of its attributes change from event to event by naming them in `state_names`; this holds for
fredsim's classes (`Stateful`) and for users'. Or it has its own `take_state` and `put_state`. If a user's class has
neither, all its attributes are its state, provided that all can be restored exactly as they were: with the same types,
the same memory layout, and shared if they were shared. An attribute that cannot is refused (fredsim.plugins.packing
says which can).
"""

from __future__ import annotations

import dis
from collections.abc import Mapping, MutableMapping, MutableSequence, MutableSet
from enum import Enum
from functools import cache
from types import FunctionType, MemberDescriptorType
from typing import Any, ClassVar

import numpy as np

from fredsim.errors import SimulationError
from fredsim.plugins.packing import CannotPack, Packer, State, Unpacker

__all__ = ["State", "Stateful", "declares_state", "part_of", "put_state", "take_state"]

#: How the module names of fredsim's own classes and functions begin.
PACKAGE = "fredsim."
#: Types of class attributes by which a class, and so all of its instances, may keep something from event to event.
CHANGING = (MutableMapping, MutableSequence, MutableSet, np.ndarray, np.random.Generator)
#: CPython's flag of classes that are written in Python; other objects may have more state than their attributes.
HEAP_TYPE = 1 << 9


class Stateful:
    """Base of classes that name which of their attributes change from event to event; these are the state."""

    #: The attributes that this class adds to those that its bases name.
    state_names: ClassVar[tuple[str, ...]] = ()

    def take_state(self) -> State:
        """Return everything that changes from event to event, as copies: arrays, numbers and texts by name.

        Raises SimulationError for a value that could not be restored as it was.
        """
        return _take_attributes(self)

    def put_state(self, state: State) -> None:
        """Restore a state; this object was just started, with the same arguments as the one that the state is of."""
        _put_attributes(self, state)


def part_of(state: Mapping[str, Any], owner: str) -> State:
    """Return the entries named `owner.…`, without that prefix."""
    start = f"{owner}."
    return {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}


def take_state(found: Any) -> State:
    """Return an object's state: arrays, numbers and texts by name. Raises SimulationError if it cannot be taken."""
    return dict(found.take_state()) if hasattr(type(found), "take_state") else _take_attributes(found)


def put_state(found: Any, state: State) -> None:
    """Restore a state in an object that has just been started."""
    if hasattr(type(found), "put_state"):
        found.put_state(dict(state))
    else:
        _put_attributes(found, state)


def declares_state(found: Any) -> bool:
    """Return whether an object's class declares its state: fredsim's, or one with `state_names` or `take_state`."""
    classes = user_classes(type(found))
    return not classes or any(name in vars(cls) for cls in classes for name in ("state_names", "take_state"))


def user_classes(kind: type) -> list[type]:
    """Return a class and its bases that are not fredsim's, in the order in which attributes are looked up."""
    return [cls for cls in kind.__mro__[:-1] if not cls.__module__.startswith(PACKAGE)]


def _state_names(kind: type) -> list[str]:
    return [name for cls in reversed(kind.__mro__) for name in vars(cls).get("state_names", ())]


def _attributes(found: Any) -> list[str]:
    """Return the names of all attributes that an object has, including those in slots."""
    slots = [
        name
        for cls in type(found).__mro__
        for name, value in vars(cls).items()
        if isinstance(value, MemberDescriptorType) and hasattr(found, name)
    ]
    return [*getattr(found, "__dict__", ()), *slots]


@cache
def _set_by(cls: type) -> frozenset[str]:
    """Return the names of the attributes that the methods of a class set."""
    methods = [value for value in vars(cls).values() if isinstance(value, FunctionType)]
    code = [instruction for method in methods for instruction in dis.get_instructions(method)]
    return frozenset(instruction.argval for instruction in code if instruction.opname == "STORE_ATTR")


def _implied_state(found: Any) -> list[str]:
    """Return the names of the attributes that are the state of an object whose class does not declare its state.

    Those named in `state_names` are left out; so are those that fredsim's classes set, which name their own state, and
    values of fredsim's that never change.
    """
    kind, classes = type(found), user_classes(type(found))
    set_by_users = {name for cls in classes for name in _set_by(cls)}
    set_by_fredsim = {name for cls in kind.__mro__ if cls not in classes for name in _set_by(cls)} - set_by_users
    known = {*_state_names(kind), *set_by_fredsim}
    return sorted(
        name for name in _attributes(found) if name not in known and not _belongs_to_fredsim(getattr(found, name))
    )


def _belongs_to_fredsim(value: Any) -> bool:
    """Return whether a value is a function of fredsim, or something unchanging that fredsim gave to `init`."""
    if isinstance(value, FunctionType):
        return value.__module__.startswith(PACKAGE)
    return type(value).__module__.startswith(PACKAGE) and (
        isinstance(value, Enum) or hasattr(type(value), "UNCHANGING")
    )


def _has(found: Any, name: str) -> bool:
    """Return whether an attribute exists, whatever the class's `__getattr__` does for missing ones."""
    try:
        object.__getattribute__(found, name)
    except AttributeError:
        return False
    return True


def _check_class(found: Any) -> None:
    """Raise CannotPack if a class may keep something from event to event outside the object's attributes."""
    own = {"metrics", *_attributes(found)}
    for cls in user_classes(type(found)):
        if not cls.__flags__ & HEAP_TYPE:
            raise CannotPack("", f"is a {cls.__name__}, too, which keeps more than its attributes")
        for name, value in vars(cls).items():
            if isinstance(value, CHANGING) and name not in own and not name.startswith("__"):
                raise CannotPack(name, "is the class's, not the object's; make it a tuple, or make it in __init__")


def _take_attributes(found: Any) -> State:
    """Return the state in an object's attributes. Raises SimulationError for a value that could not be restored."""
    packer, kind = Packer(_state_of), type(found)
    named, unnamed = _state_names(kind), list[str]()
    try:
        if not declares_state(found):
            _check_class(found)
            unnamed = _implied_state(found)
        for cls in user_classes(kind):
            for name in vars(cls).get("state_names", ()):
                if not _has(found, name):
                    raise CannotPack(name, "is named in state_names, and is not there")
        existing = {name: getattr(found, name) for name in named if _has(found, name)}
        packed = {name: packer.pack(value, name, exact=False) for name, value in existing.items()}
        packed |= {name: packer.pack(getattr(found, name), name, exact=True) for name in unnamed}
        return packer.finish(packed)
    except CannotPack as error:
        self = f"self.{error.name} " if error.name else ""
        raise SimulationError(
            f"{kind.__name__}: {self}{error.what}; name what changes from push to push in state_names, a tuple, or "
            f"give {kind.__name__} take_state(), which returns a mapping of names to arrays and numbers, and "
            "put_state(state), which takes it up"
        ) from None


def _put_attributes(found: Any, state: State) -> None:
    """Restore an object's attributes from a state."""
    named = _state_names(type(found))
    existing = {name: getattr(found, name) for name in named if _has(found, name)}  # other objects may refer to these
    names = dict.fromkeys(named)
    if not declares_state(found):
        names |= dict.fromkeys([*_implied_state(found), *(name.partition(".")[0] for name in state)])

    def restore_part(part: Any, path: str) -> None:
        if part is None:
            raise SimulationError(f"{path} is in the state, but does not exist after the start; create it in init")
        put_state(part, part_of(state, path))

    unpacker = Unpacker(state, existing, restore_part)
    for name in names:
        if name in state:
            object.__setattr__(found, name, unpacker.unpack(name))
        elif name not in named:
            object.__delattr__(found, name)
    unpacker.finish()


def _state_of(value: Any) -> State | None:
    """Return the state of an object within another, None if it is not a `Stateful`."""
    return take_state(value) if isinstance(value, Stateful) else None
