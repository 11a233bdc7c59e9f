"""What cannot be put back of a user's class is refused by name; a class that names its state says what is."""

import ctypes
import decimal
import re
import sqlite3
import sys
from array import array
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import closing
from contextvars import ContextVar, copy_context
from enum import Enum
from functools import partial
from importlib import import_module
from io import StringIO
from mmap import mmap
from pathlib import Path
from threading import local
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fredsim.dispatchers.gates.bandwidth_aware import BandwidthAware
from fredsim.errors import SimulationError
from fredsim.numerics.streams import Stream
from fredsim.plugins.guarded import Guarded
from fredsim.plugins.seeding import seeded
from fredsim.plugins.state.fingerprints import fingerprint, is_opaque, kept_by_modules
from fredsim.plugins.state.states import Stateful, declares_state, note_start, put_state, take_state
from fredsim.servers import ASGD
from fredsim.simulation.plugins.guarded_plugins import GuardedCompressor, GuardedGate
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
        (of((BIG[:5], BIG[3:])), r"self\.kept overlaps with kept\.0, and neither is a part of the other; keep a c"),
        (of(np.frombuffer(bytearray(8), "f4")), r"self\.kept is an array on the memory of a memoryview; keep a copy"),
        (of(memoryview(b"12")), r"self\.kept is a memoryview, which"),
        (of(Plain), r"self\.kept is a type, which"),
        (of(ASGD(lr=0.1)), r"self\.kept is a ASGD, which"),
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


class Counter(Stateful):
    """A part that counts."""

    state_names = ("count",)
    count = 0


class Late:
    """A class that makes a named part only after its start."""

    state_names = ("inner",)

    def __init__(self, inner: Any = None) -> None:
        self.inner = inner


def test_a_part_that_is_made_after_the_start_is_refused() -> None:
    state = take_state(Late(Counter()))
    with pytest.raises(SimulationError, match=r"^inner is in the state, but does not exist after the start; create it"):
        put_state(Late(), state)


@pytest.mark.parametrize("names", ["mean", ("mean", 1)], ids=str)  # ("mean") is no tuple
def test_names_of_attributes_that_are_no_tuple_of_texts(names: Any) -> None:
    says = f"Other: state_names is {names!r}; it must be a tuple of names of attributes"
    with pytest.raises(SimulationError, match=f"^{re.escape(says)}$"):
        take_state(type("Other", (Named,), {"state_names": names})())


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
    with pytest.raises(SimulationError, match=r"^Leaves: self\.step is a function, which cannot be"):
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


def test_to_import_pytorch_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch", reason="needs PyTorch")
    with seeded(3):
        torch.set_rng_state(torch.Generator().get_state())
        imported = kept_by_modules([], [])
        monkeypatch.delitem(sys.modules, "torch")
        assert kept_by_modules([], []) == imported


class Believed:
    """A helper that says of itself, as fredsim's classes may, that it never changes."""

    UNCHANGING = True
    n = 0


