"""So many bytes an iteration on average, shared among tensors in proportion to their v̄ + ε.

Tensor t passes with probability min(1, s·(v̄_t + ε) ÷ its bytes), s such that B bytes are spent: a tensor whose
share exceeds it passes always, and the others share what it leaves. The future work of Odena 2016; ε, as in its
eq 9, is what lets a tensor pass whose deviation is still 0.

Tensors of infinite v̄ share all bytes, the same for each; the others share what these leave. A tensor whose v̄ is
NaN, or whose v̄ + ε is not above 0, never passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fredsim.dispatchers.gates.base import Gate, Statistics
from fredsim.hyper import HyperParameters, Positive
from fredsim.numerics.streams import Stream, Streams

__all__ = ["Budget"]


class Budget(Gate):
    """Spends so many bytes an iteration, on average."""

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
