"""The state of an object of a user's: put back into a fresh one, it is that object again, or it was refused."""

import math
from collections import Counter, OrderedDict, defaultdict, deque
from itertools import combinations
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fredsim.errors import SimulationError
from fredsim.networks.layout import Layout
from fredsim.numerics.streams import Stream, Streams
from fredsim.plugins.state.states import note_start, put_state, take_state
from fredsim.servers import ASGD


class Plain:
    """A class of a user's that does not say its state."""


def of(value: Any) -> Plain:
    found = Plain()
    found.kept = value  # type: ignore[attr-defined]
    return found


def again(found: Any) -> Any:
    """Put an object's state into a fresh one, by way of texts and arrays alone."""
    state = take_state(found)
    for name, value in state.items():
        assert isinstance(name, str)
        assert isinstance(value, np.ndarray | int | float | str)
        if isinstance(value, np.ndarray):  # as a file has it
            state[name] = np.frombuffer(value.tobytes(), value.dtype).reshape(value.shape)
            assert value.flags.owndata
    fresh = type(found)()
    put_state(fresh, dict(sorted(state.items(), reverse=len(state) % 2 == 0)))  # whatever their order
    return fresh


def steps(array: Any) -> list[int]:
    return [step for step, n in zip(array.strides, array.shape, strict=True) if n > 1]


class Same:
    """Compares two values, and what in them is one object, or on the same memory."""

    def __init__(self, one: Any, two: Any) -> None:
        self.pairs: dict[int, Any] = {}
        self.arrays: list[tuple[Any, Any]] = []
        self.alive: list[Any] = []  # so that no two have one id
        self.compare(*(tuple(sorted(vars(found).items(), key=itemgetter(0))) for found in (one, two)))
        assert len({id(theirs) for theirs in self.pairs.values()}) == len(self.pairs)
        for (a, b), (c, d) in combinations(self.arrays, 2):
            if np.shares_memory(a, c):
                assert a.ctypes.data - c.ctypes.data == b.ctypes.data - d.ctypes.data
            assert np.shares_memory(a, c) == np.shares_memory(b, d)

    def compare(self, one: Any, two: Any) -> None:
        assert type(one) is type(two)
        if id(one) in self.pairs:
            assert self.pairs[id(one)] is two
            return
        if not isinstance(one, int | float | str | tuple | np.generic | None):
            self.pairs[id(one)] = two
            self.alive += [one, two]
        if isinstance(one, np.ndarray):
            assert (one.dtype, one.shape) == (two.dtype, two.shape)
            assert one.size == 0 or steps(one) == steps(two)
            assert one.tobytes() == two.tobytes()
            assert one.flags.writeable == two.flags.writeable
            self.arrays.append((one, two))
        elif isinstance(one, np.random.Generator):
            self.compare(one.bit_generator, two.bit_generator)
        elif isinstance(one, np.random.BitGenerator):
            assert repr(one.state) == repr(two.state)
            assert repr(one.seed_seq) == repr(two.seed_seq)
        elif isinstance(one, dict):
            assert getattr(one, "default_factory", 0) is getattr(two, "default_factory", 0)
            self.compare(tuple(one), tuple(two))
            self.compare(tuple(one.values()), tuple(two.values()))
        elif isinstance(one, list | tuple | deque):
            assert getattr(one, "maxlen", 0) == getattr(two, "maxlen", 0)
            assert len(one) == len(two)
            for ours, theirs in zip(one, two, strict=True):
                self.compare(ours, theirs)
        elif isinstance(one, float):
            assert repr(one) == repr(two)
        else:
            assert one == two


DTYPES = st.sampled_from(["f4", "f8", "i8", "?", "u1", ">i2"])
SHAPES = st.sampled_from([(), (0,), (1,), (7,), (2, 3), (3, 1, 4), (2, 0)])
CUTS = st.sampled_from(
    [np.s_[...], np.s_[::-1], np.s_[1:], np.s_[:2], np.s_[::2], np.s_[2:2], np.s_[..., 0], np.s_[..., ::-1]]
)
NUMBERS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
SCALARS = st.sampled_from([np.float32(-0.0), np.float64(math.nan), np.int64(-3), np.bool_(1)])
KEYS = st.integers() | st.sampled_from(["mean", "1", "a.b", "key", "scalar", "array"]) | st.tuples(st.integers())