class LikeArray(Believed):
    """A helper that can be read as an array, and holds more."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.zeros(1)


class Point(ctypes.Structure):
    _fields_ = (("n", ctypes.c_int),)


class Whole(int):
    n = 0


class Colour(Enum):
    RED = 1


def _index(found: Any) -> None:
    found.index += 1


def _rename(found: Any) -> None:
    vars(found)["other"] = vars(found).pop("kept")


def _add_n(found: Any) -> None:
    found.n = getattr(found, "n", 0) + 1


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (Believed, _add_n),
        (LikeArray, _add_n),
        (lambda: np.zeros(1).view(type("Own", (np.ndarray,), {})), _add_n),
        (lambda: type("Own", (np.random.Generator,), {})(np.random.PCG64(0)), _add_n),
        (lambda: partial(int), _add_n),
        (lambda: Colour.RED, _add_n),
        (Whole, _add_n),
        (Point, _add_n),
        (lambda: (ctypes.c_int * 2)(), lambda found: found.__setitem__(1, 3)),
        (lambda: type("Own", (array,), {})("q", [0]), lambda found: found.append(1)),
        (lambda: ValueError([0]), lambda found: found.args[0].append(1)),
        (StringIO, lambda found: found.write("x")),
        (lambda: StringIO("x"), lambda found: found.close()),
        (lambda: pd.Series([1.0]), _index),
        (lambda: pd.Series([1.0]), lambda found: found.attrs.update(n=1)),
        (lambda: np.ma.masked_array([1.0, 2.0]), lambda found: found.__setitem__(0, np.ma.masked)),
        (lambda: of(1), _rename),
        (lambda: mmap(-1, 8), lambda found: found.write(b"1")),
        (lambda: np.zeros((2, 3)), lambda found: found.resize(3, 2)),
        (lambda: np.zeros((2, 3)), lambda found: found.setflags(write=False)),
        (lambda: [np.zeros((2, 3))], lambda found: found.append(np.asfortranarray(found.pop()))),
        (lambda: [deque("a")], lambda found: found.append(deque(found.pop(), 3))),
        (lambda: defaultdict(int), lambda found: setattr(found, "default_factory", list)),
        (lambda: Leaves().go_on, lambda found: found()),
        (lambda: 10**5000, None),
    ],
)
def test_what_an_object_holds_out_of_sight_is_seen(
    make: Callable[[], Any], change: Callable[[Any], Any] | None
) -> None:
    value = make()
    before = fingerprint(value)
    assert fingerprint(value) == before
    if change is None:
        value += 1
    else:
        change(value)
    assert fingerprint(value) != before


def test_an_object_of_a_library_in_c_is_not_believed() -> None:
    with closing(sqlite3.connect(":memory:")) as found, closing(sqlite3.connect(":memory:")) as other:
        assert is_opaque(fingerprint(found))
        assert fingerprint(found) != fingerprint(other)
    for harmless in (re.compile("a"), np.add, Path(), local(), pd.DataFrame({"a": ["x"]})):
        assert not is_opaque(fingerprint(harmless))


def test_how_far_a_file_is_read_is_seen_and_what_is_beside_a_view_of_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("1\n2\n3\n", encoding="utf-8")
    with (tmp_path / "lines").open(encoding="utf-8") as lines, (tmp_path / "log").open("w", encoding="utf-8") as log:
        of_log = fingerprint(log)
        found = [fingerprint(lines), *(fingerprint(lines) for line in lines if log.write(line))]
        assert fingerprint(lines) == fingerprint(lines)
        assert (len({*found}), fingerprint(log)) == (4, of_log)
    memory = np.memmap(tmp_path / "log", np.uint8, "r+", shape=4)
    part = memory[:2]
    before = fingerprint(part)
    memory[3] += 1
    assert fingerprint(part) == before
    memory[1] += 1
    assert fingerprint(part) != before


def test_what_cannot_be_saved_by_its_name_or_its_length() -> None:
    for name in ("a.b", "gone since the start"):
        found = Plain()
        vars(found)[name] = 1
        with pytest.raises(
            SimulationError, match=rf"^Plain: has an attribute named '{name}', which cannot be put back"
        ):
            take_state(found)
    with pytest.raises(SimulationError, match=r"^Plain: self\.kept is an int of 16610 bits, which cannot be"):
        take_state(of(10**5000))


def test_a_count_with_underscores_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leaves, "__n__", 0, raising=False)
    monkeypatch.setitem(globals(), "__count", 0)
    changes: list[tuple[Callable[[], None], str]] = [
        (lambda: monkeypatch.setattr(Leaves, "__n__", 1), r"Leaves\.__n__"),
        (lambda: monkeypatch.setitem(globals(), "__count", 1), r"tests\.test_states_refused\.__count"),
    ]
    for change, what in changes:
        found = Leaves()
        note_start(found)
        take_state(found)
        change()
        with pytest.raises(SimulationError, match=rf"^Leaves: changes {what}, which is not in the object"):
            take_state(found)


def test_a_module_that_a_method_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "odd_counts.py").write_text("count = 0\n", encoding="utf-8")
    (tmp_path / "odd_server.py").write_text(
        "class Server:\n    def go_on(self):\n        import odd_counts\n        odd_counts.count += 1\n",
        encoding="utf-8",
    )
    for says in (r"imports odd_counts\.count during the run", r"changes odd_counts\.count, which is not in the object"):
        found: Any = import_module("odd_server").Server()
        note_start(found)
        take_state(found)
        found.go_on()
        with pytest.raises(SimulationError, match=rf"^Server: {says}"):
            take_state(found)
    packages = tmp_path / "dist-packages"
    packages.mkdir()
    (packages / "odd_library.py").write_text("count = 0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(packages)
    found = import_module("odd_server").Server()
    note_start(found)
    import_module("odd_library")
    assert take_state(found) == {}
    for name in ("odd_counts", "odd_server", "odd_library"):
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("async def apply_update(self, grad): pass", "must not be async"),
        ("def apply_update(self, grad): yield grad", "must not be a generator"),
    ],
)
def test_a_method_that_would_do_nothing(text: str, says: str) -> None:
    made: dict[str, Any] = {}
    exec(text, made)
    guarded = Guarded(type("Server", (), {"apply_update": made["apply_update"]})())
    grad = np.zeros(2)
    with pytest.raises(SimulationError, match=rf"^Server, apply_update: {says}"):
        guarded.lend(grad, "grad", "apply_update", lambda: guarded.inner.apply_update(grad))


class WritesIntoThePush:
    """A compressor with an attribute of its own that has the name of one of fredsim's."""

    on_device = True

    def compress(self, push: Any, client: int, step: int) -> Any:
        push[0] = 0
        return push, 4


