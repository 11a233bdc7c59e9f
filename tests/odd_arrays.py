"""Users' classes that hand over odd arrays, at every place where fredsim takes an array from such a class.

A class is named by what it does: `Push__strided__fasgd` is a server derived from FASGD that passes `grad` on by
`super()`, strided. The values stay the same, so a run has the bits of the server itself, or is refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from fredsim.compressors import COMPRESSORS
from fredsim.numerics.rules import Rule
from fredsim.servers import SERVERS
from fredsim.servers.asgd import ASGD
from fredsim.servers.fasgd import FASGD
from tests.servers.variants import VARIANTS

Kind = type[Any]


class Tagged(np.ndarray[Any, np.dtype[np.float32]]):
    """A subclass that changes nothing."""


def in_record(array: Any) -> Any:
    """Return a field of an array of records: its elements lie 9 bytes apart, and most are not aligned."""
    records = np.zeros(len(array), np.dtype([("tag", "i1"), ("value", "f4"), ("more", "i4")]))
    records["value"] = array
    return records["value"]


def unaligned(array: Any) -> Any:
    memory = np.zeros(4 * len(array) + 1, np.uint8)
    found = memory[1:].view(np.float32)
    found[...] = array
    return found


def read_only(array: Any) -> Any:
    found = array.copy()
    found.flags.writeable = False
    return found


#: What may be done to an array (P,) without a change of its values.
ODD: dict[str, Callable[[Any], Any]] = {
    "copied": np.copy,
    "strided": lambda a: np.repeat(a, 2)[::2],
    "reversed": lambda a: a[::-1].copy()[::-1],
    "column": lambda a: np.stack([a, a + 1], axis=1)[:, 0],
    "rows": lambda a: np.asfortranarray(np.stack([a, a + 1]))[0],
    "inside": lambda a: np.concatenate([a[:3], a, a[:5]])[3:-5],
    "recorded": in_record,
    "unaligned": unaligned,
    "fixed": read_only,
    "tagged": lambda a: a.copy().view(Tagged),
    "wide": lambda a: a.astype(np.float64),
    "wide_strided": lambda a: np.repeat(a.astype(np.float64), 3)[::3],
    "swapped": lambda a: a.astype(a.dtype.newbyteorder()),
    "long": lambda a: a.astype(np.longdouble),
    "series": lambda a: pd.Series(a.copy()),
    "listed": lambda a: a.tolist(),
    "matrix": lambda a: a[None],
    "complex": lambda a: a.astype(np.complex64),
    "objects": lambda a: a.astype(object),
    "masked": lambda a: np.ma.MaskedArray(a.copy(), np.arange(len(a)) % 7 == 0),
    "short": lambda a: a[:10].copy(),
    "longer": lambda a: np.concatenate([a, a]),
    "single": lambda a: a[:1].copy(),
    "scalar": lambda a: a[0],
    "nothing": lambda a: None,
    "text": lambda a: a.astype(str),
}
#: Those that are no array of P real numbers: they must be refused.
NONSENSE = {"matrix", "complex", "objects", "masked", "short", "longer", "single", "scalar", "nothing", "text"}


def alone(odd: Callable[[Any], Any]) -> Kind:
    class Alone:
        """A server without a base class, whose parameters are odd."""

        def __init__(self, lr: float) -> None:
            self.lr = np.float32(lr)

        def init(self, params: Any, clients: int) -> None:
            self.plain = params.copy()
            self.params = odd(self.plain)

        def apply_update(self, grad: Any, client_id: int, timestamp: int) -> None:
            self.plain -= self.lr * grad
            self.params = odd(self.plain)

    return Alone


def fetched(odd: Callable[[Any], Any]) -> Kind:
    class Fetched(ASGD):
        def fetch(self, client_id: int) -> Any:
            return odd(self.params)

    return Fetched


def averaged(odd: Callable[[Any], Any]) -> Kind:
    class Averaged(ASGD):
        @property
        def averaged_params(self) -> Any:
            return odd(self.params)

    return Averaged


def deviation(odd: Callable[[Any], Any]) -> Kind:
    class Deviation(FASGD):
        @property
        def v(self) -> Any:
            return odd(self.arrays["v"])

    return Deviation


def push(odd: Callable[[Any], Any], base: Kind) -> Kind:
    class Push(base):  # type: ignore[misc]
        def apply_update(self, grad: Any, client_id: int, timestamp: int) -> Any:
            return super().apply_update(odd(grad), client_id, timestamp)

    return Push


def begun(odd: Callable[[Any], Any], base: Kind) -> Kind:
    class Begun(base):  # type: ignore[misc]
        def begins(self, client_id: int, params: Any, timestamp: int) -> None:
            super().begins(client_id, odd(params), timestamp)

    return Begun


def replaced(odd: Callable[[Any], Any], base: Kind) -> Kind:
    class Replaced(base):  # type: ignore[misc]
        """Replaces the parameters that fredsim's class has made, before a push."""

        def apply_update(self, grad: Any, client_id: int, timestamp: int) -> Any:
            self.params: Any = odd(self.params)
            return super().apply_update(grad, client_id, timestamp)

    return Replaced


