"""The contract of a gate, which decides whether a copy, that is, a push or a fetch, passes or is dropped.

It may decide by statistics of the server, and by draws from a named random stream. A user's own gate needs
`__init__(**hyper)`, `init(clients, tensors, streams, stream)` and `passes(step, client, statistics)`, which returns a
bool, or a list of one per tensor; in YAML: push: {"mymodule:MyGate": {...}}.
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
    """What a server knows about the deviation v of its gradients (FASGD's v)."""

    def mean(self) -> float:
        """Return v̄, the mean of v over all parameters: 1 before the first push."""
        ...

    def means(self) -> Sequence[float]:
        """Return v̄ of each tensor, in the order of the layout."""
        ...


class Gate(Configurable):
    """Base of the gates that come with fredsim."""

    idea: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    #: Whether the gate asks for v̄, which only some servers have.
    needs_statistics: ClassVar[bool] = False
    #: The hyper-parameter that may be given without its name: `push: {every: 4}`.
    short: ClassVar[str] = ""

    def init(self, clients: int, tensors: Sequence[int], streams: Streams, stream: Stream) -> None:
        """Start over: ids of clients are 0 … clients − 1, `tensors` the bytes of each tensor."""
        self._streams = streams
        self._stream = stream
        self._ahead: dict[tuple[int, int], float] = {}

    def passes(self, step: int, client: int, statistics: Statistics) -> bool | Sequence[bool]:
        """Return whether this client's copy passes, as a whole or tensor by tensor.

        `step` is the iteration of a fetch; for a push, how many gradients were done before.
        """
        raise NotImplementedError

    def look_ahead(self, begin: int, clients: Sequence[int]) -> None:
        """Draw element 0 for the clients of iterations `begin` on: one draw costs as much as a hundred together."""
        if not hasattr(self, "_ahead"):  # a user's subclass, whose `init` does not call this one's
            return
        steps = np.arange(begin, begin + len(clients))
        draws = self._streams.uniform(self._stream, 0, steps, np.array(clients)).tolist()
        self._ahead = {at: r for at, r in self._ahead.items() if at[0] >= begin - len(clients)}
        self._ahead.update(zip(zip(steps.tolist(), clients, strict=True), draws, strict=True))

    def bounds(self, begin: int, clients: Sequence[int]) -> NDArray[np.float64] | None:
        """Return bounds (n, 2) on v̄ ≥ 0 for the copies of iterations `begin` on; called after `look_ahead` for them.

        If v̄ is below the first bound, a copy is certain to be refused; if it is above the second, it passes; −∞ and ∞
        if nothing is known. None if the decision depends on more than v̄.
        """
        return None

    def uniform(self, element: int, step: int, client: int) -> float:
        """Return a uniform draw in [0, 1)."""
        drawn = None if element else self._ahead.get((step, client))
        return (self._streams.word(self._stream, element, step, client) >> 8) * 2.0**-24 if drawn is None else drawn
