"""Users' classes that give odd numbers, at every place where fredsim takes a number from such a class.

A class is named by where, and what: `choose__time` is a dispatcher that chooses a NumPy time span.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from fredsim.servers import ASGD, Reply
from tests.made_names import made_names

__all__ = ["GIVEN", "PLACES", "SAME", "changes"]

Give = Callable[[int], Any]


class Mute:
    """An object that cannot be shown."""

    def __repr__(self) -> str:
        raise SystemExit("no text")


class Index:
    """An object that counts as an integer, but is none."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


#: What is given instead of a number. Those of `SAME` are that number, or are refused; all others must be refused.
GIVEN: dict[str, Give] = {
    "plain": int,
    "small": np.int8,
    "unsigned": np.uint64,
    "time": lambda value: np.timedelta64(value, "s"),
    "array": np.array,
    "list": lambda value: np.array([value]),
    "masked": lambda value: np.ma.MaskedArray(value, True),
    "text": str,
    "decimal": Decimal,
    "fraction": Fraction,
    "complex": complex,
    "index": Index,
    "huge": lambda _: 10**30,
    "nothing": lambda _: None,
    "mute": lambda _: Mute(),
}
SAME = {"plain", "small", "unsigned", "array"}


def _choose(give: Give) -> Any:
    class Chooses:
        def init(self, clients: int, streams: Any) -> None:
            self.clients = clients

        def choose(self, step: int) -> Any:
            return give(step % self.clients)

        def hold(self, client: int) -> None: ...

        def release(self, client: int) -> None: ...

    return Chooses


def _passes(give: Give) -> Any:
    class Passes:
        def init(self, *given: Any) -> None: ...

        def passes(self, step: int, client: int, statistics: Any) -> Any:
            return True if give is int else give(1)

    return Passes


def _size(give: Give) -> Any:
    class Sizes:
        def init(self, layout: Any, streams: Any) -> None: ...

        def compress(self, push: Any, client: int, step: int) -> tuple[Any, Any]:
            return push, give(100)

    return Sizes


class Plain:
    """ASGD."""

    def __init__(self, lr: float) -> None:
        self.lr = np.float32(lr)

    def init(self, params: Any, clients: int) -> None:
        self.params, self.clients, self.waiting = params.copy(), clients, list[int]()

    def apply_update(self, grad: Any, client_id: int, timestamp: int) -> Any:
        self.params -= self.lr * grad


def _timestamp(give: Give) -> Any:
    class Stamps(Plain):
        count, timestamp = 0, give(0)

        def apply_update(self, grad: Any, client_id: int, timestamp: int) -> None:
            super().apply_update(grad, client_id, timestamp)
            self.count += 1
            self.timestamp = give(self.count)

    return Stamps


def _bytes(give: Give) -> Any:
    class Weighs(Plain):
        def bytes_pushed(self) -> Any:
            return give(100)

    return Weighs


def _record(give: Give) -> Any:
    class Records(Plain):
        metrics = {"number": "mean"}  # noqa: RUF012
        record: Callable[[str, Any], None]

        def apply_update(self, grad: Any, client_id: int, timestamp: int) -> None:
            super().apply_update(grad, client_id, timestamp)
            self.record("number", give(2))

    return Records


def _reply(give: Give) -> Any:
    class Replies(Plain):
        holds = True

        def apply_update(self, grad: Any, client_id: int, timestamp: int) -> Any:
            super().apply_update(grad, client_id, timestamp)
            return Reply((give(client_id),))

    return Replies


def _coefficients(give: Give) -> Any:
    class Steps(ASGD):  # type: ignore[misc]
        def coefficients(self, t: int, staleness: int) -> Any:
            return (give(1),)

    return Steps


MADE: dict[str, Callable[[Give], Any]] = {
    "choose": _choose, "passes": _passes, "size": _size, "timestamp": _timestamp, "bytes": _bytes, "record": _record,
    "reply": _reply, "coefficients": _coefficients,
}  # fmt: skip
PLACES = (*MADE,)
#: A class or function of a name is made when it is asked for.
__getattr__ = made_names(__name__, lambda place, what: MADE[place](GIVEN[what]))


def changes(place: str, what: str) -> dict[str, Any]:
    """Return the changes of an experiment in which a class gives something at a place."""
    name = f"{__name__}:{place}__{what}"
    usual = {"server": {"name": "asgd", "lr": 0.05}}
    found: dict[str, dict[str, Any]] = {
        "choose": usual | {"dispatcher": {"name": name}}, "passes": usual | {"dispatcher": {"push": {name: {}}}},
        "size": usual | {"compress": {"name": name}},
    }  # fmt: skip
    return found.get(place, {"server": {"name": name, "lr": 0.05}})