def started(odd: Callable[[Any], Any], base: Kind) -> Kind:
    class Started(base):  # type: ignore[misc]
        """Replaces them at the start, on which the fastest paths rely."""

        def init(self, params: Any, clients: int, layout: Any = None) -> None:
            super().init(params, clients, layout)
            self.params: Any = odd(self.params)
            if hasattr(self, "arrays"):
                self.arrays: Any = {name: odd(array) for name, array in self.arrays.items()}

    return Started


def given(odd: Callable[[Any], Any], base: Kind) -> Kind:
    class Given(base):  # type: ignore[misc]
        def init(self, params: Any, clients: int, layout: Any = None) -> None:
            super().init(odd(params), clients, layout)

    return Given


def operated(odd: Callable[[Any], Any]) -> Kind:
    def average(theta: Any, mean: Any, g: Any, alpha: Any) -> Any:
        return theta - alpha * g, mean + g

    class Operated(ASGD):
        """Uses the backend's operations itself."""

        metrics = {"mean": "mean", "finite": "sum"}  # noqa: RUF012
        extra = Rule(average, state=("mean",))

        def init(self, params: Any, clients: int, layout: Any = None) -> None:
            super().init(params, clients, layout)
            self.sums = self.operations.zeros(len(params))
            self.copies = self.operations.zeros(len(params))
            self.step = self.operations.compile_rule(self.extra)

        def apply_update(self, grad: Any, client_id: int, timestamp: int) -> Any:
            self.record("mean", self.operations.mean(odd(grad)))
            self.record("finite", self.operations.finite(odd(grad)))
            self.operations.duplicate(odd(grad), self.copies)
            self.record("finite", self.operations.duplicate_finite(odd(grad), self.copies))
            self.step(self.params, self.sums, odd(self.copies), 0, len(self.params), np.float64(self.rate()))
            self.timestamp += 1

    return Operated


def sent(odd: Callable[[Any], Any]) -> Kind:
    class Sent:
        """A compressor that sends all, oddly."""

        def init(self, layout: Any, streams: Any) -> None:
            self.size = 4 * layout.size

        def compress(self, push: Any, client: int, step: int) -> tuple[Any, int]:
            return odd(push), self.size

    return Sent


def compressed(odd: Callable[[Any], Any], base: Kind) -> Kind:
    class Compressed(base):  # type: ignore[misc]
        def compress(self, push: Any, client: int, step: int) -> tuple[Any, int]:
            decoded, size = super().compress(odd(push), client, step)
            return odd(np.asarray(decoded)), size

    return Compressed


OF_SERVERS: dict[str, Callable[[Callable[[Any], Any], Kind], Kind]] = {
    "Push": push, "Begun": begun, "Replaced": replaced, "Started": started, "Given": given,
}  # fmt: skip
ALONE: dict[str, Callable[[Callable[[Any], Any]], Kind]] = {
    "Alone": alone, "Fetched": fetched, "Averaged": averaged, "Deviation": deviation, "Operated": operated,
}  # fmt: skip
_made: dict[str, Kind] = {}


def __getattr__(name: str) -> Kind:
    """Return the class of this name."""
    if name in _made:
        return _made[name]
    what, _, rest = name.partition("__")
    how, _, base = rest.partition("__")
    if how not in ODD:
        raise AttributeError(name)
    if what in OF_SERVERS:
        made = OF_SERVERS[what](ODD[how], SERVERS[base])
    elif what in ALONE:
        made = ALONE[what](ODD[how])
    elif what == "Sent":
        made = sent(ODD[how])
    elif what == "Compressed":
        made = compressed(ODD[how], COMPRESSORS[base])
    else:
        raise AttributeError(name)
    made.__module__, made.__qualname__ = __name__, name
    return _made.setdefault(name, made)


def case(number: int) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Return case `number`: the changes of an experiment, those of one with the same bits, and if it is nonsense."""
    rng = random.Random(number)
    how, module = rng.choice(list(ODD)), "tests.odd_arrays"
    what = rng.choice([*OF_SERVERS, *OF_SERVERS, *ALONE, "Sent", "Compressed"])
    usable = [name for name, one in VARIANTS.items() if not {"average", "inner"} & one.keys()]
    spec = dict(VARIANTS[rng.choice(usable)])
    usual: dict[str, Any] = {"server": spec}
    if what in OF_SERVERS:
        if what == "Begun" and not hasattr(SERVERS[spec["name"]], "begins"):
            spec = usual["server"] = {"name": "dcasgd", "lr": 0.01}
        odd: dict[str, Any] = {"server": spec | {"name": f"{module}:{what}__{how}__{spec['name']}"}}
    elif what in ALONE:
        base = "fasgd" if what == "Deviation" else "asgd"
        usual = {"server": {"name": base, "lr": 0.05}}
        odd = {"server": {"name": f"{module}:{what}__{how}", "lr": 0.05}}
        if what == "Deviation":
            gate = {"push": {"bandwidth_aware": {"c": 0.01}}}
            usual, odd = usual | {"dispatcher": gate}, odd | {"dispatcher": gate}
    elif what == "Sent":
        odd = usual | {"compress": {"name": f"{module}:Sent__{how}"}}
    else:
        inner: dict[str, Any] = rng.choice(
            [{"name": "ternary"}, {"name": "top_k", "k": 0.2}, {"name": "sign"}, {"name": "qsgd"}]
        )
        usual |= {"compress": inner}
        odd = usual | {"compress": inner | {"name": f"{module}:Compressed__{how}__{inner['name']}"}}
    return odd, usual, how in NONSENSE
