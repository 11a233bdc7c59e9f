"""The state of an object: its attributes' values, as one flat mapping of names to arrays, numbers and texts.

A class says which of its attributes change from event to event by naming them in `state_names`; this holds for
fredsim's classes (`Stateful`) and for users'. Or it has its own `take_state` and `put_state`. Of a user's class without
the latter, every attribute is compared with what it was after the start, and so is what the class keeps elsewhere, in
itself and in its modules. What has changed is state, too, provided that it can be restored exactly as it was: with the
same types, the same memory layout, and shared if it was shared. What cannot is refused: fredsim.plugins.state.packing
says which can.
"""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Collection, Mapping, MutableMapping, MutableSequence, MutableSet, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter
from types import FunctionType, ModuleType
from typing import Any, ClassVar

import numpy as np

from fredsim.errors import SimulationError
from fredsim.plugins.discovery import is_built_in
from fredsim.plugins.state.fingerprints import (
    Known,
    changed_names,
    fingerprint,
    imported_since,
    in_python,
    is_opaque,
    is_users_object,
    kept_elsewhere,
    modules_of,
    slots_of,
    with_paths,
)
from fredsim.plugins.state.packing import CannotPack, Packer, State, Unpacker
from fredsim.plugins.state.sharing import Shared, overlapping, shared

__all__ = ["State", "Stateful", "declares_state", "note_start", "part_of", "put_state", "take_state"]

#: Types of class attributes by which a class, and so all of its instances, may keep something from event to event.
CHANGING = (MutableMapping, MutableSequence, MutableSet, np.ndarray)
#: The entry of a state that has what a user's `take_state` returned.
MAPPING = "state"
#: The entry of a state that names the attributes that have gone since the start.
GONE = "gone since the start"


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
    if _has_own("take_state", type(found)):
        return _pack_mapping(found)
    return dict(found.take_state()) if hasattr(type(found), "take_state") else _take_attributes(found)


def put_state(found: Any, state: State) -> None:
    """Restore a state in an object that has just been started."""
    if _has_own("take_state", type(found)):
        found.put_state(Unpacker(state, {}, lambda *_: None).unpack(MAPPING) if state else {})
    elif hasattr(type(found), "put_state"):
        found.put_state(dict(state))
    else:
        _put_attributes(found, state)


def _has_own(method: str, kind: type) -> bool:
    """Return whether a class, or a base of it, that is a user's defines a method."""
    return any(method in vars(cls) for cls in user_classes(kind))


def _pack_mapping(found: Any) -> State:
    """Return what the `take_state` of a user's class returns as a state. Raises SimulationError if it cannot be one.

    It is packed as attributes that `state_names` names are, so that `put_state` gets the same values and types.
    """
    kind = type(found)
    if not _has_own("put_state", kind):
        raise SimulationError(f"{kind.__name__}: has a take_state and no put_state(state), which restores it; add it")
    mapping: dict[Any, Any] = dict(found.take_state())
    if not mapping:
        return {}
    packer = Packer(lambda _: None)
    try:
        return packer.finish({MAPPING: packer.pack(mapping, MAPPING, exact=False)})
    except CannotPack as error:
        step = error.path.split(".")[1].partition(":")[0]
        key = list(mapping)[int(step)] if step.isdecimal() else step
        raise SimulationError(
            f"{kind.__name__}: take_state()[{key!r}] {error.what}; return numbers, texts, None, arrays of numbers, and "
            "lists, tuples, dicts and sets of these"
        ) from None


def declares_state(found: Any) -> bool:
    """Return whether an object's class declares its state: fredsim's, or one with `state_names` or `take_state`."""
    classes = user_classes(type(found))
    return not classes or any(name in vars(cls) for cls in classes for name in ("state_names", "take_state"))


def user_classes(kind: type) -> list[type]:
    """Return a class and its bases that are not fredsim's, in the order in which attributes are looked up."""
    return [cls for cls in kind.__mro__[:-1] if not is_built_in(cls)]


def _state_names(kind: type) -> list[str]:
    """Return the names that a class and its bases give in `state_names`. Raises SimulationError if one is no tuple."""
    found: list[str] = []
    for cls in reversed(kind.__mro__):
        names = vars(cls).get("state_names", ())
        if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
            raise SimulationError(
                f"{cls.__name__}: state_names is {names!r}; it must be a tuple of names of attributes"
            )
        found += names
    return found


