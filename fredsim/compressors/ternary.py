"""Ternary gradients with one scaler per tensor: g̃ = s sign(g) b, P(b = 1) = |g|/s, s = max|g|; unbiased.

Wen et al. 2017, "TernGrad", arXiv:1705.07878. A push takes two bits per value and four bytes per tensor. With
`clip_sigma` values are first clipped at this many standard deviations σ.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fredsim.compressors.base import Compressor
from fredsim.hyper import HyperParameters, Positive
from fredsim.networks.layout import Layout
from fredsim.numerics.arrays import Array
from fredsim.numerics.streams import Stream, Streams
from fredsim.numerics.ternary import Draws, packed_size

__all__ = ["Ternary"]


class Ternary(Compressor):
    """Rounds each value at random to −s, 0 or s, with one s per tensor."""

    idea = "round values at random, without bias, to three per tensor, of two bits each"
    citation = "Wen et al. 2017, TernGrad, arXiv:1705.07878"
    on_device = True

    class Hyper(HyperParameters):
        """`clip_sigma` null does not clip."""

        clip_sigma: Positive | None = None
        """Gradients are clipped at this many standard deviations; null does not clip."""

        def resolve_defaults(self, clients: int) -> dict[str, Any]:
            """Say what null stands for: nothing is clipped."""
            return {"clip_sigma": "no clipping"}

    def init(self, layout: Layout, streams: Streams) -> None:
        """Start, and compile now what compresses, so that it is not counted in the run's time."""
        super().init(layout, streams)
        self.operations.ternary.encode(
            self.operations.zeros(1), np.float32(1), Draws(streams, Stream.COMPRESSION, 0, 0, 0)
        )

    def compress(self, push: Array, client: int, step: int) -> tuple[Array, int]:
        """Quantise, pack and decode, tensor by tensor."""
        out, compute = self.operations.zeros(push.size), self.operations.ternary
        size = 0
        for at in self._layout.slices.values():
            g = push[at] if self.hyper.clip_sigma is None else compute.clip(push[at], self.hyper.clip_sigma)
            s = compute.scaler(g)
            if np.isfinite(s):
                packed = compute.encode(g, s, Draws(self._streams, Stream.COMPRESSION, at.start, step, client))
                out[at] = compute.decode(packed, g.size, s)
            else:  # codes cannot express ∞ or NaN
                out[at] = np.nan
            size += 4 + packed_size(g.size)
        return out, size
