"""A budget of bytes per iteration, spent on average, and shared among tensors in proportion to their v̄ + ε.

Tensor t passes with probability min(1, s·(v̄_t + ε) ÷ its bytes), with s such that B bytes are spent on average: a
tensor whose share exceeds its bytes always passes, and the others share what it leaves. Odena 2016 names this as future
work; ε, as in its eq 9, lets a tensor pass whose deviation is still 0.

If there are tensors of infinite v̄, these share all bytes equally, and the others share what they leave. A tensor whose
v̄ is NaN, or whose v̄ + ε is not above 0, never passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fredsim.dispatchers.gates.base import Gate, Statistics
from fredsim.hyper import HyperParameters, Positive
from fredsim.numerics.streams import Stream, Streams

__all__ = ["Budget"]


class Budget(Gate):
    """Spends a given number of bytes per iteration, on average."""

    idea = "spend so many bytes per iteration, shared among tensors in proportion to their deviation"
    needs_statistics = True
    short = "bytes"

    class Hyper(HyperParameters):
        """`bytes` per iteration; `eps` is added to each tensor's deviation."""

        bytes: Positive
        """B, the bytes to spend per iteration, on average."""
        eps: Positive = 1e-4
        """ε, added to each tensor's v̄."""

    def init(self, clients: int, tensors: Sequence[int], streams: Streams, stream: Stream) -> None:
        """Note the bytes of each tensor."""
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
        """Draw for these tensors, which share `left` bytes by weight; return which pass, and the bytes they leave."""
        sizes, total, passing = self._tensors, sum(weights.values()), set[int]()
        summed = total  # the last sum from which weights were subtracted
        for number in sorted(weights, key=lambda number: sizes[number] / weights[number]):
            if left * weights[number] < total * sizes[number]:
                break
            passing.add(number)
            left -= sizes[number]
            total -= weights[number]
            if total < summed * 2.0**-20:  # little but rounding may be left of it
                total = summed = math.fsum(weight for other, weight in weights.items() if other not in passing)
        else:
            return passing, left
        for number, weight in weights.items():
            if number not in passing and self.uniform(number, step, client) * total * sizes[number] < left * weight:
                passing.add(number)
        return passing, 0.0
