"""A user's gates and compressors that break their contract: a message, never a traceback."""

from collections.abc import Callable
from pathlib import Path

import pytest

Refused = Callable[..., None]

FAULTY = """
import numpy as np


class Base:
    def init(self, *_):
        pass

    def compress(self, push, client, step):
        return push.copy(), 5

    def passes(self, step, client, statistics):
        return True


class Starts(Base):
    def init(self, *_):
        raise KeyError("start")


class Raises(Base):
    def passes(self, step, client, statistics):
        return 1 / 0


class Answers(Base):
    def passes(self, step, client, statistics):
        return 1


class Short(Base):
    def passes(self, step, client, statistics):
        return [True, False]


class Parts(Base):
    def passes(self, step, client, statistics):
        return np.array([True, False, False, True])


class Asks(Base):
    def passes(self, step, client, statistics):
        return statistics.mean() > 0.5


class Bare(Base):
    def compress(self, push, client, step):
        return push


class Double(Base):
    def compress(self, push, client, step):
        return push.astype(np.float64), 5


class Free(Base):
    def compress(self, push, client, step):
        return push, -1


class Exits(Base):
    def passes(self, step, client, statistics):
        raise SystemExit("closed")

    def compress(self, push, client, step):
        raise GeneratorExit


class Begins(Base):
    def init(self, *_):
        raise SystemExit(1)


class Overwrites(Base):
    def compress(self, push, client, step):
        push *= 0
        return push, 1


class Passes(Base):
    def compress(self, push, client, step):
        return push, 5


class Misses(Base):
    def compress(self, push, client):
        return push, 1

    def passes(self, step):
        return True


class Breaks(Base):
    def compress(self, push, client, step):
        raise ValueError("no room")
"""
MISTAKES = [
    ("push", "Starts", "Starts, init: KeyError: 'start' (faulty_gates.py:"),
    ("fetch", "Raises", "Raises, client 7, iteration 0, passes: ZeroDivisionError: division by zero (faulty_gates.py:"),
    ("push", "Answers", "Answers, client 7, iteration 0, passes: returned 1; it must return a bool, or a list of 4"),
    (
        "fetch",
        "Short",
        "Short, client 7, iteration 0, passes: returned [True, False]; it must return a bool, or a list",
    ),
    ("push", "Asks", "Asks, client 7, iteration 0, passes: uses statistics.mean; declare needs_statistics = True"),
    ("compress", "Starts", "Starts, init: "),
    ("compress", "Bare", "Bare, client 7, iteration 0, compress: returned ndarray; it must return (array, bytes)"),
    ("compress", "Double", "what compress returns: is float64 (1210,); it must be float32 (1210,)"),
    ("compress", "Free", "Free, client 7, iteration 0, compress: returned -1 bytes; it must be a positive integer"),
    ("push", "Exits", "Exits, client 7, iteration 0, passes: SystemExit: closed (faulty_gates.py:"),
    ("compress", "Exits", "Exits, client 7, iteration 0, compress: GeneratorExit: "),
    ("fetch", "Begins", "Begins, init: SystemExit: 1 (faulty_gates.py:"),
    (
        "compress",
        "Overwrites",
        "is read-only (faulty_gates.py:76); compress must leave the push as it is: return a new",
    ),
    ("compress", "Misses", "it must be compress(self, push, client, step)"),
    ("push", "Misses", "is passes(self, step) (faulty_gates.py:89); it must be passes(self, step, client, statistics)"),
    ("compress", "Breaks", "Breaks, client 7, iteration 0, compress: ValueError: no room (faulty_gates.py:"),
]


@pytest.mark.parametrize(("key", "name", "says"), MISTAKES)
def test_a_users_mistakes(key: str, name: str, says: str, small_yaml: Path, refused: Refused) -> None:
    small_yaml.with_name("faulty_gates.py").write_text(FAULTY, encoding="utf-8")
    spec = {"compress": f"compress={{name: 'faulty_gates:{name}'}}"}.get(key, f"dispatcher.{key}=faulty_gates:{name}")
    refused("run", small_yaml, spec, "--quiet", "--out", "results", says=(says,))


def test_a_users_gate_of_tensors_does_not_go_with_compression(small_yaml: Path, refused: Refused) -> None:
    small_yaml.with_name("faulty_gates.py").write_text(FAULTY, encoding="utf-8")
    overrides = ("dispatcher.push=faulty_gates:Parts", "compress={name: sign}")
    says = ("compress is given; a push that passes tensor by tensor cannot be compressed as one",)
    refused("run", small_yaml, *overrides, "--quiet", "--out", "results", says=says)