class PerTensor:
    """A gate with hyper-parameters of its own, which decides for the whole model."""

    hyper = SimpleNamespace(per="tensor")


def test_names_that_only_mean_something_in_fredsims_classes() -> None:
    with pytest.raises(SimulationError, match=r"compress must leave the push as it is"):
        GuardedCompressor(WritesIntoThePush()).compress(np.ones(2, np.float32), 0, 0)
    assert not GuardedGate(PerTensor(), Stream.PUSH_GATE).per_tensor
    assert GuardedGate(BandwidthAware(c=0.1, per="tensor"), Stream.PUSH_GATE).per_tensor


class Shares:
    """A class that names its state, parts of which another object has, too."""

    state_names = ("rng", "fixed", "items")

    def __init__(self) -> None:
        self.rng, self.fixed, self.items = np.random.default_rng(1), np.zeros(2), [[0]]
        self.fixed.flags.writeable = False
        self.other = SimpleNamespace(rng=self.rng, fixed=self.fixed, item=self.items[0])


def test_what_another_object_has_too_is_put_back_in_place() -> None:
    found, fresh = Shares(), Shares()
    found.rng.random(3)
    found.rng.spawn(2)
    found.fixed.flags.writeable = True
    found.fixed += 5
    found.fixed.flags.writeable = False
    found.items[0].append(7)
    found.items.append([1])
    put_state(fresh, take_state(found))
    assert fresh.other.rng is fresh.rng
    assert fresh.other.rng.spawn(1)[0].random() == found.rng.spawn(1)[0].random()
    assert fresh.other.rng.random() == found.rng.random()
    assert (fresh.other.fixed.tolist(), fresh.other.fixed.flags.writeable) == ([5.0, 5.0], False)
    assert (fresh.other.item, fresh.items) == ([0, 7], [[0, 7], [1]])
    assert fresh.other.item is fresh.items[0]
