"""The state of an object: the values of its attributes as one flat mapping of names to arrays, numbers and texts.

Arrays, numbers, texts, None, lists, tuples, sets, dicts and NumPy's generators can be taken out and put back, and
objects that have `take_state` and `put_state`. A class of fredsim's names the attributes that change (`Stateful`). Of a
user's class without these methods all attributes are taken, but for functions, modules and the like. That may miss that
two attributes have come to share one object, or what a subclass of dict keeps beside its items: `says_its_state`
tells whether a state is sure to be whole.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from fredsim.errors import SimulationError

__all__ = ["State", "Stateful", "part_of", "put_state", "says_its_state", "take_state"]

State = dict[str, Any]

OURS = "fredsim."
#: Types that are packed item by item.
CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque,
}  # fmt: skip


class Stateful:
    """Base of classes that name which of their attributes change from event to event: these are the state."""

    #: The attributes that this class adds to those of its bases.
    state_names: ClassVar[tuple[str, ...]] = ()

    def take_state(self) -> State:
        """Return copies of what changes from event to event: arrays, numbers and texts by name."""
        return _taken(self, _named(type(self)))

    def put_state(self, state: State) -> None:
        """Take over a state; the object was just started, with the same arguments as the one that it is of."""
        _put(self, _named(type(self)), state)


def part_of(state: Mapping[str, Any], owner: str) -> State:
    """Return the entries named `owner.…`, without that prefix."""
    start = f"{owner}."
    return {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}


class _LeftAlone(Exception):  # noqa: N818  it is no error
    """A value, or one in it, does not change, or is part of another owner's state."""


def take_state(found: Any) -> State:
    """Return an object's state. Raises SimulationError where an attribute cannot be written down."""
    return dict(found.take_state()) if says_its_state(found) else _taken(found, _attributes(found))


def put_state(found: Any, state: State) -> None:
    """Put a state into an object that has just been started."""
    if says_its_state(found):
        found.put_state(dict(state))
    else:
        _put(found, dict.fromkeys(name.partition(".")[0] for name in state), state)


def says_its_state(found: Any) -> bool:
    """Return whether an object's class has a `take_state` for all of it: not just one inherited from fredsim's."""
    if not hasattr(found, "take_state"):
        return False
    definer = next((cls for cls in type(found).__mro__ if "take_state" in vars(cls)), None)
    return type(found).__module__.startswith(OURS) or (definer is not None and not definer.__module__.startswith(OURS))


def _named(kind: type) -> list[str]:
    return [name for cls in reversed(kind.__mro__) for name in vars(cls).get("state_names", ())]


def _attributes(found: Any) -> dict[str, Any]:
    try:
        return dict(vars(found))
    except TypeError:  # it has slots
        slots = [name for cls in type(found).__mro__ for name in getattr(cls, "__slots__", ())]
        return {name: getattr(found, name) for name in slots if hasattr(found, name)}


def _taken(found: Any, names: Iterable[str]) -> State:
    """Return the state of these attributes: arrays and numbers as they are, anything else as JSON."""
    state: State = {}
    for name in names:
        try:
            packed = _packed(getattr(found, name), name, state)
        except _LeftAlone:
            continue
        except TypeError as error:
            kind = type(found).__name__
            raise SimulationError(
                f"{kind}: self.{name} {error}, which cannot be written down; keep arrays, numbers, lists and mappings, "
                f"or give {kind} take_state(), which returns a mapping of names to arrays and numbers, and "
                "put_state(state), which takes it up"
            ) from None
        if packed not in ({"array": name}, {"state": name}):
            state[name] = packed if isinstance(packed, int | float) else json.dumps(packed)
    return state


def _put(found: Any, names: Iterable[str], state: State) -> None:
    """Put the values of these attributes back."""
    restorer = _Restorer(state)
    for name in names:
        value = state.get(name, {"state": name})
        packed = {"array": name} if isinstance(value, np.ndarray) else value
        before = getattr(found, name, None)
        after = restorer.restored(before, json.loads(packed) if isinstance(packed, str) else packed)
        if after is not before:
            setattr(found, name, after)


