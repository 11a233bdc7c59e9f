"""Every eligible client is equally likely to arrive next, independently each time, as in FRED (Odena 2016).

The resulting staleness is geometric with mean λ − 1. On equal machines that take turns it would always be λ − 1.
"""

from __future__ import annotations

import numpy as np

from fredsim.dispatchers.base import all_held_error
from fredsim.dispatchers.equal import Equal
from fredsim.numerics.arrays import Integers
from fredsim.numerics.streams import Stream, Streams

__all__ = ["Uniform"]

TOGETHER = 2**17  # the most choices that are drawn at once
AHEAD = 4096  # draws made at once: a single draw costs as much as a hundred together


class Uniform(Equal):
    """Draws the k-th eligible client, by ascending id, with a uniform k."""

    idea = "every eligible client is equally likely"

    def init(self, clients: int, streams: Streams) -> None:
        """Start over."""
        super().init(clients, streams)
        self._streams = streams
        self._begin = self._stop = 0
        self._words: list[int] = []

    def choose(self, step: int) -> int:
        """Return an eligible client."""
        if not self._begin <= step < self._stop:
            self._begin, self._stop = step, step + AHEAD
            steps = np.arange(step, step + AHEAD)
            self._words = self._streams.words(Stream.DISPATCH, 0, steps).tolist()
        count = self._clients if self._eligible is None else self._eligible.total
        if count == 0:
            raise all_held_error(step)
        product = self._words[step - self._begin] * count
        if product & 0xFFFF_FFFF < 2**32 % count:  # this word would bias the choice: `below` draws another
            k = int(self._streams.below(count, Stream.DISPATCH, 0, step))
        else:
            k = product >> 32
        return k if self._eligible is None else self._eligible.find(k)

    def order(self, begin: int, count: int) -> Integers:
        """Return the choices of many steps at once."""
        order = np.empty(count, np.int64)
        for at in range(0, count, TOGETHER):
            part = order[at : at + TOGETHER]
            part[:] = self._streams.below(self._clients, Stream.DISPATCH, 0, begin + at + np.arange(len(part)))
        return order
