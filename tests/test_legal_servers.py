"""Servers that are written unlike others, and keep to the contract: they give what a plain one gives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fredsim.errors import SimulationError
from fredsim.runs.folder.results import Result

MODULE = """
import numpy as np


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
