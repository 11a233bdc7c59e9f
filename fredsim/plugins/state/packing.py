"""Packs values as JSON, with their arrays beside it, and restores them exactly as they were.

This is possible for numbers, texts, None, arrays of numbers, NumPy's scalars and generators, and containers of such
values, including `deque`, `Counter`, `OrderedDict` and `defaultdict`. Exactly means: each value has its type and length
limit, and an array its order in memory; an object that was in two places is one object again, and a view of an array is
a view of that array again.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.plugins.state.state_arrays import PackedArray, as_state, numeric, span

__all__ = ["CannotPack", "Packer", "State", "Unpacker"]

State = dict[str, Any]
Packed = Any  # a value that JSON can express
PLAIN = {bool, int, float, str, type(None)}
SEQUENCES = {kind.__name__: kind for kind in (list, tuple, deque, set, frozenset)}
MAPPINGS = {kind.__name__: kind for kind in (dict, Counter, OrderedDict, defaultdict)}
FACTORIES = {kind.__name__: kind for kind in (int, float, list, dict, set)}
MOST_BITS = 2000  # of an int: Python may refuse to write more as decimal digits
GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")  # of np.random, which few commands need


class CannotPack(Exception):  # noqa: N818  it becomes an error about the object
    """A value in an attribute cannot be packed so that it could be restored as it was."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(path, what)
        self.path, self.name, self.what = path, path.partition(".")[0], what


