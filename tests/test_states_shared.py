"""A user's class whose attributes share memory, with each other and with what it does not name, goes on as it was."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fredsim.errors import SimulationError
from fredsim.plugins.state.states import note_start, put_state, take_state
from tests.test_states import Plain, Same

SIZE = 6


class Helper:
    """Changes an array that it keeps."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def add(self, number: float) -> None:
        self.array += np.float32(number)


class Views:
    """Parameters, and views of them that are named before, or in one attribute with them."""

    state_names: tuple[str, ...] = ("layers", "params")

    def __init__(self) -> None:
        self.params: Any = np.zeros(SIZE, np.float32)
        self.layers: Any = [self.params[:4], self.params[4:]]
        self.helper = Helper(self.params)

    def go_on(self, number: float) -> None:
        self.helper.add(number)
        self.layers[1][...] *= np.float32(2)

    def values(self) -> list[Any]:
        return [self.params, *self.layers, self.helper.array]


class Within(Views):
    """The whole stands behind its views, in a dict in a list in one attribute with them."""

    state_names = ("layers",)

    def __init__(self) -> None:
        super().__init__()
        self.layers = [self.params[:4], self.params[4:], {3: {"all": self.params}}]

    def values(self) -> list[Any]:
        return [self.params, *self.layers[:2], self.layers[2][3]["all"], self.helper.array]


class Crossed(Views):
    """Either attribute has a view of what the other holds as a whole."""

    state_names = ("layers", "more")

    def __init__(self) -> None:
        super().__init__()
        other = np.ones(3, np.float32)
        self.layers, self.more = (self.params[:4], self.params[4:], other), [self.params, other[1:]]
        self.second = Helper(other)

    def go_on(self, number: float) -> None:
        super().go_on(number)
        self.second.add(number / 3)

    def values(self) -> list[Any]:
        return [*self.layers, *self.more, self.helper.array, self.second.array]


class Columns(Views):
    """Views of a matrix that lies by columns, and may not be written under its own name."""

    def __init__(self) -> None:
        memory = np.zeros((2, 3), np.float32, order="F")
        self.params, self.layers = memory.view(), [memory[:, 0], memory[:, 1:]]
        self.params.flags.writeable = False
        self.helper = Helper(memory)


class Parts:
    """Parameters and momentum in one buffer, which is not named, and which a method writes to."""

    state_names: tuple[str, ...] = ("params", "mean")

    def __init__(self) -> None:
        self.both = np.zeros((2, SIZE), np.float32)
        self.params, self.mean = self.both
        self.helper = Helper(self.both)

    def go_on(self, number: float) -> None:
        self.both[1] *= np.float32(0.9)
        self.both[1] += np.float32(number)
        self.helper.add(0.25)
        self.params -= self.mean

    def values(self) -> list[Any]:
        return [self.both, self.params, self.mean, self.helper.array]


class Swaps(Parts):
    """Named with their buffer, whose rows change places."""

    state_names = ("params", "mean", "both")

    def go_on(self, number: float) -> None:
        super().go_on(number)
        self.params, self.mean = self.mean, self.params


@pytest.mark.parametrize("kind", [Views, Within, Crossed, Columns, Parts, Swaps])
def test_it_goes_on_in_the_memory_that_others_refer_to(kind: Callable[[], Any]) -> None:
    """It has the bits of one that was never stopped."""
    whole, found, fresh = kind(), kind(), kind()
    for one in (found, fresh):
        note_start(one)
    for number in (1.1, 2.3):
        whole.go_on(number)
        found.go_on(number)
    put_state(fresh, take_state(found))
    for number in (0.7, 5.0):
        whole.go_on(number)
        fresh.go_on(number)
    assert [array.tolist() for array in fresh.values()] == [array.tolist() for array in whole.values()]
    assert np.count_nonzero(fresh.helper.array)


