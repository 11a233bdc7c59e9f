"""Signs only: −1, 0 or +1 for each value.

Bernstein et al. 2018, "signSGD", arXiv:1802.04434. sign(0) = 0, so a value takes two bits, in the ternary code: the
weights of MNIST's constant pixels have gradients of exactly zero, which one bit would turn into steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fredsim.compressors.base import PerTensor
from fredsim.numerics.arrays import Array
from fredsim.numerics.rules import sign
from fredsim.numerics.ternary import packed_size

__all__ = ["Sign"]


class Sign(PerTensor):
    """Sends signs, unscaled."""

    idea = "signs alone"
    citation = "Bernstein et al. 2018, signSGD, arXiv:1802.04434"

    def compress_tensor(self, g: Array, words: NDArray[np.uint32]) -> tuple[Array, int]:
        """Return the signs."""
        return sign(g), packed_size(g.size)