class Packer:
    """Packs values that may share arrays and containers."""

    def __init__(self, state_of: Callable[[Any], State | None]) -> None:
        """Start empty; `state_of` returns the state of an object that has one."""
        self.state: State = {}
        self._state_of = state_of
        self._paths: dict[int, str] = {}  # by object id: the path at which the object was found first
        self._alive: list[Any] = []  # references to these objects, so that their ids stay unique
        self._arrays: list[PackedArray] = []
        self._whole: list[tuple[int, int, str]] = []  # the memory and the paths of arrays that `refer` has got

    def refer(self, value: Any, path: str) -> None:
        """Let what is packed from now on refer to a value that is there after the start, at a path, as it is now."""
        if type(value) in {tuple, frozenset} or id(value) in self._paths:
            return
        self._paths[id(value)] = path
        self._alive.append(value)
        if type(value) is np.ndarray and value.size and value.flags.forc:
            self._whole.append((*span(value), path))

    def pack(self, value: Any, path: str, *, exact: bool) -> Packed:
        """Return a value in a form for JSON; `path` is its dotted name. Raises CannotPack if that is not possible.

        If the value need not be restored exactly (`exact` is false), further values are accepted: sets, whose order of
        iteration may change; views of arrays that are not packed; arrays on a device; and objects that have a state.
        """
        kind, name = type(value), type(value).__name__
        if kind is int and value.bit_length() > MOST_BITS:
            raise CannotPack(
                path, f"{_is_or_holds(path)} an int of {value.bit_length()} bits, which cannot be put back"
            )
        if kind in PLAIN:
            return value
        if isinstance(value, np.generic) and value.dtype.kind in "biufc":
            self.state[f"{path}.scalar"] = np.array(value)
            return {"scalar": f"{path}.scalar"}
        if id(value) in self._paths:
            return {"same": self._paths[id(value)]}
        if kind not in {tuple, frozenset}:
            self._paths[id(value)] = path
            self._alive.append(value)
        if kind is np.ndarray:
            return self._array(value, path, exact)
        if not exact and kind.__module__.startswith("fredsim.") and hasattr(value, "__array_ufunc__"):
            self.state[path] = as_state(value)
            return {"array": path}
        if kind is np.random.Generator:
            return {"generator": self.pack(value.bit_generator, f"{path}.bits", exact=exact)}
        if name in GENERATORS and kind is getattr(np.random, name):
            return {
                name: [self.pack(x, f"{path}.{i}", exact=exact) for i, x in enumerate([value.state, value.seed_seq])]
            }
        if kind is np.random.SeedSequence:
            return {"seeds": self.pack(value.state, f"{path}.seeds", exact=exact)}
        if not exact and (state := self._state_of(value)) is not None:
            self.state |= {f"{path}.{part}": content for part, content in state.items()}
            return {"state": path}
        if MAPPINGS.get(name) is kind:
            return self._mapping(value, path, exact)
        if SEQUENCES.get(name) is kind and not (exact and kind in {set, frozenset}):
            items = sorted(value, key=repr) if kind in {set, frozenset} else value
            packed = {name: [self.pack(item, f"{path}.{i}", exact=exact) for i, item in enumerate(items)]}
            return packed | ({"maxlen": value.maxlen} if kind is deque else {})
        why = "does not keep an order, as a dict does" if kind in {set, frozenset} else "cannot be put back as it was"
        raise CannotPack(path, f"{_is_or_holds(path)} a {name}, which {why}")

    def _mapping(self, value: Mapping[Any, Any], path: str, exact: bool) -> Packed:
        items = []
        for i, (key, item) in enumerate(value.items()):
            to = f"{path}.{_step(key, i)}"
            items.append([self.pack(key, f"{path}.{i}:key", exact=exact), self.pack(item, to, exact=exact)])
        packed: dict[str, Any] = {type(value).__name__: items}
        if isinstance(value, defaultdict) and value.default_factory is not None:
            factory = getattr(value.default_factory, "__name__", "")
            if FACTORIES.get(factory) is not value.default_factory:
                raise CannotPack(
                    path, f"{_is_or_holds(path)} a defaultdict of {value.default_factory!r}; use setdefault"
                )
            packed["factory"] = factory
        return packed

    def _array(self, value: NDArray[Any], path: str, exact: bool) -> Packed:
        if value.dtype.kind not in "biufc":
            raise CannotPack(path, f"{_is_or_holds(path)} an array of {value.dtype}")
        base: Any = value
        while type(base) is np.ndarray:
            base = base.base
        if exact and base is not None:
            raise CannotPack(
                path, f"{_is_or_holds(path)} an array on the memory of a {type(base).__name__}; keep a copy"
            )
        self._arrays.append(PackedArray(value, path, {"array": path}, exact))
        return self._arrays[-1].packed

    def finish(self, packed: Mapping[str, Packed]) -> State:
        """Return the state: the packed values by name, and the arrays. Raises CannotPack for arrays that overlap."""
        self._add_arrays()
        for name, value in packed.items():
            if value != {"array": name}:  # such an array is in the state itself
                self.state[name] = value if isinstance(value, int | float) else json.dumps(value)
        return dict(sorted(self.state.items()))  # the order so far depends on where arrays are in memory

    def _add_arrays(self) -> None:
        """Add the arrays to the state; of a view of another array, only note which part of that array it is."""
        whole: PackedArray | None = None
        for entry in sorted(self._arrays, key=_whole_first):
            beside = whole if entry.array.size and whole is not None and entry.begin < whole.end else None
            if entry.exact and (beside is None or entry.end > beside.end):
                within = ((begin, path) for begin, end, path in self._whole if begin <= entry.begin < entry.end <= end)
                if there := next(within, None):
                    self._pack_view(entry, {"there": there[1]}, there[0])
                    continue
            if beside is not None:
                self._check_view(entry, beside)
                self._pack_view(entry, beside.packed, beside.begin)
                continue
            if entry.exact and not entry.dense:
                raise CannotPack(
                    entry.path, f"{_is_or_holds(entry.path)} a view of an array that is not there; keep a copy"
                )
            if entry.array.size:
                whole = entry
            flags = entry.array.flags
            more = {"columns": entry.dense and not flags.c_contiguous, "fixed": not flags.writeable}
            entry.packed |= {"array": f"{entry.path}.array", **more} if any(more.values()) else {}
            self.state[entry.packed["array"]] = as_state(entry.array.T if more["columns"] else entry.array)

    def _check_view(self, entry: PackedArray, whole: PackedArray) -> None:
        """Raise CannotPack if an array that overlaps with another one could not be restored as a view of it."""
        if entry.end > whole.end or not whole.dense:
            what = f"overlaps with {whole.path}, and neither is a part of the other; keep a copy"
            raise CannotPack(entry.path, what)
        if whole.exact and not entry.exact:  # what refers to the named part would keep other memory than the whole
            named = entry.path.partition(".")[0]
            raise CannotPack(whole.path, f"has the memory of self.{named} and more, and changes; name it, too")

    def _pack_view(self, entry: PackedArray, whole: Packed, begin: int) -> None:
        """Note which part an array is of another one, whose memory begins at an address."""
        array = entry.array
        entry.packed.clear()
        entry.packed["view"] = [whole, array.ctypes.data - begin, array.shape, array.strides, array.dtype.str]
        entry.packed["fixed"] = not array.flags.writeable


def _whole_first(entry: PackedArray) -> tuple[int, int, bool, bool, bool]:
    """Sort arrays by where they begin; of those at one place, the largest, and the named ones that own it, are first.

    The named ones get their content back in place, and others may refer to the one that owns it.
    """
    return entry.begin, -entry.end, not entry.dense, entry.exact, not entry.exact and entry.array.base is not None