def _packed(value: Any, at: str, state: State) -> Any:
    """Return a value as JSON can have it, its arrays put into `state`. Raises TypeError for what cannot be packed."""
    if value is None or type(value) in {bool, int, float, str}:
        return value
    if _is_array(value):
        if value.dtype.kind not in "biuf":
            raise TypeError(f"holds an array of {value.dtype}")
        state[at] = np.array(value)
        return {"array": at}
    if isinstance(value, np.generic):
        state[f"{at}.scalar"] = np.array(value)
        return {"scalar": f"{at}.scalar"}
    if isinstance(value, np.random.Generator):
        return {"generator": _packed(value.bit_generator.state, at, state)}
    if isinstance(value, Stateful) and type(value).__module__.startswith(OURS):
        state |= {f"{at}.{name}": part for name, part in value.take_state().items()}
        return {"state": at}
    if type(value).__name__ in CONTAINERS and type(value) is CONTAINERS[type(value).__name__]:
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        return {type(value).__name__: [_packed(item, f"{at}.{i}", state) for i, item in enumerate(items)]}
    if isinstance(value, dict):
        pairs = [(f"{at}.{key}", key, item) for key, item in value.items()]
        return {"dict": [(_packed(key, f"{to}.key", state), _packed(item, to, state)) for to, key, item in pairs]}
    if callable(value) or isinstance(value, ModuleType) or type(value).__module__.startswith((OURS, "pydantic")):
        raise _LeftAlone
    if any(cls.__module__.startswith((OURS, "pydantic")) for cls in type(value).__mro__):
        raise _LeftAlone
    raise TypeError(f"is a {type(value).__name__}")


def _is_array(value: Any) -> bool:
    """Return whether a value is an array, of NumPy or on a device."""
    return hasattr(value, "__array_ufunc__") and hasattr(value, "dtype") and not isinstance(value, np.generic)


class _Restorer:
    """Restores values in place where it can, since others may refer to the objects that are there."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._written: set[tuple[int, int]] = set()  # address and size of arrays

    def restored(self, there: Any, packed: Any) -> Any:
        """Return the value that was packed: `there` itself with new content, or a new object."""
        if not isinstance(packed, dict):
            return packed
        ((kind, inside),) = packed.items()
        match kind:
            case "array":
                return self._array(there, self._state[inside])
            case "scalar":
                return self._state[inside][()]
            case "generator":
                internal = self.restored(None, inside)
                bits = getattr(np.random, internal["bit_generator"])()
                bits.state = internal
                return np.random.Generator(bits)
            case "state":
                if there is not None:
                    there.put_state(part_of(self._state, inside))
                return there
            case "dict":
                known = there if isinstance(there, dict) else {}
                pairs = [(self.restored(None, key), item) for key, item in inside]
                found = {key: self.restored(known.get(key), item) for key, item in pairs}
                known.clear()
                known.update(found)
                return known
        alike = isinstance(there, list | tuple | deque) and len(there) == len(inside)
        items = [self.restored(before, item) for before, item in zip(there if alike else inside, inside, strict=True)]
        if type(there) is not CONTAINERS[kind] or isinstance(there, tuple | frozenset):
            return CONTAINERS[kind](items)
        there.clear()
        (there.update if isinstance(there, set) else there.extend)(items)
        return there

    def _array(self, there: Any, values: np.ndarray[Any, Any]) -> Any:
        """Return the array `there` with these values, a new one where that has been given other values."""
        if not _is_array(there) or (there.shape, there.dtype) != (values.shape, values.dtype):
            return values.copy()
        if isinstance(there, np.ndarray):
            place = there.ctypes.data, there.nbytes
            if not there.flags.writeable or (place in self._written and there.tobytes() != values.tobytes()):
                return values.copy()
            self._written.add(place)
        there[...] = values
        return there
