"""Servers that are written unlike others, and keep to the contract: they give what a plain one gives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fredsim.errors import SimulationError
from fredsim.runs.folder.results import Result

MODULE = """
import numpy as np

from fredsim.servers import Reply


class Plain:
    def __init__(self, lr):
        self.lr = np.float32(lr)

    def init(self, params, clients):
        self.params = params.copy()

    def total(self, grad):
        return float(grad[0]) + float(grad[1]) + float(grad[2])

    def apply_update(self, grad, client_id, timestamp):
        self.params -= self.lr * np.float32(1 / (1 + abs(self.total(grad)))) * grad


class Recursive(Plain):
    def total(self, grad):
        def first(count):  # refers to itself, and to grad: a circle of references
            return first(count - 1) + float(grad[count - 1]) if count else 0.0

        return first(3)


class Slots(Plain):
    __slots__ = ()


class OnlySlots:
    __slots__ = ("lr", "params")
    __init__, init, total, apply_update = Plain.__init__, Plain.init, Plain.total, Plain.apply_update


class Rounds(Plain):
    holds = takes_fraction = True
    metrics = {"waited": "sum"}

    def expect(self, clients):
        self.needed = self.at_work or clients

    def init(self, params, clients):
        super().init(params, clients)
        self.waiting = []

    def apply_update(self, grad, client_id, timestamp):
        Plain.apply_update(self, grad, client_id, timestamp)
        self.waiting.append(client_id)
        self.record("waited", len(self.waiting))
        released, self.waiting = (self.waiting, []) if len(self.waiting) == self.needed else ([], self.waiting)
        return Reply(released)


class SlotsRounds:
    __slots__ = ("at_work", "lr", "needed", "params", "record", "waiting")
    holds, takes_fraction, metrics = True, True, Rounds.metrics
    __init__, total, expect, apply_update = Plain.__init__, Plain.total, Rounds.expect, Rounds.apply_update

    def init(self, params, clients):
        self.params, self.waiting = params.copy(), []


def without(name):
    slots = tuple(slot for slot in SlotsRounds.__slots__ if slot != name)
    body = {key: value for key, value in vars(SlotsRounds).items() if key not in {"__dict__", *SlotsRounds.__slots__}}
    return type("Without", (), {**body, "__slots__": slots})


WithoutAtWork, WithoutRecord = without("at_work"), without("record")


class Property(Rounds):
    @property
    def at_work(self):
        return None


class Failing(Rounds):
    @property
    def takes_fraction(self):
        raise ValueError("no")


class Numbered(Rounds):
    at_work = None

    def __init__(self, lr, dtype=""):
        super().__init__(lr)
        self.dtype = dtype

    def apply_update(self, grad, client_id, timestamp):
        released = super().apply_update(grad, client_id, timestamp).released
        return Reply(np.array(released, self.dtype) if self.dtype else released)


class Fraction(Plain):
    def init(self, params, clients):
        super().init(params, clients)
        self.timestamp = 0.0

    def apply_update(self, grad, client_id, timestamp):
        super().apply_update(grad, client_id, timestamp)
        self.timestamp += 1
"""


@pytest.fixture
def outcome(small_yaml: Path, simulate: Callable[..., Result]) -> Callable[..., Any]:
    del small_yaml  # its folder is the current one
    Path("legal.py").write_text(MODULE, encoding="utf-8")
    return lambda name, **way: simulate({"server": {"name": f"legal:{name}", "lr": 0.1}, **way}).summary["digest"]


@pytest.mark.parametrize("path", ["snapshots", "hand"])
@pytest.mark.parametrize("name", ["Recursive", "Slots", "OnlySlots"])
def test_it_is_a_server_like_others(name: str, path: str, outcome: Callable[..., Any]) -> None:
    assert outcome(name, path=path) == outcome("Plain", path=path)


def test_a_timestamp_is_an_integer(outcome: Callable[..., Any]) -> None:
    with pytest.raises(SimulationError, match=r"timestamp: is 1\.0 after 0; it must be an integer$"):
        outcome("Fraction")


def test_a_server_with_slots_is_given_what_it_uses(outcome: Callable[..., Any]) -> None:
    way = {"clients": {"count": 6, "batch_size": 2, "fraction": 0.5}}
    assert outcome("SlotsRounds", **way) == outcome("Rounds", **way)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
@pytest.mark.parametrize("way", [
    {"clients": {"count": 4, "batch_size": 1}, "iterations": 40, "dispatcher": {
        "name": "clock", "compute": {"seconds": 1.5e8}}},  # time in nanoseconds times clients exceeds an int64
    {"clients": {"count": 130, "batch_size": 1}, "iterations": 270},
], ids=["a long time", "many clients"])  # fmt: skip
def test_ids_are_numbers_of_any_type(
    way: dict[str, Any], dtype: str, small_yaml: Path, simulate: Callable[..., Result]
) -> None:
    del small_yaml  # its folder is the current one
    Path("legal.py").write_text(MODULE, encoding="utf-8")
    server = {"name": "legal:Numbered", "lr": 0.1}
    plain, found = (simulate({"server": server | more, "events": True, **way}) for more in ({}, {"dtype": dtype}))
    assert found.events.equals(plain.events)
    assert found.summary["iterations"] == way["iterations"]
    assert found.summary["digest"] == plain.summary["digest"]


NOT_GIVEN = r"fredsim cannot set it \(AttributeError: .*\)"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("WithoutAtWork", rf"Without, at_work: {NOT_GIVEN}; if the class has __slots__, add 'at_work' to them$"),
        ("WithoutRecord", rf"Without, record: {NOT_GIVEN}; if the class has __slots__, add 'record' to them$"),
        ("Property", rf"Property, at_work: {NOT_GIVEN}"),
        ("Failing", r"Failing, takes_fraction: ValueError: no \(legal.py:"),
    ],
)
def test_a_server_that_cannot_be_given_it(name: str, says: str, outcome: Callable[..., Any]) -> None:
    with pytest.raises(SimulationError, match=says):
        outcome(name, clients={"count": 6, "batch_size": 2, "fraction": 0.5})
