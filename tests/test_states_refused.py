"""What cannot be put back of a user's class is refused by name; a class that names its state says what is."""

import decimal
from collections import defaultdict
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fredsim.errors import SimulationError
from fredsim.plugins.seeding import seeded
from fredsim.plugins.states import declares_state, note_start, put_state, take_state
from tests.test_states import Plain, of


class Series(SimpleNamespace):
    """What is like an array and is none."""

    dtype = np.dtype("f4")
    __array_ufunc__ = None


class Rows(dict[int, float]):
    """A class that is a container, too."""


class Listing:
    """A class that keeps something for all of its instances."""

    seen: list[int] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.count = 0


def counting() -> Callable[[], int]:
    count = 0

    def function() -> int:
        nonlocal count
        count += 1
        return count

    return function


BIG = np.arange(12.0)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (of(np.ma.masked_array([1.0, 2.0], [True, False])), r"self\.kept is a MaskedArray, which cannot be put back"),
        (of([Series()]), r"self\.kept holds a Series, which cannot be put back"),
        (of(counting()), r"self\.kept is a function, which cannot be put back"),
        (of([].append), r"self\.kept is a builtin_function_or_method, which"),
        (of(SimpleNamespace(a=1)), r"self\.kept is a SimpleNamespace, which"),
        (of(np.random.RandomState(1)), r"self\.kept is a RandomState, which"),
        (of({3, 1}), r"self\.kept is a set, which does not keep an order, as a dict does"),
        (of({"a": frozenset()}), r"self\.kept holds a frozenset, which does not keep an order"),
        (of(defaultdict(lambda: 3)), r"self\.kept is a defaultdict of <function .*>; use setdefault"),
        (of(type("Own", (dict,), {})()), r"self\.kept is a Own, which"),
        (of(np.array([None])), r"self\.kept is an array of object"),
        (of(BIG[::2]), r"self\.kept is a view of an array that is not there; keep a copy"),
        (of((BIG[:5], BIG[3:])), r"self\.kept overlaps with self\.kept, and neither is a part of the other; keep a"),
        (of(np.frombuffer(bytearray(8), "f4")), r"self\.kept is an array on the memory of a memoryview; keep a copy"),
        (of(memoryview(b"12")), r"self\.kept is a memoryview, which"),
        (of(Plain), r"self\.kept is a type, which"),
        (Rows(), r"is a dict, too, which keeps more than its attributes"),
        (Listing(), r"self\.seen is the class's, not the object's; make it a tuple, or make it in __init__"),
    ],
)
def test_what_cannot_be_put_back_is_refused(found: Any, says: str) -> None:
    remedy = (
        f".*; name what changes from push to push in state_names, a tuple, or give {type(found).__name__} take_state"
    )
    with pytest.raises(SimulationError, match=f"^{type(found).__name__}: {says}{remedy}"):
        take_state(found)


class Named:
    """A class that says what changes: all else is left alone."""

    state_names: tuple[str, ...] = ("waiting", "mean")

    def __init__(self) -> None:
        self.waiting, self.mean = set[int](), np.zeros(3)
        self.level: Callable[[], float] = lambda: float(self.mean.sum())
        self.first = self.mean[:1]


class NamesNothing(Named):
    """A class that names what is not there."""

    state_names: tuple[str, ...] = ("lost",)


def test_a_class_that_names_its_state() -> None:
    found, fresh = Named(), Named()
    found.waiting.add(3)
    found.mean += 2
    mean = fresh.mean
    put_state(fresh, take_state(found))
    assert declares_state(fresh)
    assert fresh.waiting == {3}
    assert fresh.mean is mean
    assert (fresh.level(), fresh.first.tolist()) == (6.0, [2.0])
    assert not declares_state(Plain())
    with pytest.raises(SimulationError, match=r"NamesNothing: self\.lost is named in state_names, and is not there"):
        take_state(NamesNothing())


class Leaves(Named):
    """A class whose `state_names` leaves out what changes."""

    shared = 0

    def __init__(self) -> None:
        super().__init__()
        self.count, self.step = 0, len

    def go_on(self) -> None:
        self.count += 1


def test_what_state_names_leaves_out_is_kept_if_it_changes() -> None:
    found, fresh = Leaves(), Leaves()
    note_start(found)
    note_start(fresh)
    assert "count" not in take_state(found)
    found.go_on()
    put_state(fresh, take_state(found))
    assert fresh.count == 1
    found.step = lambda x: 2
    with pytest.raises(SimulationError, match=r"^Leaves: self\.step is a function, which cannot be put back"):
        take_state(found)


def test_what_changes_outside_the_object_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Leaves()
    note_start(found)
    take_state(found)
    monkeypatch.setattr(Leaves, "shared", 1)
    with pytest.raises(
        SimulationError, match=r"^Leaves: changes Leaves\.shared, which is not in the object, and would be"
    ):
        take_state(found)
    monkeypatch.undo()
    take_state(found)
    monkeypatch.setitem(globals(), "BIG", np.arange(3.0))
    with pytest.raises(SimulationError, match=r"^Leaves: changes tests\.test_states_refused\.BIG, which is not in the"):
        take_state(found)


CONTEXT: ContextVar[int] = ContextVar("odd", default=0)


def _draw_from_torch() -> object:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    return torch.rand(())


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda: CONTEXT.set(1), "tests.test_states_refused.CONTEXT"),
        (lambda: setattr(decimal.getcontext(), "prec", 5), "the decimal context"),
        (lambda: np.seterr(over="raise", under="raise"), "what NumPy does about floating-point errors"),
        (lambda: np.random.random(), "the generator of np.random"),  # noqa: NPY002  what is tried
        (_draw_from_torch, "the generator of torch"),
    ],
    ids=["context", "decimal", "seterr", "np.random", "torch"],
)
def test_what_changes_for_everybody_is_refused(change: Callable[[], object], what: str) -> None:
    if what.endswith("torch"):
        pytest.importorskip("torch", reason="needs PyTorch")

    def tried() -> None:
        found = Leaves()
        note_start(found)
        take_state(found)
        decimal.Decimal(1) / 3
        take_state(found)
        change()
        with pytest.raises(SimulationError, match=rf"^Leaves: changes {what}, which is not in the object"):
            take_state(found)

    with np.errstate(), seeded(3):
        copy_context().run(tried)