def _attributes(found: Any) -> dict[str, Any]:
    """Return all attributes that an object has, by name, including those in slots."""
    slots = {name: getattr(found, name) for name in slots_of(type(found)) if hasattr(found, name)}
    return {**getattr(found, "__dict__", {}), **slots}


@dataclass(frozen=True)
class Start:
    """What an object of a user's class was when it had been started: fingerprints, by name.

    `attributes` are those that `state_names` does not name, and `shared` is what these have in common; `elsewhere` is
    what its class keeps outside its objects, in itself and in these `modules`; `loaded` names all modules that were
    there.
    """

    attributes: Mapping[str, str]
    shared: Shared
    elsewhere: Mapping[str, str]
    modules: Sequence[ModuleType]
    loaded: Collection[str]


_starts: dict[int, Start] = {}  # by the object's id
_kept_alive: list[Any] = []  # objects that cannot say when they end, so that their ids stay unique


def note_start(found: Any) -> None:
    """Note what an object of a user's class is after its start: its state is what changes from then on.

    Without this, every attribute counts as changed, if the class does not declare its state.
    """
    if _is_compared(type(found)):
        modules = modules_of(found)
        elsewhere = _kept_elsewhere(found, modules)
        attributes, known = _compared(found)
        prints = {name: fingerprint(value, known) for name, value in attributes.items()}
        _starts[id(found)] = Start(prints, shared(attributes, known), elsewhere, modules, frozenset(sys.modules))
        try:
            weakref.finalize(found, _starts.pop, id(found), None)
        except TypeError:  # its class has slots, and none for this
            _kept_alive.append(found)


def _is_compared(kind: type) -> bool:
    """Return whether an object of a class is compared with its start: not if a user's class has its own take_state."""
    return bool(user_classes(kind)) and not _has_own("take_state", kind)


def _compared(found: Any) -> tuple[dict[str, Any], Known]:
    """Return an object's attributes that `state_names` does not name, and what it does name."""
    named, attributes = _state_names(type(found)), _attributes(found)
    known = Known(found, {name: attributes[name] for name in named if name in attributes})
    others = {n: v for n, v in attributes.items() if n not in named and not _belongs_to_fredsim(v)}
    return others, known


def _kept_elsewhere(found: Any, modules: Sequence[ModuleType]) -> dict[str, str]:
    return kept_elsewhere(found, modules, Known(found, _attributes(found)))


def _implied_state(found: Any) -> tuple[list[str], list[str]]:
    """Return the names of the attributes that are state although no `state_names` names them, and of those gone.

    These are the attributes that have changed since the start, or that cannot be compared. Raises CannotPack if
    something has changed that is no attribute of the object.
    """
    start, declared = _starts.get(id(found)), declares_state(found)
    attributes, known = _compared(found)
    if start is None:
        return [] if declared else sorted(attributes), []
    if changed := changed_names(start.elsewhere, _kept_elsewhere(found, start.modules)):
        raise CannotPack("", f"changes {changed[0]}, which is not in the object, and would be lost; keep it in self")
    if late := imported_since(start.loaded):
        what = f"imports {late[0]} during the run, so that what it was before is not known, and would be lost"
        raise CannotPack("", f"{what}; import it at the top of the module")
    now = {name: fingerprint(value, known) for name, value in attributes.items()}
    kept = {
        name
        for name, value in now.items()
        if value != start.attributes.get(name) or (is_opaque(value) and not declared)
    }
    common = shared(attributes, known)
    for which in sorted(common.keys() ^ start.shared.keys()):
        pair = common[which] if which in common else start.shared[which]
        if kept.isdisjoint(pair) and attributes.keys() >= {*pair}:
            # Either one may refer to the other again, unless it cannot be put back.
            kept.add(min(pair, key=lambda name: is_users_object(attributes[name])))
    kept |= overlapping(attributes, kept, known)
    return sorted(kept), sorted(start.attributes.keys() - _attributes(found).keys())


