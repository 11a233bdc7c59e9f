"""Coefficients of a user's rule follow from timestamp and staleness, whatever they try to see: one result."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fredsim.errors import FredsimError
from fredsim.runs.folder.results import Result
from tests.servers.paths import BASE, check_same

OWN = """
# Coefficients that read what they must not.

class ReadsState(Base):
    def coefficients(self, t, staleness):
        return (np.float32(self.rate(t) / (1 + np.abs(self.arrays["mean"]).mean())),)


class ReadsParameters(Base):
    def coefficients(self, t, staleness):
        return (np.float32(self.rate(t) / (1 + abs(self.params[0]))),)


class ReadsLate(Base):
    def coefficients(self, t, staleness):
        return (np.float32(self.rate(t) / (1 + (t > 20 and abs(self.params[0])))),)


class ReadsAView(Base):
    def init(self, params, clients, layout=None):
        super().init(params, clients, layout)
        self.mine = {"first": self.arrays["mean"][:10]}

    def coefficients(self, t, staleness):
        return (np.float32(self.rate(t) / (1 + abs(self.mine["first"].sum()))),)


# Coefficients that may be formed ahead, but only one by one and in order.

class Counts(Base):
    calls = 0

    def coefficients(self, t, staleness):
        self.calls += 1
        return (np.float32(self.rate(t) / self.calls),)


class MixesPushes(Base):
    def coefficients(self, t, staleness):
        return (np.float32(self.rate(t) / (1 + np.max(staleness))),)


class ReadsItsTimestamp(Base):
    def coefficients(self, t, staleness):
        return (np.float32(self.rate() / (1 + self.timestamp)),)


# Ways around: what they lead to never changes.

class Watches(Base):
    def coefficients(self, t, staleness):
        return (np.float32(self.rate(t) / (1 + 100 * abs(self.seen()))),)


class Box:
    def __init__(self, array):
        self.array = array


class ThroughAnObject(Watches):
    def init(self, params, clients, layout=None):
        super().init(params, clients, layout)
        self.box = Box(self.arrays["mean"])

    def seen(self):
        return self.box.array.mean()


class ThroughAFunction(Watches):
    def init(self, params, clients, layout=None):
        super().init(params, clients, layout)
        mean = self.arrays["mean"]
        self.level = lambda: mean.mean()

    def seen(self):
        return self.level()


class ThroughAMethod(Watches):
    def init(self, params, clients, layout=None):
        super().init(params, clients, layout)
        self.largest = self.params.max

    def seen(self):
        return self.largest()


class ThroughTheClass(Watches):
    shared = {}

    def init(self, params, clients, layout=None):
        super().init(params, clients, layout)
        type(self).shared["params"] = self.params

    def seen(self):
        return self.shared["params"].mean()


class ThroughMemory(Watches):
    def init(self, params, clients, layout=None):
        super().init(params, clients, layout)
        self.memory = memoryview(self.params)

    def seen(self):
        return sum(self.memory[100:110])


# What is rounded to float32 once, and what is no number.

class Natural(Base):
    def coefficients(self, t, staleness):
        return (self.rate(t) / np.sqrt(1 + t),)


def two(theta, g, a, b):
    return theta - (a * b) * g


class Floats(Base):
    rule = Rule(two)

    def coefficients(self, t, staleness):
        return 0.1, 1 / 3


class Integers(Floats):
    def coefficients(self, t, staleness):
        return t + 1, np.int64(16777217)


class Arrays(Floats):
    def coefficients(self, t, staleness):
        return [np.array(0.1), np.where(staleness > 2, 0.2, 1 / 3)]


class Huge(Floats):
    def coefficients(self, t, staleness):
        return 0.1, 10**400


class Complex(Floats):
    def coefficients(self, t, staleness):
        return 0.1, 1j


class Vector(Floats):
    def coefficients(self, t, staleness):
        return 0.1, np.ones(2)


class Text(Floats):
    def coefficients(self, t, staleness):
        return 0.1, "0.1"


class NotANumber(Floats):
    def coefficients(self, t, staleness):
        return 0.1, np.nan if t > 20 else 0.1


class DivergesBefore(Floats):
    def coefficients(self, t, staleness):
        return 3e38 if t == 20 else 0.1, 3e38 if t == 20 else 0.1 if t < 24 else np.nan


class ReadsByName(Base):
    def coefficients(self, t, staleness):
        return (self.mean.max(),)


class TakesNoStaleness(Base):
    def coefficients(self, t):
        return (np.float32(0.1),)


class Overflows(Base):
    def coefficients(self, t, staleness):
        return (1e39 if t == 25 else np.float32(self.rate(t)),)


class OnlyOne(Floats):
    def coefficients(self, t, staleness):
        return (0.1,)


class NoTuple(Floats):
    def coefficients(self, t, staleness):
        return 0.1


class Array(Floats):
    def coefficients(self, t, staleness):
        return np.ones(2, np.float32)


class Fails(Floats):
    @property
    def level(self):
        return self.nowhere

    def coefficients(self, t, staleness):
        return 0.1, self.level