def generator(kind: str) -> np.random.Generator:
    made = np.random.Generator(getattr(np.random, kind)(3))
    made.random(5, np.float32)
    made.spawn(2)
    return made


@st.composite
def objects(draw: st.DrawFn) -> Plain:
    """Draw an object whose attributes hold arrays, views and containers, any of them in several places."""
    pool: list[Any] = []
    for _ in range(draw(st.integers(1, 3))):
        shape, dtype = draw(SHAPES), draw(DTYPES)
        array = np.array(np.arange(math.prod(shape)).reshape(shape), dtype, order=draw(st.sampled_from("CF")))
        array.flags.writeable = draw(st.integers(0, 9)) > 0
        pool.append(array)
        for _ in range(draw(st.integers(0, 2))):
            base = draw(st.sampled_from([part for part in pool if part.size]) if array.size else st.just(array))
            try:
                pool.append(draw(st.sampled_from([base.T, base[draw(CUTS)], base.view("u1")])))
            except (IndexError, ValueError):  # no such cut of it
                continue
    found = Plain()
    found.arrays = draw(st.permutations(pool))  # type: ignore[attr-defined]
    pool.append(draw(st.builds(generator, st.sampled_from(["PCG64", "MT19937", "Philox"]))))
    pool.append(np.random.Generator(pool[-1].bit_generator))
    leaves = st.sampled_from(pool) | NUMBERS | SCALARS
    for _ in range(draw(st.integers(0, 5))):
        items = draw(st.lists(st.sampled_from(pool) | leaves, max_size=4))
        keys = draw(st.lists(KEYS, min_size=len(items), max_size=len(items), unique=True))
        named = list(zip(keys, items, strict=True))
        made: Any = draw(
            st.sampled_from(
                [list, tuple, deque, lambda x: deque(x, 2), None, dict, OrderedDict, Counter, "int", "none"]
            )
        )
        if made in {"int", "none"}:
            pool.append(defaultdict(int if made == "int" else None, named))
        elif made in {dict, OrderedDict, Counter}:
            pool.append(made())
            for key, item in named:
                pool[-1][key] = item
        elif made is None:  # one that holds itself
            pool.append(items)
            items.append(items)
        else:
            pool.append(made(items))
    for name in draw(st.lists(st.sampled_from(["a", "arrays", "b", "c", "d"]), unique=True, min_size=1)):
        setattr(found, name, draw(st.sampled_from(pool) | leaves))
    return found


@settings(max_examples=150)
@given(found=objects())
def test_it_is_the_same_object_or_refused(found: Plain) -> None:
    try:
        fresh = again(found)
    except SimulationError as error:  # a view of an array that is not among the attributes
        assert "keep a copy" in str(error)  # noqa: PT017
        return
    Same(found, fresh)
    one, two = take_state(found), take_state(fresh)
    assert {name: np.asarray(value).tobytes() for name, value in one.items()} == {
        name: np.asarray(value).tobytes() for name, value in two.items()
    }
    for value in vars(found).values():  # what was taken is a copy
        if isinstance(value, np.ndarray) and value.flags.writeable:
            value[...] = 1
    assert {name: np.asarray(value).tobytes() for name, value in one.items()} == {
        name: np.asarray(value).tobytes() for name, value in two.items()
    }


@pytest.mark.parametrize("sign", [1, -1])
def test_large_integers_are_put_back_or_refused(sign: int) -> None:
    """Python writes and reads 4,300 digits, 14,284 bits, unless it is told otherwise."""
    for bits in (65, 1000, 2000):
        found = of([sign * 2 ** (bits - 1)])
        Same(found, again(found))
    for bits in (2001, 14_200, 15_000):
        with pytest.raises(SimulationError, match=rf"self\.kept holds an int of {bits} bits, which cannot be put back"):
            take_state(of([sign * 2 ** (bits - 1)]))