def _belongs_to_fredsim(value: Any) -> bool:
    """Return whether a value is a function of fredsim, or something unchanging that fredsim gave to `init`."""
    if isinstance(value, FunctionType):
        return value.__module__.partition(".")[0] == "fredsim"
    return is_built_in(type(value)) and (isinstance(value, Enum) or hasattr(type(value), "UNCHANGING"))


def _has(found: Any, name: str) -> bool:
    """Return whether an attribute exists, whatever the class's `__getattr__` does for missing ones."""
    try:
        object.__getattribute__(found, name)
    except AttributeError:
        return False
    return True


def _check_class(found: Any) -> None:
    """Raise CannotPack if a class may keep something from event to event outside the object's attributes.

    What is the class's is only compared if the object's start is known.
    """
    own = {"metrics", *_attributes(found)}
    for cls in user_classes(type(found)):
        if not in_python(cls):
            raise CannotPack("", f"is a {cls.__name__}, too, which keeps more than its attributes")
        for name, value in vars(cls).items():
            held = isinstance(value, (*CHANGING, np.random.Generator)) and name not in own and not name.startswith("__")
            if held and id(found) not in _starts:
                raise CannotPack(name, "is the class's, not the object's; make it a tuple, or make it in __init__")


def _take_attributes(found: Any) -> State:
    """Return the state in an object's attributes. Raises SimulationError for a value that could not be restored."""
    packer, kind = Packer(_state_of), type(found)
    named, unnamed, gone = _state_names(kind), list[str](), list[str]()
    try:
        if not declares_state(found):
            _check_class(found)
        if _is_compared(kind):
            unnamed, gone = _implied_state(found)
        for cls in user_classes(kind):
            for name in vars(cls).get("state_names", ()):
                if not _has(found, name):
                    raise CannotPack(name, "is named in state_names, and is not there")
        if odd := [name for name in (*named, *unnamed, *gone) if "." in name or name == GONE]:
            raise CannotPack("", f"has an attribute named {odd[0]!r}, which cannot be put back; keep it in a dict")
        existing = {name: getattr(found, name) for name in named if _has(found, name)}
        packed = {name: packer.pack(value, name, exact=False) for name, value in existing.items()}
        if id(found) in _starts:
            for path, value in _unchanged(found, {*unnamed}):
                packer.refer(value, path)
        packed |= {name: packer.pack(getattr(found, name), name, exact=True) for name in unnamed}
        return packer.finish(packed) | ({GONE: json.dumps(gone)} if gone else {})
    except CannotPack as error:
        self = f"self.{error.name} " if error.name else ""
        raise SimulationError(
            f"{kind.__name__}: {self}{error.what}; name what changes from push to push in state_names, a tuple, or "
            f"give {kind.__name__} take_state(), which returns a mapping of names to arrays and numbers, and "
            "put_state(state), which restores it"
        ) from None


def _unchanged(found: Any, changed: Collection[str]) -> list[tuple[str, Any]]:
    """Return what is in the attributes that are neither named nor `changed`, each with its path."""
    attributes, _ = _compared(found)
    return [
        entry
        for name, value in sorted(attributes.items(), key=itemgetter(0))
        if name not in changed
        for entry in with_paths(value, name, set())
    ]


def _put_attributes(found: Any, state: State) -> None:
    """Restore an object's attributes from a state."""
    named = _state_names(type(found))
    existing = {name: getattr(found, name) for name in named if _has(found, name)}  # other objects may refer to these
    names = dict.fromkeys(named)
    there: dict[str, Any] = {}
    if _is_compared(type(found)):
        for name in json.loads(state.get(GONE, "[]")):
            object.__delattr__(found, name)
        names |= dict.fromkeys(name.partition(".")[0] for name in state if name != GONE)
        there = dict(_unchanged(found, names))

    def restore_part(part: Any, path: str) -> None:
        if part is None:
            raise SimulationError(f"{path} is in the state, but does not exist after the start; create it in init")
        put_state(part, part_of(state, path))

    unpacker = Unpacker(state, existing, restore_part, there)
    for name in names:
        if name in state:
            object.__setattr__(found, name, unpacker.unpack(name))
    unpacker.finish()


def _state_of(value: Any) -> State | None:
    """Return the state of an object within another, None if it is not a `Stateful`."""
    return take_state(value) if isinstance(value, Stateful) else None
