"""Clients differ in how likely they are to arrive next; being chosen may change a client's weight for a while.

FRED (Odena 2016, section 3) mentions such priorities as configurable; its code leaves them unfinished. A weight becomes
an integer of 20 bits, so that sums are exact and do not depend on the history of changes.
"""

from __future__ import annotations

from collections import deque
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fredsim.dispatchers.base import Dispatcher, all_held_error
from fredsim.dispatchers.fenwick import Fenwick
from fredsim.errors import ConfigError
from fredsim.hyper import HyperParameters, Positive, PositiveInt
from fredsim.numerics.arrays import Integers
from fredsim.numerics.streams import Stream, Streams

__all__ = ["Weighted"]

SCALE = 2**20  # the integer that the largest weight becomes
AHEAD = 4096  # words drawn at once: a single draw costs as much as a hundred together
TOGETHER = 2**17  # the most choices that are drawn at once


class OnChosen(HyperParameters):
    """After being chosen a client has `factor` times its weight for the next `recover_after` arrivals."""

    factor: Annotated[float, Field(ge=0, le=2**16, allow_inf_nan=False)]  # of 20 bits and 10⁷ clients sums fit 64 bits
    """What the weight of a client that was chosen is multiplied by."""
    recover_after: PositiveInt
    """The number of arrivals, of any clients, after which its weight is as before."""


class Weighted(Dispatcher):
    """Draws an eligible client with probability proportional to its weight."""

    idea = "choose clients by weights, which may change for a while when a client is chosen"
    state_names = ("_now", "_eligible", "_recovers", "_recovering")

    class Hyper(HyperParameters):
        """`weights`: one positive number per client; a list shorter than the clients is repeated from its start."""

        weights: list[Positive] = Field(min_length=1)
        """One weight per client; a shorter list is repeated from its start."""
        on_chosen: OnChosen | None = None
        """How a client's weight changes when it is chosen; null: not at all."""

        def resolve_defaults(self, clients: int) -> dict[str, Any]:
            """Say what null stands for: weights stay."""
            return {"on_chosen": "weights stay"}

    def expect(self, clients: int) -> None:
        """Raise ConfigError if there are more weights than clients."""
        if len(self.hyper.weights) > clients:
            raise ConfigError(
                f"dispatcher.weights has {len(self.hyper.weights)} values; "
                f"give at most one per client, {clients} (clients.count)"
            )

    def init(self, clients: int, streams: Streams) -> None:
        """Start over with the given weights."""
        weights = np.resize(np.array(self.hyper.weights), clients)
        self._base: list[int] = np.maximum(1, (weights / weights.max() * SCALE + 0.5).astype(np.int64)).tolist()
        self._now = list(self._base)  # each client's present weight, whether it is eligible or not
        self._eligible = Fenwick(self._base)  # the weights of eligible clients, 0 for the others
        self._held: set[int] = set()
        self._recovering: deque[tuple[int, int]] = deque()  # (first step at which its weight is as before, client)
        self._recovers = [0] * clients  # that step, by client
        self._streams = streams
        self._begin = self._stop = 0
        self._words: list[int] = []

    def order(self, begin: int, count: int) -> Integers:
        """Return the choices of many steps at once, if weights stay."""
        if self.hyper.on_chosen is not None:
            return super().order(begin, count)
        ends = np.cumsum(self._base)
        order = np.empty(count, np.int64)
        for at in range(0, count, TOGETHER):
            part = order[at : at + TOGETHER]
            steps = begin + at + np.arange(len(part))
            targets = self._streams.all_below64(int(ends[-1]), Stream.DISPATCH, steps)
            part[:] = np.searchsorted(ends, targets, side="right")
        return order

    def _below(self, total: int, step: int) -> int:
        """Return an unbiased random integer below `total`, as `Streams.below64`, but with words drawn many at once."""
        if not self._begin <= step < self._stop:
            self._begin, self._stop = step, step + AHEAD
            self._words = self._streams.words64(Stream.DISPATCH, np.arange(self._begin, self._stop)).tolist()
        product = self._words[step - self._begin] * total
        if product & (2**64 - 1) < 2**64 % total:
            return self._streams.below64(total, Stream.DISPATCH, step)
        return product >> 64

    def choose(self, step: int) -> int:
        """Return an eligible client and change its weight."""
        while self._recovering and self._recovering[0][0] <= step:
            due, client = self._recovering.popleft()
            if self._recovers[client] == due:  # it has not been chosen again meanwhile
                self._weigh(client, self._base[client])
        if self._eligible.total == 0:
            raise all_held_error(step)
        client = self._eligible.find(self._below(self._eligible.total, step))
        rule = self.hyper.on_chosen
        if rule is not None:
            self._weigh(client, max(1, int(rule.factor * self._base[client])))
            self._recovers[client] = step + 1 + rule.recover_after
            self._recovering.append((self._recovers[client], client))
        return client

    def hold(self, client: int) -> None:
        """Exclude the client from the choice."""
        self._held.add(client)
        self._eligible[client] = 0

    def release(self, client: int) -> None:
        """Make the client eligible again, with its present weight."""
        self._held.discard(client)
        self._eligible[client] = self._now[client]

    def _weigh(self, client: int, weight: int) -> None:
        self._now[client] = weight
        if client not in self._held:
            self._eligible[client] = weight
