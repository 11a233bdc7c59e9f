"""The contract of a gate: whether one copy, pushed or fetched, passes.

A gate is a small object: statistics in, a draw from a named stream out. A user's own needs `__init__(**hyper)`,
`init(clients, tensors, streams, stream)` and `passes(step, client, statistics)`, which returns a bool, or one a
tensor; in YAML: push: {"mymodule:MyGate": {...}}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fredsim.hyper import Configurable
from fredsim.numerics.streams import Stream, Streams

__all__ = ["Gate", "Statistics"]


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
    citation: ClassVar[str] = ""
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
        if not hasattr(self, "_streams"):  # of a user's own, whose `init` does without this one's
            return
        steps = np.arange(begin, begin + len(clients))
        draws = self._streams.uniform(self._stream, 0, steps, np.array(clients)).tolist()
        self._ahead = {at: r for at, r in self._ahead.items() if at[0] >= begin - len(clients)}
        self._ahead.update(zip(zip(steps.tolist(), clients, strict=True), draws, strict=True))

    def bounds(self, begin: int, clients: Sequence[int]) -> NDArray[np.float64] | None:
        """Return bounds (n, 2) of v̄ ≥ 0 for the copies of iterations `begin` on, after `look_ahead` to them.

        Below the first a copy is sure to be refused, above the second it passes; −∞ and ∞ where nothing is known. None
        where more than v̄ decides.
        """
        return None

    def uniform(self, element: int, step: int, client: int) -> float:
        """Return a draw in [0, 1)."""
        drawn = None if element else self._ahead.get((step, client))
        return (self._streams.word(self._stream, element, step, client) >> 8) * 2.0**-24 if drawn is None else drawn