def test_views() -> None:
    line, fixed = np.arange(6.0), np.arange(6.0)[:4]
    fixed.flags.writeable = False
    for parts in ([line[::-1], line], [line, line[2:2], line[3:]], [line, fixed, fixed.base]):
        found = of(parts)
        Same(found, again(found))


@pytest.mark.parametrize("factory", [list, None])
def test_what_a_defaultdict_makes(factory: Any) -> None:
    found = of(defaultdict(factory, a=1))
    Same(found, again(found))


class Twice:
    """One array, one dict and one list under two names at the start, and two arrays that have an element in common."""

    state_names = ("one", "two")

    def __init__(self) -> None:
        memory = np.zeros(5)
        self.one: Any = [np.zeros(2), {1: 0}, [1], memory[:3]]
        self.two: Any = [*self.one[:3], memory[2:]]


def test_what_was_one_at_the_start_may_be_two() -> None:
    found, fresh = Twice(), Twice()
    found.two = [np.arange(6.0)[::3], {1: 5}, [2], np.arange(4.0, 7.0)]
    put_state(fresh, take_state(found))
    assert repr(fresh.two) == repr([np.array([0.0, 3.0]), {1: 5}, [2], np.array([4.0, 5.0, 6.0])])
    assert repr(fresh.one) == repr(Twice().one)


class Twins:
    """One list and one dict under two names at the start."""

    state_names = ("one", "two")

    def __init__(self) -> None:
        self.one: Any = [[], {}]
        self.two: Any = [*self.one]


def test_what_was_one_and_empty_at_the_start_may_be_two() -> None:
    found, fresh = Twins(), Twins()
    found.one, found.two = [[np.ones(2)], {1: np.ones(2)}], [[np.zeros(2)], {1: np.zeros(2)}]
    put_state(fresh, take_state(found))
    assert repr((fresh.one, fresh.two)) == repr((found.one, found.two))


class SetsItsLayout(ASGD):  # type: ignore[misc]
    """One over a class of fredsim's that sets what this sets as well."""

    def expect(self, clients: int) -> None:
        super().expect(clients)
        self.layout = {clients}


def test_what_fredsims_classes_set_is_theirs_unless_a_users_sets_it_too() -> None:
    server = SetsItsLayout(lr=0.1)
    server.init(np.zeros(2, np.float32), 3)
    note_start(server)
    assert "layout" not in take_state(server)
    server.layout = {3, 4}
    with pytest.raises(SimulationError, match=r"SetsItsLayout: self\.layout is a set"):
        take_state(server)


class Slots:
    """A class without a dict."""

    __slots__ = ("__hidden", "sums", "waiting")

    def __init__(self) -> None:
        self.__hidden = 0

    def go_on(self) -> None:
        self.__hidden += 1
        self.waiting = [self.__hidden]


def test_slots_and_what_came_and_went() -> None:
    found = Slots()
    found.go_on()
    fresh = again(found)
    fresh.go_on()
    assert fresh.waiting == [2]
    begun, fresh = Plain(), Plain()
    for one in (begun, fresh):
        one.first, one.second = 2, 3  # type: ignore[attr-defined]
        note_start(one)
    begun.later = 1  # type: ignore[attr-defined]
    del begun.first  # type: ignore[attr-defined]
    put_state(fresh, take_state(begun))
    assert vars(fresh) == {"later": 1, "second": 3}


class Given:
    """What keeps all that it was given."""

    def init(self, layout: Layout, streams: Streams, stream: Stream) -> None:
        self.layout, self.streams, self.stream, self.count = layout, streams, stream, 0


def test_what_fredsim_gave_is_no_state() -> None:
    found = Given()
    found.init(Layout((("W", (2, 3)),)), Streams(1), Stream.PUSH_GATE)
    found.count = 3
    assert take_state(found) == {"count": 3}
    fresh = Given()
    fresh.init(Layout((("W", (2, 3)),)), Streams(1), Stream.PUSH_GATE)
    put_state(fresh, take_state(found))
    assert (fresh.count, fresh.streams.seed, fresh.stream) == (3, 1, Stream.PUSH_GATE)
