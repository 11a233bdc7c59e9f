"""Clients differ in how likely they are to finish next, and being chosen may change that for a while.

FRED (Odena 2016, section 3) names such priorities as something to configure; its code leaves them unfinished. A weight
becomes an integer of 20 bits, so that sums are exact and show no history.
"""

from __future__ import annotations

from collections import deque
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fredsim.dispatchers.base import Dispatcher, everybody_held
from fredsim.dispatchers.fenwick import Fenwick
from fredsim.errors import ConfigError
from fredsim.hyper import HyperParameters, Positive, PositiveInt
from fredsim.numerics.streams import Stream, Streams

__all__ = ["Weighted"]

SCALE = 2**20  # the integer that the largest weight becomes


class OnChosen(HyperParameters):
    """After being chosen a client has `factor` times its weight for the next `recover_after` arrivals."""

    factor: Annotated[float, Field(ge=0, le=2**16, allow_inf_nan=False)]  # of 20 bits and 10⁷ clients sums fit 64 bits
    """What its weight is multiplied by."""
    recover_after: PositiveInt
    """The arrivals after which the weight is as before."""


class Weighted(Dispatcher):
    """Draws an eligible client with probability proportional to its weight."""

    idea = "a weight a client, and a rule for how it changes when the client is chosen"
    state_names = ("_now", "_eligible", "_recovers", "_recovering")

    class Hyper(HyperParameters):
        """`weights`: one positive number a client, repeated from the start where there are fewer than clients."""

        weights: list[Positive] = Field(min_length=1)
        """A weight a client, repeated from the start where there are fewer."""
        on_chosen: OnChosen | None = None
        """What becomes of a client's weight when it is chosen; null leaves it."""

        def meant(self, clients: int) -> dict[str, Any]:
            """Say that weights stay."""
            return {"on_chosen": "weights stay"}

    def expect(self, clients: int) -> None:
        """Raise ConfigError where there are more weights than clients."""
        if len(self.hyper.weights) > clients:
            raise ConfigError(
                f"dispatcher.weights has {len(self.hyper.weights)} values; "
                f"give at most one a client, {clients} (clients.count)"
            )

    def init(self, clients: int, streams: Streams) -> None:
        """Start over."""
        weights = np.resize(np.array(self.hyper.weights), clients)
        self._base: list[int] = np.maximum(1, (weights / weights.max() * SCALE + 0.5).astype(np.int64)).tolist()
        self._now = list(self._base)  # what each weighs when it is eligible
        self._eligible = Fenwick(self._base)
        self._held: set[int] = set()
        self._recovering: deque[tuple[int, int]] = deque()  # (step of the first arrival at the base weight, client)
        self._recovers = [0] * clients  # at which step each does
        self._streams = streams

    def choose(self, step: int) -> int:
        """Return an eligible client and change its weight."""
        while self._recovering and self._recovering[0][0] <= step:
            due, client = self._recovering.popleft()
            if self._recovers[client] == due:  # it was not chosen again since
                self._weigh(client, self._base[client])
        if self._eligible.total == 0:
            raise everybody_held(step)
        client = self._eligible.find(self._streams.below64(self._eligible.total, Stream.DISPATCH, step))
        rule = self.hyper.on_chosen
        if rule is not None:
            self._weigh(client, max(1, int(rule.factor * self._base[client])))
            self._recovers[client] = step + 1 + rule.recover_after
            self._recovering.append((self._recovers[client], client))
        return client

    def hold(self, client: int) -> None:
        """Take the client out of the choice."""
        self._held.add(client)
        self._eligible[client] = 0

    def release(self, client: int) -> None:
        """Put the client back."""
        self._held.discard(client)
        self._eligible[client] = self._now[client]

    def _weigh(self, client: int, weight: int) -> None:
        self._now[client] = weight
        if client not in self._held:
            self._eligible[client] = weight
