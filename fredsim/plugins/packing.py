"""Packs values as JSON, with their arrays kept aside, and makes them again from it exactly as they were.

This is possible for numbers, texts, None, arrays of numbers, NumPy's scalars and generators, and containers of such
values, including `deque`, `Counter`, `OrderedDict` and `defaultdict`. Exactly means: each value has its type and length
limit, and an array its order in memory; an object that was in two places is one object again, and a view of an array is
a view of that array again.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.plugins.arrays import Held, numeric
from fredsim.plugins.references import as_state

__all__ = ["Packing", "Putting", "Refused", "State"]

State = dict[str, Any]
Packed = Any  # a value that JSON can express
PLAIN = {bool, int, float, str, type(None)}
SEQUENCES = {kind.__name__: kind for kind in (list, tuple, deque, set, frozenset)}
MAPPINGS = {kind.__name__: kind for kind in (dict, Counter, OrderedDict, defaultdict)}
FACTORIES = {kind.__name__: kind for kind in (int, float, list, dict, set)}
GENERATORS = {name: getattr(np.random, name) for name in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")}


class Refused(Exception):  # noqa: N818  it becomes an error about the object
    """A value in an attribute cannot be packed so that it can be made again as it was."""

    def __init__(self, at: str, what: str) -> None:
        super().__init__(at, what)
        self.name, self.what = at.partition(".")[0], what


class Packing:
    """Packs values that may share arrays and containers."""

    def __init__(self, state_of: Callable[[Any], State | None]) -> None:
        """Start empty; `state_of` returns the state of an object that has one."""
        self.state: State = {}
        self._state_of = state_of
        self._places: dict[int, str] = {}  # by id, where each object was found first
        self._alive: list[Any] = []  # keeps the objects alive, so that ids are unique
        self._arrays: list[Held] = []

    def pack(self, value: Any, at: str, *, exact: bool) -> Packed:
        """Return a value in a form for JSON; `at` is its name. Raises Refused if that is not possible.

        If it need not be `exact`, also sets are accepted, which may iterate in another order later; views of arrays
        that are not packed; arrays on a device; and objects that have a state.
        """
        kind, name = type(value), type(value).__name__
        if kind in PLAIN:
            return value
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            self.state[f"{at}.scalar"] = np.array(value)
            return {"scalar": f"{at}.scalar"}
        if id(value) in self._places:
            return {"same": self._places[id(value)]}
        if kind not in {tuple, frozenset}:
            self._places[id(value)] = at
            self._alive.append(value)
        if kind is np.ndarray:
            return self._array(value, at, exact)
        if not exact and kind.__module__.startswith("fredsim.") and hasattr(value, "__array_ufunc__"):
            self.state[at] = as_state(value)
            return {"array": at}
        if kind is np.random.Generator:
            return {"generator": self.pack(value.bit_generator, f"{at}.bits", exact=exact)}
        if GENERATORS.get(name) is kind:
            return {name: [self.pack(x, f"{at}.{i}", exact=exact) for i, x in enumerate([value.state, value.seed_seq])]}
        if kind is np.random.SeedSequence:
            return {"seeds": self.pack(value.state, f"{at}.seeds", exact=exact)}
        if not exact and (state := self._state_of(value)) is not None:
            self.state |= {f"{at}.{part}": content for part, content in state.items()}
            return {"state": at}
        if MAPPINGS.get(name) is kind:
            return self._mapping(value, at, exact)
        if SEQUENCES.get(name) is kind and not (exact and kind in {set, frozenset}):
            items = sorted(value, key=repr) if kind in {set, frozenset} else value
            packed = {name: [self.pack(item, f"{at}.{i}", exact=exact) for i, item in enumerate(items)]}
            return packed | ({"maxlen": value.maxlen} if kind is deque else {})
        why = "does not keep an order, as a dict does" if kind in {set, frozenset} else "cannot be put back as it was"
        raise Refused(at, f"{_is_or_holds(at)} a {name}, which {why}")

    def _mapping(self, value: Mapping[Any, Any], at: str, exact: bool) -> Packed:
        items = []
        for i, (key, item) in enumerate(value.items()):
            to = f"{at}.{key if isinstance(key, str) and key.isidentifier() else i}"
            items.append([self.pack(key, f"{at}.{i}:key", exact=exact), self.pack(item, to, exact=exact)])
        packed: dict[str, Any] = {type(value).__name__: items}
        if isinstance(value, defaultdict) and value.default_factory is not None:
            factory = getattr(value.default_factory, "__name__", "")
            if FACTORIES.get(factory) is not value.default_factory:
                raise Refused(at, f"{_is_or_holds(at)} a defaultdict of {value.default_factory!r}; use setdefault")
            packed["factory"] = factory
        return packed

    def _array(self, value: NDArray[Any], at: str, exact: bool) -> Packed:
        if value.dtype.kind not in "biuf":
            raise Refused(at, f"{_is_or_holds(at)} an array of {value.dtype}")
        base: Any = value
        while type(base) is np.ndarray:
            base = base.base
        if exact and base is not None:
            raise Refused(at, f"{_is_or_holds(at)} an array on the memory of a {type(base).__name__}; keep a copy")
        self._arrays.append(Held(value, at, {"array": at}, exact))
        return self._arrays[-1].note

    def finish(self, packed: Mapping[str, Packed]) -> State:
        """Return the state: the packed values by name, and the arrays. Raises Refused for arrays that overlap."""
        self._put_arrays_aside()
        for name, value in packed.items():
            if value != {"array": name}:  # such an array is in the state itself
                self.state[name] = value if isinstance(value, int | float) else json.dumps(value)
        return dict(sorted(self.state.items()))  # the order so far depends on where arrays are in memory

    def _put_arrays_aside(self) -> None:
        """Put arrays into the state; for a view of another array, note which part of that array it is."""
        whole: Held | None = None
        for held in sorted(self._arrays, key=lambda held: (held.begin, -held.end, not held.dense)):
            if held.array.size and whole is not None and held.begin < whole.end:
                self._note_view(held, whole)
                continue
            if held.exact and not held.dense:
                raise Refused(held.at, f"{_is_or_holds(held.at)} a view of an array that is not there; keep a copy")
            if held.array.size:
                whole = held
            flags = held.array.flags
            more = {"columns": held.dense and not flags.c_contiguous, "fixed": not flags.writeable}
            held.note |= {"array": f"{held.at}.array", **more} if any(more.values()) else {}
            self.state[held.note["array"]] = as_state(held.array.T if more["columns"] else held.array)

    def _note_view(self, held: Held, whole: Held) -> None:
        if held.end > whole.end or not whole.dense:
            other = whole.at.partition(".")[0]
            raise Refused(held.at, f"overlaps with self.{other}, and neither is a part of the other; keep a copy")
        array = held.array
        offset = array.ctypes.data - whole.begin
        held.note.clear()
        held.note["view"] = [whole.note, offset, array.shape, array.strides, array.dtype.str]
        held.note["fixed"] = not array.flags.writeable


class Putting:
    """Makes the values of a state again, reusing existing objects if possible, because others may refer to them."""

    def __init__(self, state: State, there: Mapping[str, Any], put_into: Callable[[Any, str], None]) -> None:
        """Take a state, and the existing attributes by name; `put_into` restores a part of the state in an object."""
        self._state = state
        self._there = there
        self._put_into = put_into
        self._attributes: dict[str, Any] = {}
        self._made: dict[str, Any] = {}  # the values made, by where they were found first
        self._used: dict[int, Any] = {}  # existing objects that have been reused
        self._fixed: list[NDArray[Any]] = []

    def attribute(self, name: str) -> Any:
        """Return the value of an attribute, made again from the state."""
        if name not in self._attributes:
            value = {"array": name} if isinstance(self._state[name], np.ndarray) else self._state[name]
            packed = json.loads(value) if isinstance(value, str) else value
            self._attributes[name] = self._value(self._there.get(name), packed, name)
        return self._attributes[name]

    def _value(self, there: Any, packed: Packed, at: str) -> Any:
        """Return the value that was packed: the existing object `there` with that content, or a new one."""
        if not isinstance(packed, dict):
            return packed
        kind, inside = next(iter(packed.items()))
        match kind:
            case "same":
                if inside not in self._made:
                    self.attribute(inside.partition(".")[0])
                return self._made[inside]
            case "scalar":
                return self._state[inside][()]
            case "state":
                self._put_into(there, inside)
                made = there
            case "array":
                made = self._array(there, inside, packed.get("columns", False))
            case "view":
                whole, offset, shape, strides, dtype = inside
                memory = self._value(None, whole, whole["array"])
                made = np.ndarray(shape, numeric(dtype), memory.T if whole.get("columns") else memory, offset, strides)
            case "generator":
                made = np.random.Generator(self._value(None, inside, f"{at}.bits"))
            case "seeds":
                made = np.random.SeedSequence(**self._value(None, inside, f"{at}.seeds"))
            case _ if kind in GENERATORS:
                state, seeds = (self._value(None, x, f"{at}.{i}") for i, x in enumerate(inside))
                made = GENERATORS[kind](seeds)
                made.state = state
            case _ if kind in MAPPINGS:
                return self._mapping(there, packed, kind, at)
            case _:
                return self._sequence(there, packed, kind, at)
        self._made[at] = made
        if packed.get("fixed"):
            self._fixed.append(made)
        return made

    def finish(self) -> None:
        """Make those arrays read-only that were."""
        for array in self._fixed:
            array.flags.writeable = False

    def _free(self, owner: Any) -> bool:
        """Return whether an existing object has not been reused yet, and mark it as reused."""
        free = id(owner) not in self._used
        self._used[id(owner)] = owner
        return free

    def _array(self, there: Any, at: str, columns: bool) -> Any:
        if at in self._made:  # already made, for a view of it
            return self._made[at]
        made = self._made[at] = self._filled(there, self._state[at], columns)
        return made

    def _filled(self, there: Any, values: NDArray[Any], columns: bool) -> Any:
        target = there.T if columns and isinstance(there, np.ndarray) else there
        if hasattr(target, "__array_ufunc__") and (target.shape, target.dtype) == (values.shape, values.dtype):
            owner = there
            while isinstance(owner, np.ndarray) and owner.base is not None:
                owner = owner.base
            plain = type(there) is np.ndarray
            if (not plain or (target.flags.c_contiguous and target.flags.writeable)) and self._free(owner):
                target[...] = values
                return there
        made = values.copy()
        return made.T if columns else made

    def _mapping(self, there: Any, packed: Packed, kind: str, at: str) -> Any:
        known = there if isinstance(there, MAPPINGS[kind]) else {}
        made: Any = there if type(there) is MAPPINGS[kind] and self._free(there) else MAPPINGS[kind]()
        self._made[at] = made
        items = []
        for i, (packed_key, item) in enumerate(packed[kind]):
            key = self._value(None, packed_key, f"{at}.{i}:key")
            to = f"{at}.{key if isinstance(key, str) and key.isidentifier() else i}"
            items.append((key, self._value(known.get(key), item, to)))
        made.clear()
        for key, item in items:
            made[key] = item
        if kind == "defaultdict":
            made.default_factory = FACTORIES[packed["factory"]] if "factory" in packed else None
        return made

    def _sequence(self, there: Any, packed: Packed, kind: str, at: str) -> Any:
        inside, limit = packed[kind], packed.get("maxlen")
        known = list(there) if isinstance(there, list | tuple | deque) else []
        known = known if len(known) == len(inside) else [None] * len(inside)
        makes: Any = SEQUENCES[kind]
        if kind in {"tuple", "frozenset"}:
            return makes(self._items(known, inside, at))
        same = type(there) is makes and getattr(there, "maxlen", None) == limit and self._free(there)
        made: Any = there if same else deque(maxlen=limit) if kind == "deque" else makes()
        self._made[at] = made
        items = self._items(known, inside, at)
        made.clear()
        (made.update if kind == "set" else made.extend)(items)
        return made

    def _items(self, known: list[Any], inside: list[Packed], at: str) -> list[Any]:
        pairs = enumerate(zip(known, inside, strict=True))
        return [self._value(before, packed, f"{at}.{i}") for i, (before, packed) in pairs]


def _is_or_holds(at: str) -> str:
    return "holds" if "." in at else "is"
