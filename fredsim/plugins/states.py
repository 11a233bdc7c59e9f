"""The state of an object of a user's, which may say nothing of it: what stands in its attributes.

Arrays, numbers, texts, None, lists, tuples, sets, mappings and NumPy's generators can be taken out and put back. What
does not change, such as functions and fredsim's own objects, is left alone. A class that keeps anything else says
itself what its state is, by `take_state` and `put_state`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from fredsim.errors import SimulationError

__all__ = ["put_state", "take_state"]

OURS = "fredsim."
TEXT = "attributes"  # the name under which all but the arrays stand
KINDS: dict[str, Callable[[Any], Any]] = {
    "list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque,
}  # fmt: skip


class _LeftAlone(Exception):  # noqa: N818  it is no error
    """A value, or one in it, is none that changes, or is taken care of elsewhere."""


def take_state(found: Any) -> dict[str, Any]:
    """Return an object's state: arrays, numbers and texts by name. Raises SimulationError where it cannot be had."""
    state: dict[str, Any] = dict(found.take_state()) if hasattr(found, "take_state") else {}
    if _says_all(found):
        return state
    texts = {}
    for name, value in _attributes(found).items():
        try:
            texts[name] = _packed(value, f"own.{name}", state)
        except _LeftAlone:
            pass
        except TypeError as error:
            kind = type(found).__name__
            raise SimulationError(
                f"{kind}: self.{name} {error}, which cannot be written down; keep arrays, numbers, lists and mappings, "
                f"or give {kind} take_state(), which returns a mapping of names to arrays and numbers, and "
                "put_state(state), which takes it up"
            ) from None
    return state | {TEXT: json.dumps(texts)}


def put_state(found: Any, state: Mapping[str, Any]) -> None:
    """Let an object that has just been started go on from a state."""
    if hasattr(found, "put_state"):
        found.put_state(dict(state))
    if _says_all(found):
        return
    texts = json.loads(state[TEXT])
    for name in [name for name, value in _attributes(found).items() if name not in texts and _changes(value)]:
        delattr(found, name)
    for name, packed in texts.items():
        _put(found, name, _unpacked(packed, state))


def _says_all(found: Any) -> bool:
    """Return whether a class is one of ours, or says by a method of its own what its state is."""
    kind = type(found)
    definer = next((cls for cls in kind.__mro__ if "take_state" in vars(cls)), None)
    return kind.__module__.startswith(OURS) or (definer is not None and not definer.__module__.startswith(OURS))


def _attributes(found: Any) -> dict[str, Any]:
    try:
        found_attributes: dict[str, Any] = vars(found)
        return found_attributes
    except TypeError:  # it has slots
        slots = [name for cls in type(found).__mro__ for name in getattr(cls, "__slots__", ())]
        return {name: getattr(found, name) for name in slots if hasattr(found, name)}


def _changes(value: Any) -> bool:
    try:
        _packed(value, "", {})
    except (_LeftAlone, TypeError):
        return False
    return True


def _put(found: Any, name: str, value: Any) -> None:
    """Put a value back; where there is an array or a container already, into that: others may refer to it."""
    there = _attributes(found).get(name)
    if isinstance(there, np.ndarray) and isinstance(value, np.ndarray) and _alike(there, value):
        there[...] = value
    elif isinstance(there, list | deque) and isinstance(value, list | deque):
        there.clear()
        there.extend(value)
    elif isinstance(there, set | dict) and isinstance(value, set | dict):
        there.clear()
        there.update(value)
    else:
        setattr(found, name, value)


def _alike(there: np.ndarray[Any, Any], value: np.ndarray[Any, Any]) -> bool:
    return there.flags.writeable and there.shape == value.shape and there.dtype == value.dtype


def _packed(value: Any, at: str, arrays: dict[str, Any]) -> Any:
    """Return a value as JSON has it, its arrays put aside. Raises TypeError for what cannot be."""
    if value is None or type(value) in {bool, int, float, str}:
        return value
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf":
            raise TypeError(f"holds an array of {value.dtype}")
        arrays[at] = np.array(value)
        return {"array": at}
    if isinstance(value, np.generic):
        arrays[at] = np.array(value)
        return {"scalar": at}
    if isinstance(value, np.random.Generator):
        return {"generator": _packed(value.bit_generator.state, at, arrays)}
    if type(value).__name__ in KINDS and type(value) is KINDS[type(value).__name__]:
        return {type(value).__name__: [_packed(item, f"{at}.{i}", arrays) for i, item in enumerate(value)]}
    if isinstance(value, dict):
        pairs = [(_packed(key, at, {}), _packed(item, f"{at}.{key}", arrays)) for key, item in value.items()]
        return {"dict": pairs}
    if callable(value) or isinstance(value, ModuleType) or type(value).__module__.startswith((OURS, "pydantic")):
        raise _LeftAlone
    if any(cls.__module__.startswith((OURS, "pydantic")) for cls in type(value).__mro__):
        raise _LeftAlone
    raise TypeError(f"is a {type(value).__name__}")


def _unpacked(packed: Any, state: Mapping[str, Any]) -> Any:
    if not isinstance(packed, dict):
        return packed
    ((kind, inside),) = packed.items()
    match kind:
        case "array":
            return state[inside].copy()
        case "scalar":
            return state[inside][()]
        case "generator":
            said = _unpacked(inside, state)
            bits = getattr(np.random, said["bit_generator"])()
            bits.state = said
            return np.random.Generator(bits)
        case "dict":
            return {_unpacked(key, state): _unpacked(item, state) for key, item in inside}
    return KINDS[kind](_unpacked(item, state) for item in inside)
