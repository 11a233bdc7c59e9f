"""Ternary gradients with a scaler of each tensor's own: g̃ = s sign(g) b, P(b = 1) = |g|/s, s = max|g|; unbiased.

Wen et al. 2017, "TernGrad", arXiv:1705.07878. Two bits a value and four bytes a tensor. `clip_sigma` clips at so many
σ first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fredsim.compressors.base import Array, PerTensor
from fredsim.hyper import HyperParameters, Positive
from fredsim.numerics import ternary

__all__ = ["Ternary"]


class Ternary(PerTensor):
    """Three values a tensor."""

    idea = "three values a tensor, two bits each, unbiased"
    citation = "Wen et al. 2017, TernGrad, arXiv:1705.07878"
    draws = True

    class Hyper(HyperParameters):
        """`clip_sigma` null does not clip."""

        clip_sigma: Positive | None = None

    def tensor(self, g: Array, words: NDArray[np.uint32]) -> tuple[Array, int]:
        """Quantise, pack and decode."""
        part = g if self.hyper.clip_sigma is None else ternary.clip(g, self.hyper.clip_sigma)
        s, size = ternary.scaler(part), 4 + ternary.packed_size(g.size)
        if not np.isfinite(s):  # the codes have no way to say so
            return np.full_like(g, np.nan), size
        codes = ternary.unpack(ternary.pack(ternary.quantise(part, s, words)), g.size)
        return s * codes.astype(np.float32), size