# A word that does not hold is not taken.

def kept(theta, s, g, alpha):
    s = 0.5 * s + g * g
    return theta - alpha * g / s, s


class KeepsNot(Base):
    rule = Rule(kept, state=("s",), zero_keeps=True)


def decaying(theta, g, alpha, decay):
    return theta - alpha * (g + decay * theta)


class DecaysLate(Base):
    rule = Rule(decaying, zero_keeps=True)

    def coefficients(self, t, staleness):
        return np.float32(self.rate(t)), np.float32(0.1 if t >= 20 else 0.0)


class DecaysWhenStale(DecaysLate):
    def coefficients(self, t, staleness):
        return np.float32(self.rate(t)), np.float32(0.1 if staleness >= 5 else 0.0)


class NotAStatistic(Base):
    deviation = "w"


class MakesItsOwn(Base):
    def apply_update(self, grad, client_id, timestamp):
        self.size = np.float32(1) + np.abs(self.arrays["mean"]).max()
        super().apply_update(grad, client_id, timestamp)

    def coefficients(self, t, staleness):
        return (np.float32(self.rate(t) / self.size / (1 + abs(self.params[0]))),)
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_coefficients.py").write_text(BASE + OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


Simulate = Callable[..., Result]
WAYS: list[dict[str, Any]] = [
    {"path": "snapshots", "window": 1},
    {},
    {"path": "hand"},
    {"path": "hand", "evaluation": {"every": 60}},
    {"path": "fused"},
    {"backend": "numpy"},
]
READS = "follow from timestamp and staleness alone"


def run_of(server: str) -> dict[str, Any]:
    return {"server": {"name": f"own_coefficients:{server}", "lr": 0.05}, "iterations": 60, "evaluation": {"every": 7}}


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ("ReadsState", f"reads self.arrays; coefficients {READS}"),
        ("ReadsParameters", "reads self.params; "),
        ("ReadsLate", "reads self.params; "),
        ("ReadsAView", "reads self.mine; "),
        ("Huge", "b is 1000"),
        ("Complex", "b is 1j; it must be a number"),
        ("Vector", "b is array([1., 1.]); it must be a number"),
        ("Text", "b is '0.1'; it must be a number"),
        ("NotANumber", "update 22 (timestamp 21), coefficients: b is nan; it must be a number, finite in float32"),
        ("OnlyOne", "returned (0.1,); the rule takes a tuple of 2 (a, b)"),
        ("NoTuple", "returned 0.1; the rule takes a tuple of 2 (a, b)"),
        ("Array", "returned array([1., 1.], dtype=float32); the rule takes a tuple of 2 (a, b)"),
        ("ReadsByName", "ReadsByName, coefficients: reads self.mean; "),
        ("ReadsByName", "give the class an apply_update (own_coefficients.py:"),
        ("TakesNoStaleness", "coefficients(self, t) (own_coefficients.py:"),
        ("TakesNoStaleness", "; it must be coefficients(self, t, staleness)"),
        ("Overflows", "update 26 (timestamp 25), coefficients: alpha is 1e+39; it must be a number, finite in float32"),
        ("Fails", "has no attribute 'nowhere'"),
        ("NotAStatistic", "server.name: NotAStatistic has deviation = 'w'; it must name an array of the rule's state"),
    ],
)
def test_refused_everywhere(server: str, says: str, simulate: Simulate) -> None:
    for way in [{"path": "snapshots"}, *WAYS]:
        with pytest.raises(FredsimError) as caught:
            simulate(run_of(server) | way)
        assert says in str(caught.value), way


def test_what_happens_before_a_push_that_has_none(simulate: Simulate) -> None:
    """A run that diverges at the twenty-first push never comes to the twenty-fifth."""
    for way in WAYS:
        assert simulate(run_of("DivergesBefore") | way).summary["status"] == "diverged", way


@pytest.mark.parametrize(
    "server",
    [
        "Counts", "MixesPushes", "ReadsItsTimestamp",
        "ThroughAnObject", "ThroughAFunction", "ThroughAMethod", "ThroughTheClass", "ThroughMemory",
        "Natural", "Floats", "Integers", "Arrays", "KeepsNot", "DecaysLate", "DecaysWhenStale",
    ],
)  # fmt: skip
def test_one_result(server: str, simulate: Simulate) -> None:
    reference = simulate(run_of(server) | {"path": "snapshots"})
    for way in WAYS:
        found = simulate(run_of(server) | way)
        assert found.summary["digest"] == reference.summary["digest"], way
        if "evaluation" not in way:
            check_same(reference, found)


def test_an_update_of_its_own_may_use_all(simulate: Simulate) -> None:
    """Such a class is never called ahead."""
    reference = simulate(run_of("MakesItsOwn"))
    assert reference.summary["path"] == "hand"
    assert reference.summary["digest"] != simulate(run_of("Base")).summary["digest"]
    for way in ({"window": 1}, {"backend": "numpy"}):
        check_same(reference, simulate(run_of("MakesItsOwn") | way))
