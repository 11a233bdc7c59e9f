"""Gates: whether one copy, pushed or fetched, passes. The initial hand-out of parameters passes none.

A gate is a small object: statistics in, a draw from a named stream out. A user's own needs `__init__(**hyper)`,
`init(clients, tensors, streams, stream)` and `passes(step, client, statistics)`, which returns a bool, or one a
tensor; in YAML: push: {"mymodule:MyGate": {...}}.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fredsim.errors import nearest
from fredsim.hyper import Configurable, HyperParameters, NonNegative, Positive, PositiveInt
from fredsim.numerics.streams import Stream, Streams

__all__ = ["GATES", "Always", "BandwidthAware", "Budget", "Every", "Gate", "Statistics"]


class Statistics(Protocol):
    """What a server knows of its gradients' deviation v (FASGD's)."""

    def mean(self) -> float:
        """Return v̄, the mean of v over all parameters: 1 before the first push."""
        ...

    def means(self) -> Sequence[float]:
        """Return v̄ of each tensor, in the layout's order."""
        ...


class Gate(Configurable):
    """Base of the gates that come with fredsim."""

    idea: ClassVar[str] = ""
    #: Whether the gate asks for v̄, which only some servers have.
    needs_statistics: ClassVar[bool] = False
    #: The hyper-parameter that may stand alone: `push: {every: 4}`.
    short: ClassVar[str] = ""

    def init(self, clients: int, tensors: Sequence[int], streams: Streams, stream: Stream) -> None:
        """Start over: ids of clients are 0 … clients − 1, `tensors` the bytes of each tensor."""
        self._streams = streams
        self._stream = stream
        self._ahead: dict[tuple[int, int], float] = {}

    def passes(self, step: int, client: int, statistics: Statistics) -> bool | Sequence[bool]:
        """Return whether this client's copy passes at iteration `step`: for all of it, or tensor by tensor."""
        raise NotImplementedError

    def look_ahead(self, begin: int, clients: Sequence[int]) -> None:
        """Draw element 0 for the clients of iterations `begin` on: one draw alone costs as much as a hundred."""
        steps = np.arange(begin, begin + len(clients))
        draws = self._streams.uniform(self._stream, 0, steps, np.array(clients)).tolist()
        self._ahead = {at: r for at, r in self._ahead.items() if at[0] >= begin - len(clients)}
        self._ahead.update(zip(zip(steps.tolist(), clients, strict=True), draws, strict=True))

    def bounds(self, begin: int, clients: Sequence[int]) -> NDArray[np.float64] | None:
        """Return bounds (n, 2) of v̄ ≥ 0 for the copies of iterations `begin` on, which have been looked ahead at.

        Below the first a copy is sure to be refused, above the second it passes; −∞ and ∞ where nothing is known. None
        where more than v̄ decides.
        """
        return None

    def uniform(self, element: int, step: int, client: int) -> float:
        """Return a draw in [0, 1)."""
        drawn = None if element else self._ahead.get((step, client))
        return (self._streams.word(self._stream, element, step, client) >> 8) * 2.0**-24 if drawn is None else drawn


class Always(Gate):
    """Everything passes."""

    idea = "everything passes"

    def passes(self, step: int, client: int, statistics: Statistics) -> bool:
        """Return True."""
        return True


class Every(Gate):
    """Every k-th of a client's copies passes: the k-th, the 2k-th, …."""

    idea = "every k-th of a client's copies passes"
    short = "k"
    state_names = ("_counts",)

    class Hyper(HyperParameters):
        """`k`."""

        k: PositiveInt
        """Of a client's copies every k-th passes."""

    def init(self, clients: int, tensors: Sequence[int], streams: Streams, stream: Stream) -> None:
        """Start counting."""
        super().init(clients, tensors, streams, stream)
        self._counts: dict[int, int] = {}

    def passes(self, step: int, client: int, statistics: Statistics) -> bool:
        """Count the client's copy."""
        count = self._counts.get(client, 0) + 1
        self._counts[client] = count % self.hyper.k
        return bool(count == self.hyper.k)