class Leaves(Parts):
    """A buffer of which a row is in no named attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.both = np.zeros((3, SIZE), np.float32)
        self.params, self.mean = self.both[:2]
        self.helper = Helper(self.both[:2])

    def write(self) -> None:
        self.both[2, 1] = 3


class NamesAll(Leaves):
    """The same with its buffer named."""

    state_names = ("both",)


def test_the_rest_of_a_buffer_is_not_lost() -> None:
    found = Leaves()
    note_start(found)
    found.go_on(1.5)
    state = take_state(found)
    assert sorted(state) == ["mean", "params"]  # the rest has not changed
    found.write()
    with pytest.raises(
        SimulationError, match=r"^Leaves: self\.both has the memory of self\.(params|mean) and more, an"
    ):
        take_state(found)
    named, fresh = NamesAll(), NamesAll()
    named.write()
    put_state(fresh, take_state(named))
    assert fresh.both[2].tolist() == [0, 3, 0, 0, 0, 0]
    assert np.shares_memory(fresh.params, fresh.both)


class ByColumns(Parts):
    """Parameters and momentum are the columns of what is not named."""

    def __init__(self) -> None:
        super().__init__()
        self.both = np.zeros((SIZE, 2), np.float32)
        self.params, self.mean = self.both.T


def test_a_part_that_could_not_be_put_back_in_its_whole_is_refused() -> None:
    """It lies by columns there, or was beside it at the start."""
    beside, columns = Parts(), ByColumns()
    for found in (beside, columns):
        del found.helper
        note_start(found)
        found.mean += 1
        found.params = found.mean
        with pytest.raises(SimulationError, match=r"self\.both has the memory of self\.(params|mean) and more, and"):
            take_state(found)


class Refers:
    """Attributes and a helper that are not named refer to parts of what is named."""

    state_names = ("params", "rows", "table")

    def __init__(self) -> None:
        self.params: Any = np.zeros(4)
        self.rows: Any = [np.zeros(2), np.zeros(2)]
        self.table: Any = {"a": [0], "b": [0]}
        self.part, self.row, self.item = self.params[:2], self.rows[0], self.table["a"]
        self.helper = Helper(self.table["b"])

    def refer(self, **to: Any) -> None:
        vars(self).update(to)

    def write(self) -> list[Any]:
        """Write into each named part something of its own, and return what all attributes show."""
        for number, array in enumerate([self.params, *self.rows]):
            array += np.arange(1, 1 + array.size) * 10**number
        for key, item in self.table.items():
            item.append(key)
        shown = [repr(value) for name, value in sorted(vars(self).items()) if name != "helper"]
        return [*shown, *self.helper.array]


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.refer(part=one.params[2:]),
        lambda one: one.refer(part=one.params[:1]),
        lambda one: one.refer(part=one.params[1::-1]),
        lambda one: one.refer(part=one.params[:2].view("i8")),
        lambda one: one.part.setflags(write=False),
        lambda one: one.refer(row=one.rows[1]),
        lambda one: one.refer(item=one.table["b"]),
        lambda one: one.rows.reverse(),
        lambda one: one.refer(params=(longer := np.zeros(5)), row=longer),
        lambda one: one.rows.append(np.zeros(1)),
        lambda one: one.table.pop("a"),
    ],
)
def test_what_refers_to_other_parts_of_what_is_named(change: Callable[[Any], object]) -> None:
    found, fresh = Refers(), Refers()
    for one in (found, fresh):
        note_start(one)
    change(found)
    put_state(fresh, take_state(found))
    assert fresh.part.flags.writeable == found.part.flags.writeable
    assert fresh.write() == found.write()


def test_a_helper_that_refers_to_another_part_is_refused() -> None:
    found = Refers()
    note_start(found)
    found.helper.array = found.table["a"]
    with pytest.raises(SimulationError, match=r"^Refers: self\.helper is a Helper, which cannot be put back"):
        take_state(found)


class Alike:
    """Arrays with the same numbers, and views of them."""

    def __init__(self) -> None:
        self.one, self.two, self.three = np.zeros(4), np.zeros(4), np.zeros(2)
        self.parts = [self.one[2:], self.three, np.zeros(2)]
        self.more, self.last = self.three[:1], self.parts[2][:1]


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.one.__setitem__(0, 1),
        lambda found: setattr(found, "two", found.one),
        lambda found: setattr(found, "two", found.one[:]),
        lambda found: setattr(found, "more", np.zeros(1)),
        lambda found: setattr(found, "more", found.three[1:]),
        lambda found: setattr(found, "three", found.parts[0]),
    ],
)
def test_arrays_that_have_the_same_numbers(change: Callable[[Any], object]) -> None:
    found, fresh = Alike(), Alike()
    for one in (found, fresh):
        note_start(one)
    change(found)
    put_state(fresh, take_state(found))
    Same(found, fresh)


def test_an_array_that_has_not_changed_and_overlaps_with_one_that_has_is_refused() -> None:
    found, whole = Plain(), np.zeros(5)
    vars(found).update(one=whole[:3], two=whole[2:])
    note_start(found)
    whole[0] = 1
    with pytest.raises(SimulationError, match=r"^Plain: self\.two overlaps with one, and neither"):
        take_state(found)


class Helps:
    """A helper, and attributes that refer to parts of it, or share with it what may change, but does not."""

    def __init__(self) -> None:
        self.helper, self.rows = Helper([np.zeros(2), np.zeros(2)]), [[0], [0]]
        self.first, self.row = self.helper.array[0], self.rows[0]
        self.second = Helper(self.rows[1])


def test_a_helper_that_has_not_changed_is_referred_to() -> None:
    found, fresh = Helps(), Helps()
    for one in (found, fresh):
        note_start(one)
    found.first = found.helper.array[1]
    found.rows.append([1])
    put_state(fresh, take_state(found))
    assert fresh.first is fresh.helper.array[1]
    assert fresh.row is fresh.rows[0]
    assert fresh.second.array is fresh.rows[1]
    assert fresh.rows == [[0], [0], [1]]


class Viewed:
    """Names two attributes, of which one becomes a view of an array in the other, to which a third refers."""

    state_names = ("last", "rows")

    def __init__(self) -> None:
        self.last: Any = {}
        self.rows = {"row": np.zeros(2)}
        self.first = [self.rows["row"]]


def test_a_named_view_of_a_named_array_does_not_take_its_place() -> None:
    found, fresh = Viewed(), Viewed()
    for one in (found, fresh):
        note_start(one)
    found.last = found.rows["row"][:]
    found.last[1] = 1
    put_state(fresh, take_state(found))
    assert fresh.first[0] is fresh.rows["row"]
    Same(found, fresh)