class Unpacker:
    """Restores the values of a state. It reuses existing objects if possible, because others may refer to them."""

    def __init__(
        self,
        state: State,
        existing: Mapping[str, Any],
        restore_part: Callable[[Any, str], None],
        there: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Take a state and the existing attributes, by name; `restore_part` restores part of the state in an object.

        `there` has what the state refers to and does not hold, by path: see `Packer.refer`.
        """
        self._state = state
        self._existing = existing
        self._there = there
        self._restore_part = restore_part
        self._unpacked_attributes: dict[str, Any] = {}
        self._unpacked: dict[str, Any] = {}  # the values restored so far, by path
        self._used: dict[int, Any] = {}  # existing objects that have been reused
        self._spans: list[tuple[int, int]] = []  # their memory, in order
        self._read_only: list[NDArray[Any]] = []

    def unpack(self, name: str) -> Any:
        """Return the value of an attribute, restored from the state."""
        if name not in self._unpacked_attributes:
            self._unpacked_attributes[name] = self._unpack_value(self._existing.get(name), self._packed(name), name)
        return self._unpacked_attributes[name]

    def _packed(self, name: str) -> Packed:
        value = {"array": name} if isinstance(self._state[name], np.ndarray) else self._state[name]
        return json.loads(value) if isinstance(value, str) else value

    def _unpack_value(self, existing: Any, packed: Packed, path: str) -> Any:
        """Return the value that was packed: `existing` itself with that content if possible, or else a new object."""
        if not isinstance(packed, dict):
            return packed
        kind, inside = next(iter(packed.items()))
        match kind:
            case "same":
                if inside in self._there:
                    return self._there[inside]
                if inside not in self._unpacked:
                    self.unpack(inside.partition(".")[0])
                return self._unpacked[inside]
            case "scalar":
                return self._state[inside][()]
            case "state":
                self._restore_part(existing, inside)
                made = existing
            case "array":
                made = self._array(existing, inside, packed.get("columns", False))
            case "view":
                whole, offset, shape, strides, dtype = inside
                memory = self._memory(whole)
                rows = memory if memory.flags.c_contiguous else memory.T
                made = np.ndarray(shape, numeric(dtype), rows, offset, strides)
            case "generator":
                plain = type(existing) is np.random.Generator
                bits = self._unpack_value(existing.bit_generator if plain else None, inside, f"{path}.bits")
                same = plain and existing.bit_generator is bits and self._claim(existing)
                made = existing if same else np.random.Generator(bits)
            case "seeds":
                made = self._seeds(existing, self._unpack_value(None, inside, f"{path}.seeds"))
            case _ if kind in GENERATORS:
                generator = getattr(np.random, kind)
                plain = type(existing) is generator
                state = self._unpack_value(None, inside[0], f"{path}.0")
                seeds = self._unpack_value(existing.seed_seq if plain else None, inside[1], f"{path}.1")
                same = plain and existing.seed_seq is seeds and self._claim(existing)
                made = existing if same else generator(seeds)
                made.state = state
            case _ if kind in MAPPINGS:
                return self._mapping(existing, packed, kind, path)
            case _:
                return self._sequence(existing, packed, kind, path)
        self._unpacked[path] = made
        if packed.get("fixed"):
            self._read_only.append(made)
        return made

    def finish(self) -> None:
        """Make those arrays read-only that were read-only."""
        for array in self._read_only:
            array.flags.writeable = False

    def _claim(self, owner: Any) -> bool:
        """Return whether an existing object has not been reused yet, and mark it as reused."""
        free = id(owner) not in self._used
        self._used[id(owner)] = owner
        return free

    def _claim_memory(self, array: NDArray[Any]) -> bool:
        """Return whether neither an existing array nor any of its memory has been reused yet, and mark it as reused."""
        begin, end = span(array)
        place = bisect(self._spans, (begin, end))
        beside = self._spans[max(place - 1, 0) : place + 1]
        if any(begin < behind and before < end for before, behind in beside) or not self._claim(array):
            return False
        if begin < end:
            self._spans.insert(place, (begin, end))
        return True

    def _existing_at(self, path: str) -> Any:
        """Return the existing value at the path of an array in the state, None if there is none."""
        name, *steps = path.split(".")
        existing, packed = self._existing.get(name), self._packed(name)
        for step in steps:
            kind, inside = next(iter(packed.items()))
            if kind in MAPPINGS:
                key, packed = next(entry for i, entry in enumerate(inside) if _step(entry[0], i) == step)
                known = existing if isinstance(existing, MAPPINGS[kind]) else {}
                existing = known.get(self._unpack_value(None, key, ""))
            elif kind in SEQUENCES:
                items = list(existing) if isinstance(existing, list | tuple | deque) else []
                existing, packed = items[int(step)] if int(step) < len(items) else None, inside[int(step)]
        return existing

    def _memory(self, whole: Packed) -> NDArray[Any]:
        """Return the array that a packed view is of."""
        if "there" in whole:
            found: NDArray[Any] = self._there[whole["there"]]
            return found
        at = whole["array"]
        if at not in self._unpacked:
            self._unpacked[at] = self._unpack_value(self._existing_at(at), whole, at)
        memory: NDArray[Any] = self._unpacked[at]
        return memory

    def _array(self, existing: Any, path: str, columns: bool) -> Any:
        if path in self._unpacked:  # already made, for a view of it
            return self._unpacked[path]
        made = self._unpacked[path] = self._fill(existing, self._state[path], columns)
        return made

    def _fill(self, existing: Any, values: NDArray[Any], columns: bool) -> Any:
        turned = columns and isinstance(existing, np.ndarray)
        target = existing.T if turned else existing
        if hasattr(target, "__array_ufunc__") and (target.shape, target.dtype) == (values.shape, values.dtype):
            fits = type(existing) is not np.ndarray or (target.flags.c_contiguous and _is_writable(existing))
            claim = self._claim_memory if isinstance(existing, np.ndarray) else self._claim
            if fits and claim(existing):
                (existing.T if turned else existing)[...] = values  # it may have been made writable just now
                return existing
        made = values.copy()
        return made.T if columns else made

    def _seeds(self, existing: Any, state: dict[str, Any]) -> np.random.SeedSequence:
        """Return an existing sequence of seeds, brought to the number of children that it had, or a new one."""
        if type(existing) is np.random.SeedSequence:
            left = state["n_children_spawned"] - existing.n_children_spawned
            same = existing.state | {"n_children_spawned": 0} == state | {"n_children_spawned": 0}
            if same and left >= 0 and self._claim(existing):
                existing.spawn(left)
                return existing
        return np.random.SeedSequence(**state)

    def _mapping(self, existing: Any, packed: Packed, kind: str, path: str) -> Any:
        known = existing if isinstance(existing, MAPPINGS[kind]) and id(existing) not in self._used else {}
        made: Any = existing if type(existing) is MAPPINGS[kind] and self._claim(existing) else MAPPINGS[kind]()
        self._unpacked[path] = made
        items = []
        for i, (packed_key, item) in enumerate(packed[kind]):
            key = self._unpack_value(None, packed_key, f"{path}.{i}:key")
            to = f"{path}.{_step(key, i)}"
            items.append((key, self._unpack_value(known.get(key), item, to)))
        made.clear()
        for key, item in items:
            made[key] = item
        if kind == "defaultdict":
            made.default_factory = FACTORIES[packed["factory"]] if "factory" in packed else None
        return made

    def _sequence(self, existing: Any, packed: Packed, kind: str, path: str) -> Any:
        inside, limit = packed[kind], packed.get("maxlen")
        fresh = isinstance(existing, list | tuple | deque) and id(existing) not in self._used
        known = list(existing) if fresh else []  # else it has what was restored elsewhere
        known = [*known, *[None] * len(inside)][: len(inside)]
        makes: Any = SEQUENCES[kind]
        if kind in {"tuple", "frozenset"}:
            return makes(self._items(known, inside, path))
        same = type(existing) is makes and getattr(existing, "maxlen", None) == limit and self._claim(existing)
        made: Any = existing if same else deque(maxlen=limit) if kind == "deque" else makes()
        self._unpacked[path] = made
        items = self._items(known, inside, path)
        made.clear()
        (made.update if kind == "set" else made.extend)(items)
        return made

    def _items(self, known: list[Any], inside: list[Packed], path: str) -> list[Any]:
        pairs = enumerate(zip(known, inside, strict=True))
        return [self._unpack_value(before, packed, f"{path}.{i}") for i, (before, packed) in pairs]


def _step(key: Any, place: int) -> str:
    """Return how the path of a mapping's entry goes on: with its key, or with its place."""
    return key if isinstance(key, str) and key.isidentifier() else str(place)


def _is_writable(array: NDArray[Any]) -> bool:
    """Return whether an array can be written, after making it writable if it was read-only."""
    try:
        array.flags.writeable = True
    except ValueError:  # its memory is another's
        return False
    return True


def _is_or_holds(path: str) -> str:
    return "holds" if "." in path else "is"