class BandwidthAware(Gate):
    """A copy passes iff r < 1/(1 + c/(v̄ + ε)), by the model's v̄ or each tensor by its own.

    Odena 2016, arXiv:1601.04033, eq 9; per tensor is its future work. Where v̄ is infinite all passes, where it is NaN
    nothing does.
    """

    idea = "pass with probability 1/(1 + c/(v + eps)), v the mean deviation of the gradients"
    needs_statistics = True

    class Hyper(HyperParameters):
        """`c` 0 lets everything pass; `per` tensor is the paper's future work."""

        c: NonNegative
        """How much is held back; 0 lets everything pass."""
        eps: Positive = 1e-4
        """ε, added to v̄."""
        per: Literal["model", "tensor"] = "model"
        """One draw for a whole copy, or one a tensor by its own v̄."""

    def passes(self, step: int, client: int, statistics: Statistics) -> bool | Sequence[bool]:
        """Draw; a tensor's draw is the element of its number."""
        if self.hyper.per == "model":
            return self._passes(0, step, client, statistics.mean())
        return [self._passes(number, step, client, v) for number, v in enumerate(statistics.means())]

    def bounds(self, begin: int, clients: Sequence[int]) -> NDArray[np.float64] | None:
        """Return bounds a millionth around where r = 1/(1 + c/(v̄ + ε)); where they do not hold, none."""
        if self.hyper.per == "tensor":
            return None
        r = np.array([self.uniform(0, begin + i, client) for i, client in enumerate(clients)])
        with np.errstate(all="ignore"):
            middle = self.hyper.c * r / (1.0 - r)
            low, high = (middle * factor - self.hyper.eps for factor in (1 - 1e-6, 1 + 1e-6))
            # What passes grows with v̄ step by step, rounding included: what holds at a bound holds beyond it.
            low[(low < 0) | self._below(r, np.maximum(low, 0))] = -np.inf
            high = np.maximum(high, 0)
            high[~self._below(r, high)] = np.inf
        return np.stack([low, high], axis=1)

    def _passes(self, element: int, step: int, client: int, v: float) -> bool:
        return bool(self._below(self.uniform(element, step, client), v))

    def _below(self, r: Any, v: Any) -> Any:
        """Return whether r < 1/(1 + c/(v + ε)), for numbers or arrays of them."""
        return r < 1.0 / (1.0 + self.hyper.c / (v + self.hyper.eps))


class Budget(Gate):
    """So many bytes an iteration on average, shared among tensors in proportion to their v̄ + ε.

    Tensor t passes with probability min(1, s·(v̄_t + ε) ÷ its bytes), s such that B bytes are spent: a tensor whose
    share exceeds it passes always, and the others share what it leaves. The future work of Odena 2016; ε, as in its
    eq 9, is what lets a tensor pass whose deviation is still 0.

    Tensors of infinite v̄ share all bytes, the same for each; the others share what these leave. A tensor whose v̄ is
    NaN, or whose v̄ + ε is not above 0, never passes.
    """

    idea = "so many bytes an iteration, shared among tensors in proportion to their deviation"
    needs_statistics = True
    short = "bytes"

    class Hyper(HyperParameters):
        """`bytes` an iteration; `eps` is added to each tensor's deviation."""

        bytes: Positive
        """The bytes to spend an iteration, on average."""
        eps: Positive = 1e-4
        """ε, added to each tensor's v̄."""

    def init(self, clients: int, tensors: Sequence[int], streams: Streams, stream: Stream) -> None:
        """Note what each tensor takes."""
        super().init(clients, tensors, streams, stream)
        self._tensors = tensors

    def passes(self, step: int, client: int, statistics: Statistics) -> Sequence[bool]:
        """Draw for each tensor."""
        weights = {number: v + self.hyper.eps for number, v in enumerate(statistics.means())}
        infinite = {number: 1.0 for number, weight in weights.items() if weight == math.inf}
        finite = {number: weight for number, weight in weights.items() if 0 < weight < math.inf}
        some, left = self._share(float(self.hyper.bytes), infinite, step, client)
        others, _ = self._share(left, finite, step, client)
        return [number in some or number in others for number in weights]

    def _share(self, left: float, weights: dict[int, float], step: int, client: int) -> tuple[set[int], float]:
        """Draw for these tensors, which share so many bytes; return which pass, and the bytes that they leave."""
        sizes, total, passing = self._tensors, sum(weights.values()), set[int]()
        for number in sorted(weights, key=lambda number: sizes[number] / weights[number]):
            if left * weights[number] < total * sizes[number]:
                break
            passing.add(number)
            left -= sizes[number]
            total -= weights[number]
        else:
            return passing, left
        for number, weight in weights.items():
            if number not in passing and self.uniform(number, step, client) * total * sizes[number] < left * weight:
                passing.add(number)
        return passing, 0.0


GATES: dict[str, type[Gate]] = {
    "always": Always,
    "every": Every,
    "bandwidth_aware": BandwidthAware,
    "budget": Budget,
}


def spelled_out(spec: Any) -> tuple[str, dict[str, Any]]:
    """Return the name and hyper-parameters of a gate as YAML gives it: a name, or {name: value or mapping}.

    Raises ValueError for another shape.
    """
    if isinstance(spec, str):
        return spec, {}
    if not isinstance(spec, dict) or len(spec) != 1:
        raise ValueError(f"is {spec!r}; it must be always, or one name with its hyper-parameters, such as {{every: 4}}")
    ((name, hyper),) = spec.items()
    if isinstance(hyper, dict):
        return name, hyper
    short = GATES[name].short if name in GATES else ""
    if not short:
        hint = "" if name in GATES else nearest(name, GATES)
        raise ValueError(f"is {spec!r}; the hyper-parameters of {name} must be a mapping{hint}")
    return name, {short: hyper}
