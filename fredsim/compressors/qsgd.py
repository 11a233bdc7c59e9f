"""QSGD: each value is rounded at random, without bias, to one of 2s + 1 levels between −‖g‖ and ‖g‖.

    g̃ = ‖g‖ sign(g) ξ/s,   ξ = ⌊s|g|/‖g‖⌋, plus 1 with the fraction cut off as probability;   |g̃ − g| ≤ ‖g‖/s

Alistarh et al. 2017, "QSGD: communication-efficient SGD via gradient quantization and encoding", arXiv:1610.02132. A
tensor takes four bytes for its norm and ⌈log₂(2s + 1)⌉ bits per value: plain codes, not the paper's Elias code.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fredsim.compressors.base import PerTensor
from fredsim.hyper import HyperParameters, PositiveInt
from fredsim.numerics.arrays import Array
from fredsim.numerics.oracle import tree_sum
from fredsim.numerics.streams import uniform24

__all__ = ["QSGD"]


class QSGD(PerTensor):
    """Rounds each value at random to a multiple of 1/s of its tensor's norm."""

    idea = "round values at random, without bias, to a few levels between 0 and the tensor's norm"
    citation = "Alistarh et al. 2017, QSGD, arXiv:1610.02132"
    needs_words = True

    class Hyper(HyperParameters):
        """`levels` is s."""

        levels: PositiveInt = 4
        """s, the number of levels above 0, of which the norm is the highest."""

    def compress_tensor(self, g: Array, words: NDArray[np.uint32]) -> tuple[Array, int]:
        """Round each value at random to one of the two levels next to it."""
        s = self.hyper.levels
        size = 4 + (g.size * math.ceil(math.log2(2 * s + 1)) + 7) // 8
        norm = np.float32(np.sqrt(tree_sum(g.astype(np.float64) ** 2)))
        if norm == 0 or not np.isfinite(norm):
            return (np.full_like(g, np.nan) if norm != 0 else np.zeros_like(g)), size
        scaled = np.abs(g).astype(np.float64) / np.float64(norm) * s
        below = np.minimum(np.floor(scaled), s - 1)
        level = below + (uniform24(words) < scaled - below)
        return norm * (np.sign(g) * (level / s)).astype(np.float32), size
